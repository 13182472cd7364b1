"""Quantization-aware training: switches, schedules, and that it pays."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import fuseq.torch
from fuseq.errors import OptionError
from fuseq.quantizing import apply_plan
from fuseq.torch.state import SCALES
from tests.torch import nets
from tests.torch.onnx_runs import run

OPTIONS = nets.options()


@pytest.fixture
def net() -> nets.ConvNet:
    found = nets.calibrated("conv_net")
    assert isinstance(found, nets.ConvNet)
    return found


def test_frozen_batch_norm_trains_on_running_statistics(net: nets.ConvNet) -> None:
    net.drop.p = 0.0
    x = 3 * nets.images()[0]
    wanted = net.eval()(x)
    net.train()
    assert not torch.allclose(net(x), wanted, rtol=0.1)
    net.load_state_dict(nets.conv_net().state_dict())
    fuseq.torch.freeze_batch_norm(net)
    mean = net.stem[1].running_mean.clone()
    assert torch.equal(net(x), wanted)
    assert torch.equal(net.stem[1].running_mean, mean)
    net(x).sum().backward()
    assert net.stem[1].weight.grad is not None and net.stem[1].weight.grad.any()


def test_a_channel_scaled_by_zero_stays_finite(net: nets.ConvNet) -> None:
    with torch.no_grad():
        net.stem[1].weight[0] = 0.0
    net.train()
    out = net(nets.images()[0])
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_observed_ranges_move_and_stop(net: nets.ConvNet) -> None:
    found = fuseq.torch.prepared_of(net)
    place, _ = found.state.places["x"]
    before = net.get_parameter(SCALES)[place].item()
    x = 10 * nets.images()[0]
    fuseq.torch.observe(net, momentum=0.5)
    schedule = fuseq.torch.Schedule(net, observe_until=1, freeze_batch_norm_at=2)
    net.eval()(x)
    assert net.get_parameter(SCALES)[place].item() == before  # only training moves it
    net.train()(x)
    wanted = 0.5 * before + 0.5 * x.abs().max().item() / 127
    assert net.get_parameter(SCALES)[place].item() == pytest.approx(wanted, rel=1e-6)
    schedule.step()
    net(x)
    assert net.get_parameter(SCALES)[place].item() == pytest.approx(wanted, rel=1e-6)
    assert not found.state.batch_norm_frozen
    schedule.step()
    assert found.state.batch_norm_frozen


def test_distillation_is_the_divergence_of_hinton() -> None:
    student = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True)
    teacher = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    p, q = (np.exp(t.detach().numpy() / 3) for t in (teacher, student))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    wanted = 9 * (p * np.log(p / q)).sum(1).mean()
    loss = fuseq.torch.distillation_loss(student, teacher, temperature=3.0)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    loss.backward()
    assert student.grad is not None and student.grad.any()
    with pytest.raises(OptionError, match="shapes must be equal"):
        fuseq.torch.distillation_loss(student, teacher[:1])


class Digits(nn.Module):
    """Depthwise separable convolutions; trained so that channels differ a thousandfold."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = (
            nn.Conv2d(1, 24, 3, padding=1),
            nn.Conv2d(24, 24, 3, padding=1, groups=24),
        )
        self.point, self.head = nn.Conv2d(24, 32, 1), nn.Linear(32 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.deep(functional.relu(self.first(x))))
        x = functional.max_pool2d(functional.relu(self.point(x)), 2)
        return self.head(x.flatten(1))


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


def accuracy(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((net.eval()(x).argmax(1) == y).float().mean()) * 100


def fit(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(100):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def unequal_channels(net: Digits) -> None:
    """Same function, one depthwise channel in twelve a two hundred times larger than the others."""
    with torch.no_grad():
        factor = torch.ones(24)
        factor[::12] = 200.0
        net.deep.weight.mul_(factor.view(-1, 1, 1, 1))
        net.deep.bias.mul_(factor)
        net.point.weight.div_(factor.view(1, -1, 1, 1))


@pytest.mark.slow
def test_training_brings_back_what_one_scale_for_a_depthwise_weight_loses() -> None:
    x, y, test_x, test_y = digits()
    torch.manual_seed(0)
    model = Digits()
    fit(model, x, y, epochs=15, rate=3e-3)
    unequal_channels(model)
    plain = accuracy(model, test_x, test_y)
    assert plain > 93

    whole = fuseq.torch.prepared_of(fuseq.torch.prepare(model, x[:8], options=OPTIONS)).plan
    plan = dataclasses.replace(
        whole,
        tensors=tuple(
            dataclasses.replace(entry, axis=None) if entry.kind == "weight" else entry
            for entry in whole.tensors
        ),
    )
    net = fuseq.torch.prepare(model, x[:8], options=OPTIONS, plan=plan)
    fuseq.torch.calibrate(net, x.split(100), scales="learned")
    before = accuracy(net, test_x, test_y)
    assert before <= plain - 5

    fit(net, x, y, epochs=6, rate=2e-3)
    after = accuracy(net, test_x, test_y)
    assert after >= plain - 1

    exported = fuseq.torch.export(net, None)
    assert exported.plan.tensors == plan.tensors
    job = dataclasses.replace(exported.job, precision="fp32")
    model_fp32, _ = apply_plan(job, exported.plan, exported.scales)
    logits = next(iter(run(model_fp32, {"x": test_x.numpy()}).values()))
    assert abs(float((logits.argmax(1) == test_y.numpy()).mean()) * 100 - after) <= 0.2


def test_training_is_deterministic_for_a_seed(net: nets.ConvNet) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        copied = copy.deepcopy(net).train()
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1)
        for x in nets.images():
            optimizer.zero_grad()
            copied(x).square().mean().backward()
            optimizer.step()
        results.append(copied.eval()(nets.images()[0]))
    assert torch.equal(*results)
