"""What fuseq itself writes has no finding."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.checks.running import CheckOptions, check_model
from fuseq.options import QuantizeOptions
from fuseq.quantizing import quantize
from tests.graphs import attention_net, conv_net, normal


@pytest.mark.parametrize(
    ("model", "fmt", "target"),
    [
        (conv_net(channels=256), "int8", "tensorrt:sm80"),
        (conv_net(channels=64), "int8", "tensorrt:sm80"),
        (conv_net(channels=256), "fp8", "tensorrt-rtx:sm89"),
        (attention_net(length=128, size=64, heads=8), "fp8", "tensorrt-rtx:sm89"),
        (conv_net(), "int8", "onnxruntime:cpu"),
    ],
)
def test_a_quantized_file_of_fuseq_is_clean(
    model: ir.Model, fmt: str, target: str, tmp_path: Path
) -> None:
    if target.startswith("tensorrt-rtx"):
        pytest.importorskip("tensorrt_rtx_bindings")
    shape = tuple(int(size) for size in model.graph.inputs[0].shape.numpy())  # type: ignore[union-attr]
    options = QuantizeOptions(format=fmt, target=target, batch=1)
    quantize(
        model, tmp_path / "out.onnx", calib=[{"x": normal(*shape, scale=1.0)}], options=options
    )
    result = check_model(tmp_path / "out.onnx", CheckOptions(targets=(target,), batch=1))
    assert result.findings == ()
    assert result.exit_code == 0
