"""The prepared module computes what its exported file computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fuseq.torch
from fuseq.options import QuantizeOptions
from tests.torch import nets
from tests.torch.onnx_runs import run

TARGETS = [("int8", "tensorrt:sm80"), ("int8", "tensorrt-rtx:sm89"), ("fp8", "tensorrt:sm89")]


def options(format: str, target: str) -> QuantizeOptions:
    return QuantizeOptions(format=format, target=target, precision="fp32", policy="full")


@pytest.mark.parametrize(("format", "target"), TARGETS)
@pytest.mark.parametrize("kind", ["conv_net", "encoder"])
def test_output_is_that_of_onnx_runtime(kind: str, format: str, target: str) -> None:
    model = getattr(nets, kind)()
    data = nets.images() if kind == "conv_net" else nets.tokens()
    prepared = fuseq.torch.prepare(model, data[0], options=options(format, target))
    fuseq.torch.calibrate(prepared, data)
    found = fuseq.torch.prepared_of(prepared)
    assert found.points.missing == {}

    exported = fuseq.torch.export(prepared, None)
    with torch.no_grad():
        ours, plain = prepared(data[0]).numpy(), model(data[0]).numpy()
    name = exported.model.graph.inputs[0].name or ""
    theirs = next(iter(run(exported.model, {name: data[0].numpy()}).values()))
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert np.abs(ours - plain).max() > 1e-3 * np.abs(plain).max()  # it does quantize


def test_nothing_is_quantized_before_calibration() -> None:
    model, data = nets.conv_net(), nets.images()
    prepared = fuseq.torch.prepare(model, data[0])
    assert torch.equal(prepared(data[0]), model(data[0]))
    assert list(prepared.state_dict()) == list(model.state_dict())
