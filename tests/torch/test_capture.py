"""What cannot be captured is refused in a sentence; parts can be prepared alone; axes can change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fuseq.torch
from fuseq.errors import CalibrationError, ModelError, OptionError
from tests.torch import nets
from tests.torch.onnx_runs import run

OPTIONS = nets.options(precision="fp32")


class Branching(nn.Module):
    """A branch on values around a part that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.encoder(x)
        if y.sum() > 0:
            return y
        return -y


def test_control_flow_is_refused_with_place_and_advice() -> None:
    with pytest.raises(ModelError) as caught:
        fuseq.torch.prepare(Branching(), nets.tokens()[0], options=OPTIONS)
    text = str(caught.value)
    assert "test_capture.py:" in text and "`if y.sum() > 0:`" in text
    assert "torch.where or torch.cond" in text and "\n" not in text


class Fixed(nn.Module):
    """Adds a table of two samples: the batch has one size by its code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.table


class Bessel(nn.Module):
    """An operator that ONNX has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j1(x)


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        (nets.conv_net(), torch.zeros(2, 4, 16, 16), "ConvNet does not run on the example inputs at "),
        (nets.conv_net(), {"y": torch.zeros(2, 3)}, "got an unexpected keyword argument 'y'"),
        (Fixed(), torch.zeros(2, 4), "an axis of Fixed cannot be dynamic (Constraints violated"),
        (Bessel(), torch.zeros(2, 4), "torch.onnx cannot write Bessel (No ONNX function found for "),
    ],
)  # fmt: skip
def test_what_is_no_control_flow_is_not_called_so(
    model: nn.Module, inputs: object, sentence: str
) -> None:
    with pytest.raises(ModelError) as caught:
        fuseq.torch.prepare(model, inputs, options=OPTIONS)
    assert sentence in str(caught.value) and "torch.where" not in str(caught.value)


def test_wrong_inputs_are_shown() -> None:
    with pytest.raises(
        ModelError,
        match=r"expected input\[2, 4, 16, 16\] to have 3 channels.*found "
        r"0: float32 \[2, 4, 16, 16\]. Give inputs",
    ):
        fuseq.torch.prepare(nets.conv_net(), torch.zeros(2, 4, 16, 16), options=OPTIONS)


def test_a_part_is_prepared_alone_inside_the_whole() -> None:
    torch.manual_seed(0)
    model, data = Branching(), nets.tokens()
    plain = model(data[0])
    part = fuseq.torch.prepare(model.encoder, data[0], options=OPTIONS)
    model.encoder = fuseq.torch.calibrate(part, data)
    with torch.no_grad():
        assert 0 < (model(data[0]) - plain).abs().max() < 0.1
    exported = fuseq.torch.export(model.encoder, None)
    assert sum(entry.kind == "weight" for entry in exported.plan.tensors) == 2


def test_other_dynamic_axes_keep_plan_and_scales() -> None:
    net = nets.calibrated("encoder", precision="fp32")
    first = fuseq.torch.export(net, None)
    axes = {"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    second = fuseq.torch.export(net, None, dynamic_shapes=axes)
    assert [e.kind for e in second.plan.tensors] == [e.kind for e in first.plan.tensors]
    assert list(second.scales) == list(first.scales)
    assert all(not isinstance(dim, int) for dim in second.model.graph.inputs[0].shape[:2])
    x = torch.randn(3, 11, 32, generator=torch.Generator().manual_seed(0))
    theirs = next(iter(run(second.model, {"x": x.numpy()}).values()))
    with torch.no_grad():
        assert np.abs(net(x).numpy() - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_batches_are_read_as_loaders_give_them() -> None:
    data = nets.images()
    net = nets.prepared("conv_net", precision="fp32")
    found = fuseq.torch.prepared_of(net)
    scales = []
    forms = (data, [(x, torch.zeros(2)) for x in data], [{"x": x, "label": 1} for x in data])
    for loader in forms:
        fuseq.torch.calibrate(net, loader)
        scales.append(float(found.scales["x"].scale))
    assert len(set(scales)) == 1
    with pytest.raises(CalibrationError, match=r"batch 1 of the loader has no 'x'"):
        fuseq.torch.calibrate(net, [{"image": data[0]}])


def test_calibration_leaves_the_module_as_it_was() -> None:
    data = nets.images()
    net = nets.prepared("conv_net", precision="fp32").train()
    net.stem.eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    fuseq.torch.calibrate(net, data)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())

    first = fuseq.torch.export(net, None).scales["stem.0.weight"].scale
    net.stem[0].weight.data.mul_(2)  # moves no version counter
    second = fuseq.torch.export(net, None).scales["stem.0.weight"].scale
    assert np.allclose(second, 2 * first, rtol=1e-3)


def test_inputs_without_tensors_are_refused() -> None:
    with pytest.raises(OptionError, match="example inputs of ConvNet hold no tensor"):
        fuseq.torch.prepare(nets.conv_net(), {"x": 3}, options=OPTIONS)
