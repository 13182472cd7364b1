"""ONNX Runtime's dynamic quantizer (onnxruntime.quantization.quantize_dynamic): weights alone have scales.

python ort_dynamic.py MODEL.onnx CALIB.npz OUT.onnx        # the data is not used
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

from measure import Job, parser, report


def main() -> int:
    options = parser(__doc__ or "", ("int8",), ("max",)).parse_args()

    def prepare() -> Job:
        from onnxruntime import quantization as q

        return lambda: q.quantize_dynamic(
            options.model, str(options.output), weight_type=q.QuantType.QInt8
        )

    return report("ort-dynamic", {"model": options.model}, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
