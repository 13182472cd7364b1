"""The prepared module computes what its exported file computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fuseq.torch
from tests.torch import nets
from tests.torch.onnx_runs import run

TARGETS = [
    ("int8", "tensorrt:sm80"), ("int8", "tensorrt-rtx:sm89"), ("fp8", "tensorrt:sm89"),
    ("int8", "onnxruntime:cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "target"), TARGETS)
@pytest.mark.parametrize("kind", ["conv_net", "encoder"])
def test_output_is_that_of_onnx_runtime(kind: str, format: str, target: str) -> None:
    model, data = getattr(nets, kind)(), nets.data_of(kind)
    prepared = nets.calibrated(kind, format, target, "fp32")
    found = fuseq.torch.prepared_of(prepared)
    biases = {entry.tensor for entry in found.plan.tensors if entry.kind == "bias"}
    assert set(found.points.missing) <= biases

    exported = fuseq.torch.export(prepared, None)
    with torch.no_grad():
        ours, plain = prepared(data[0]).numpy(), model(data[0]).numpy()
    name = exported.model.graph.inputs[0].name or ""
    theirs = next(iter(run(exported.model, {name: data[0].numpy()}).values()))
    # Biases in INT32 are rounded in the file only, which moves single integers of the encoder by 1.
    tolerance = 5e-3 if biases and kind == "encoder" else 1e-5
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()
    assert np.abs(ours - plain).max() > 1e-3 * np.abs(plain).max()  # it does quantize


def test_layers_that_were_merged_and_parted_again_have_their_own_weights() -> None:
    net = nets.calibrated("encoder", target="onnxruntime:cpu", precision="fp32")
    calls = fuseq.torch.prepared_of(net).points.calls
    for layer in ("q", "k", "v"):
        (call,) = [call for key, call in calls.items() if key.scope == f"separate.{layer}"]
        assert set(call.activations) == {"input"}
        assert call.weight is not None
        assert call.weight.source.path == f"separate.{layer}.weight"
    # A square weight that the file holds turned is not taken for one times constants.
    assert all(c.weight.source.factor is None for c in calls.values() if c.weight is not None)


def test_nothing_is_quantized_before_calibration() -> None:
    model, data = nets.conv_net(), nets.images()
    prepared = nets.prepared("conv_net")
    assert torch.equal(prepared(data[0]), model(data[0]))
    assert list(prepared.state_dict()) == list(model.state_dict())
