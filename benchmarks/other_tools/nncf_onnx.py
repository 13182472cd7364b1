"""NNCF's post-training quantization of ONNX models (nncf 3.4), INT8.

    python nncf_onnx.py MODEL.onnx CALIB.npz OUT.onnx --preset mixed

performance: symmetric activations. mixed: asymmetric activations, symmetric weights.
NNCF feeds one step per data item, and chooses its own range estimators (min and max of means).
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

from measure import Job, parser, report


def main() -> int:
    arguments = parser(__doc__ or "", ("int8",), ("default",))
    arguments.add_argument("--preset", choices=("performance", "mixed"), default="performance")
    arguments.add_argument("--transformer", action="store_true", help="pass model_type=TRANSFORMER")
    options = arguments.parse_args()

    def prepare() -> Job:
        import nncf
        import numpy as np
        import onnx

        presets = {
            "performance": nncf.QuantizationPreset.PERFORMANCE,
            "mixed": nncf.QuantizationPreset.MIXED,
        }

        def job() -> None:
            arrays = dict(np.load(options.data))
            count = len(next(iter(arrays.values())))
            steps = [
                {name: array[start : start + options.batch] for name, array in arrays.items()}
                for start in range(0, count, options.batch)
            ]
            quantized = nncf.quantize(
                onnx.load(options.model),
                nncf.Dataset(steps),
                preset=presets[options.preset],
                subset_size=len(steps),
                model_type=nncf.ModelType.TRANSFORMER if options.transformer else None,
            )
            onnx.save(quantized, options.output)

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "preset": options.preset,
        "batch": options.batch,
    }
    return report("nncf-onnx", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
