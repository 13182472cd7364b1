"""An export after training: its graph may have other names than the one that was planned."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fuseq.torch
from fuseq.options import QuantizeOptions
from tests.torch import nets
from tests.torch.onnx_runs import run

TARGETS = ["tensorrt:sm80", "onnxruntime:cpu"]


class Fresh(nn.Module):
    """As it is initialized: every bias is zero, and the exporter leaves those out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, 16, 3, padding=1) for width in (3, 16))
        self.head = nn.Linear(16, 10)
        for layer in (self.one, self.two, self.head):
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.two(self.one(x).relu()).relu()
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module", params=TARGETS)
def calibrated(request: pytest.FixtureRequest) -> Fresh:
    torch.manual_seed(0)
    options = QuantizeOptions(format="int8", target=request.param, policy="full", precision="fp32")
    net = fuseq.torch.prepare(Fresh().eval(), nets.images()[0], options=options)
    return fuseq.torch.calibrate(net, nets.images())


@pytest.fixture
def trained(calibrated: Fresh) -> Iterator[Fresh]:
    net = copy.deepcopy(calibrated)
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1)
    for x in nets.images():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    yield net.eval()


def test_training_moves_names_but_no_pair(calibrated: Fresh, trained: Fresh) -> None:
    before, after = (fuseq.torch.export(net, None) for net in (calibrated, trained))
    names = [{node.name for node in each.job.model.graph} for each in (before, after)]
    assert names[0] != names[1]  # else this test shows nothing
    assert [e.tensor for e in after.plan.tensors if e.kind != "bias"] == [
        e.tensor for e in before.plan.tensors if e.kind != "bias"
    ]
    x = nets.images()[0]
    theirs = next(iter(run(after.model, {"x": x.numpy()}).values()))
    with torch.no_grad():
        ours = trained(x).numpy()
    zero_points = any(scale.zero_point is not None for _, scale in after.scales.items())
    assert np.abs(ours - theirs).max() <= (1e-3 if zero_points else 1e-5) * np.abs(theirs).max()


def test_new_biases_are_integers_where_the_target_wants_them(trained: Fresh) -> None:
    exported = fuseq.torch.export(trained, None)
    convs = [node for node in exported.model.graph if node.op_type == "Conv"]
    assert [len(node.inputs) for node in convs] == [3, 3]
    makers = {
        node.inputs[2].producer().op_type if node.inputs[2].producer() else "" for node in convs
    }
    is_integer = "onnxruntime" in exported.plan.target
    assert makers == ({"DequantizeLinear"} if is_integer else {""})


def test_a_trained_checkpoint_comes_back(trained: Fresh, tmp_path: Path) -> None:
    fuseq.torch.save(trained, tmp_path)
    again = fuseq.torch.load(Fresh(), tmp_path, nets.images()[0]).eval()
    x = nets.images()[0]
    with torch.no_grad():
        assert torch.equal(again(x), trained(x))
