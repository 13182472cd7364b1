"""The exported program holds the operator that Torch-TensorRT converts, where the plan has pairs."""

from __future__ import annotations

import pytest
import torch

import fuseq.torch
from fuseq.errors import OptionError, PlanError
from tests.torch import nets


def operators(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    target = torch.ops.tensorrt.quantize_op.default
    return [node for node in program.graph.nodes if node.target is target]


@pytest.mark.parametrize(
    ("kind", "format", "exponent"), [("conv_net", "int8", 0), ("encoder", "fp8", 4)]
)
def test_k79_one_operator_for_each_point(kind: str, format: str, exponent: int) -> None:
    data = nets.data_of(kind)
    target = "tensorrt:sm89" if format == "fp8" else "tensorrt:sm80"
    net = nets.calibrated(kind, format, target, "fp32")
    program = fuseq.torch.export_for_torch_tensorrt(net)
    calls = fuseq.torch.prepared_of(net).points.calls.values()
    points = sum(len(call.activations) + (call.weight is not None) for call in calls)
    found = operators(program)
    assert len(found) == points
    assert {node.args[2:] for node in found} == {(8, exponent, False, False)}
    with torch.no_grad():
        wanted, ours = net(data[0]), program.module()(data[0])
    assert torch.allclose(ours, wanted, rtol=1e-4, atol=1e-5)
    assert fuseq.torch.prepared_of(net).state.operator is None


def test_all_operators_have_converters() -> None:
    registry = pytest.importorskip("torch_tensorrt.dynamo.conversion._ConverterRegistry")
    net = nets.calibrated("conv_net", precision="fp32")
    program = fuseq.torch.export_for_torch_tensorrt(net)
    assert all(registry.DYNAMO_CONVERTERS.get(node) for node in operators(program))


def test_what_tensorrt_has_not_is_refused() -> None:
    with pytest.raises(PlanError, match="has no scales"):
        fuseq.torch.export_for_torch_tensorrt(nets.prepared("conv_net", precision="fp32"))
    net = nets.calibrated("conv_net", target="onnxruntime:cpu", precision="fp32")
    with pytest.raises(OptionError, match="quantizes with zero points"):
        fuseq.torch.export_for_torch_tensorrt(net)
