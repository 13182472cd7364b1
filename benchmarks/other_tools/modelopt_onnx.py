"""NVIDIA ModelOpt's ONNX quantizer (nvidia-modelopt[onnx] 0.47), on the CPU provider.

python modelopt_onnx.py MODEL.onnx CALIB.npz OUT.onnx --format int8 --method max
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

from measure import Job, parser, report


def main() -> int:
    arguments = parser(__doc__ or "", ("int8", "fp8"), ("max", "entropy"))
    arguments.add_argument("--precision", choices=("fp16", "fp32"), default="fp16")
    arguments.add_argument("--simplify", action="store_true")
    options = arguments.parse_args()

    def prepare() -> Job:
        import numpy as np
        from modelopt.onnx.quantization import quantize

        def job() -> None:
            arrays = dict(np.load(options.data))
            steps = {name: [options.batch, *array.shape[1:]] for name, array in arrays.items()}
            quantize(
                options.model,
                quantize_mode=options.format,
                calibration_data=arrays,
                calibration_method=options.method,
                calibration_shapes=",".join(
                    f"{name}:{'x'.join(map(str, shape))}" for name, shape in steps.items()
                ),
                calibration_eps=["cpu"],
                high_precision_dtype=options.precision,
                output_path=str(options.output),
                simplify=options.simplify,
            )

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "precision": options.precision,
        "batch": options.batch,
    }
    return report("modelopt-onnx", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
