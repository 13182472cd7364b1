"""ONNX Runtime's static quantizer (onnxruntime.quantization.quantize_static, QDQ format).

    python ort_static.py MODEL.onnx CALIB.npz OUT.onnx --setting best --method minmax

default: what the function does when nothing is said (int8 activations and weights, per tensor).
best: uint8 activations, per-channel int8 weights of reduced range, which a CPU without VNNI wants.
tensorrt: what its documentation advises for TensorRT (int8, symmetric both, bias left in float).
u8s8: as best with all eight bits, for a CPU with VNNI.
s8s8: int8 activations, int8 weights a channel. u8u8: uint8 both. qoperator: u8u8 in QOperator format.
Each runs quant_pre_process first, as its documentation advises; that time counts.
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Job, parser, report

SETTINGS = ("default", "best", "u8s8", "tensorrt", "s8s8", "u8u8", "qoperator")


def batches(arrays: dict[str, Any], batch: int) -> Iterator[dict[str, Any]]:
    """Cut named arrays along axis 0 into steps of ``batch`` samples."""
    count = len(next(iter(arrays.values())))
    for start in range(0, count, batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def main() -> int:
    arguments = parser(__doc__ or "", ("int8",), ("minmax", "entropy", "percentile"))
    arguments.add_argument("--setting", choices=SETTINGS, default="default")
    arguments.add_argument(
        "--skip-symbolic-shape",
        action="store_true",
        help="its own shape inference fails on some graphs",
    )
    options = arguments.parse_args()

    def prepare() -> Job:
        import numpy as np
        from onnxruntime import quantization as q
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Reader(q.CalibrationDataReader):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                self.steps = batches(dict(np.load(options.data)), options.batch)

            def get_next(self) -> dict[str, Any] | None:
                return next(self.steps, None)

        choices: dict[str, dict[str, Any]] = {
            "default": {},
            "best": {
                "activation_type": q.QuantType.QUInt8,
                "weight_type": q.QuantType.QInt8,
                "per_channel": True,
                "reduce_range": True,
            },
            "u8s8": {
                "activation_type": q.QuantType.QUInt8,
                "weight_type": q.QuantType.QInt8,
                "per_channel": True,
            },
            "s8s8": {"per_channel": True},
            "u8u8": {"activation_type": q.QuantType.QUInt8, "weight_type": q.QuantType.QUInt8},
            "qoperator": {
                "activation_type": q.QuantType.QUInt8,
                "weight_type": q.QuantType.QUInt8,
                "quant_format": q.QuantFormat.QOperator,
            },
            "tensorrt": {
                "per_channel": True,
                "extra_options": {
                    "ActivationSymmetric": True,
                    "WeightSymmetric": True,
                    "QuantizeBias": False,
                },
            },
        }
        methods = {
            "minmax": q.CalibrationMethod.MinMax,
            "entropy": q.CalibrationMethod.Entropy,
            "percentile": q.CalibrationMethod.Percentile,
        }

        def job() -> None:
            with tempfile.TemporaryDirectory() as folder:
                prepared = Path(folder) / "prepared.onnx"
                quant_pre_process(
                    options.model, str(prepared), skip_symbolic_shape=options.skip_symbolic_shape
                )
                q.quantize_static(
                    str(prepared),
                    str(options.output),
                    Reader(),
                    calibrate_method=methods[options.method],
                    **{"quant_format": q.QuantFormat.QDQ, **choices[options.setting]},
                )

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "setting": options.setting,
        "batch": options.batch,
    }
    return report("ort-static", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
