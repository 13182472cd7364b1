"""Checkpoints: what is saved comes back, nothing else is accepted."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

import fuseq.torch
from fuseq.errors import ModelError, PlanError
from fuseq.options import QuantizeOptions
from fuseq.torch.state import SCALES
from tests.torch import nets

OPTIONS = QuantizeOptions(
    format="int8", target="tensorrt:sm80", policy="full", exclude=("head",), keep_first=True
)


@pytest.fixture(scope="module")
def trained() -> nets.ConvNet:
    data = nets.images()
    net = fuseq.torch.prepare(nets.conv_net(), data[0], options=OPTIONS)
    fuseq.torch.calibrate(net, data, scales="learned")
    optimizer = torch.optim.SGD(net.train().parameters(), lr=1e-2)
    for x in data:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def folder(trained: nets.ConvNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("checkpoint")
    fuseq.torch.save(trained, place)
    return place


def test_comes_back_whole(trained: nets.ConvNet, folder: Path) -> None:
    x = nets.images()[0]
    again = fuseq.torch.load(nets.conv_net(seed=9), folder, x).eval()
    assert torch.equal(again(x), trained(x))
    assert torch.equal(again.get_parameter(SCALES), trained.get_parameter(SCALES))
    assert again.get_parameter(SCALES).requires_grad
    ours, theirs = fuseq.torch.prepared_of(again), fuseq.torch.prepared_of(trained)
    assert ours.plan == theirs.plan and ours.job.options == theirs.job.options
    one, two = fuseq.torch.export(again, None), fuseq.torch.export(trained, None)
    assert list(one.model.graph.initializers) == list(two.model.graph.initializers)
    for name, value in one.model.graph.initializers.items():
        other = two.model.graph.initializers[name]
        assert value.const_value.numpy().tobytes() == other.const_value.numpy().tobytes(), name


def test_weights_file_is_the_float_models(trained: nets.ConvNet, folder: Path) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415

    assert set(load_file(folder / "model.safetensors")) == set(nets.conv_net().state_dict())
    assert SCALES in trained.state_dict()  # saving left the module whole


def test_another_dtype_takes_the_weights(folder: Path) -> None:
    x = nets.images()[0]
    again = fuseq.torch.load(nets.conv_net().double(), folder, x.double())
    assert again.head.weight.dtype == torch.float64


def test_another_architecture_is_refused(folder: Path) -> None:
    with pytest.raises(PlanError, match=r"weights of another architecture than Encoder"):
        fuseq.torch.load(nets.encoder(), folder, nets.tokens()[0])


def test_a_pickle_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "fuseq.safetensors").write_bytes(pickle.dumps({"scales": 1}))
    with pytest.raises(ModelError, match="not safetensors"):
        fuseq.torch.load(nets.conv_net(), tmp_path, nets.images()[0])
    (tmp_path / "fuseq.safetensors").unlink()
    with pytest.raises(ModelError, match="no such file; give a folder of fuseq.torch.save"):
        fuseq.torch.load(nets.conv_net(), tmp_path, nets.images()[0])


def test_a_plan_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    plan = json.loads((tmp_path / "fuseq_plan.json").read_text())
    plan["tensors"][0]["tensor"] = "elsewhere"
    (tmp_path / "fuseq_plan.json").write_text(json.dumps(plan))
    with pytest.raises(PlanError, match="'elsewhere', which the model does not have"):
        fuseq.torch.load(nets.conv_net(), tmp_path, nets.images()[0])


def test_uncalibrated_modules_have_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="has no scales to save"):
        fuseq.torch.save(nets.prepared("conv_net"), tmp_path)
