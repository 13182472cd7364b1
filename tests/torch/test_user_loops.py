"""What users do with modules works with prepared ones: copies, EMA, AMP, compile, DDP, pickle, strict loads."""

from __future__ import annotations

import copy
import inspect
import io

import pytest
import torch
from torch import nn

import fuseq.torch
from fuseq.errors import CalibrationError, PlanError
from fuseq.torch.state import SCALES
from tests.torch import nets


@pytest.fixture
def net() -> nets.ConvNet:
    found = nets.calibrated("conv_net", scales="learned")
    assert isinstance(found, nets.ConvNet)
    return found


def test_names_class_and_signature_are_the_float_models(net: nets.ConvNet) -> None:
    model = nets.conv_net()
    assert type(net) is nets.ConvNet
    assert [key for key in net.state_dict() if key != SCALES] == list(model.state_dict())
    assert [name for name, _ in net.named_modules()] == [name for name, _ in model.named_modules()]
    assert inspect.signature(net.forward) == inspect.signature(model.forward)


def test_float_state_loads_strictly_and_keeps_the_scales(net: nets.ConvNet) -> None:
    kept = net.get_parameter(SCALES).detach().clone()
    other = nets.conv_net(seed=5)
    net.load_state_dict(other.state_dict())
    assert torch.equal(net.head.weight, other.head.weight)
    assert torch.equal(net.get_parameter(SCALES), kept)


def test_a_copy_shares_nothing_with_the_original(net: nets.ConvNet) -> None:
    x = nets.images()[0]
    copied = copy.deepcopy(net)
    assert fuseq.torch.prepared_of(copied).module is copied
    before = net(x)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(0.5)
    assert torch.equal(net(x), before)
    assert not torch.allclose(copied(x), before)


def test_k75_an_average_carries_the_scales(net: nets.ConvNet) -> None:
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    average.update_parameters(net)
    kept = net.get_parameter(SCALES).detach().clone()
    with torch.no_grad():
        net.get_parameter(SCALES).mul_(3.0)
    average.update_parameters(net)
    inner = average.module
    assert torch.allclose(inner.get_parameter(SCALES), 2 * kept)
    x = nets.images()[0]
    with torch.no_grad():
        wanted = copy.deepcopy(net)
        wanted.get_parameter(SCALES).copy_(2 * kept)
        assert torch.equal(average(x), wanted(x))
    assert fuseq.torch.export(average, None).plan.tensors  # wrappers are looked through


def test_dropout_and_batch_norm_behave_as_in_float(net: nets.ConvNet) -> None:
    model, x = nets.conv_net(), nets.images()[0]
    fuseq.torch.fake_quantize(net, False)
    for module in (net, model):
        module.train()
        torch.manual_seed(3)
    torch.manual_seed(3)
    ours = net(x)
    torch.manual_seed(3)
    assert torch.equal(ours, model(x))
    fuseq.torch.fake_quantize(net)
    net(x)
    model(x)
    one, two = net.stem[1], model.stem[1]
    assert one.num_batches_tracked == two.num_batches_tracked == 2
    assert torch.allclose(one.running_mean, two.running_mean, atol=0.02)
    assert torch.allclose(one.running_var, two.running_var, rtol=0.05)


def test_mixed_precision_and_gradients_reach_everything(net: nets.ConvNet) -> None:
    net.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(nets.images()[0]).square().mean()
    loss.backward()
    missing = [name for name, p in net.named_parameters() if p.grad is None]
    assert missing == []
    assert torch.isfinite(net.get_parameter(SCALES).grad).all()
    assert (net.get_parameter(SCALES).grad != 0).any()


@pytest.mark.slow
def test_k81_compiles_into_one_graph(net: nets.ConvNet) -> None:
    x = nets.images()[0]
    wanted = net(x)
    wanted.square().mean().backward()
    gradient = net.stem[0].weight.grad.clone()
    net.zero_grad()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    ours = compiled(x)
    ours.square().mean().backward()
    assert torch.allclose(ours, wanted, rtol=1e-5, atol=1e-6)
    assert torch.allclose(net.stem[0].weight.grad, gradient, rtol=1e-4, atol=1e-6)
    assert fuseq.torch.prepared_of(compiled).module is net


def test_runs_in_distributed_data_parallel(net: nets.ConvNet, tmp_path: object) -> None:
    x = nets.images()[0]
    wanted = net(x)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        parallel = nn.parallel.DistributedDataParallel(net)
        assert torch.equal(parallel(x), wanted)
        parallel(x).sum().backward()
        assert net.get_parameter(SCALES).grad is not None
        assert fuseq.torch.prepared_of(parallel).module is net
    finally:
        torch.distributed.destroy_process_group()


def test_a_pickled_module_still_quantizes(net: nets.ConvNet) -> None:
    x = nets.images()[0]
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert torch.equal(again(x), net(x))
    with pytest.raises(PlanError, match=r"was pickled.*fuseq.torch.save and fuseq.torch.load"):
        fuseq.torch.export(again, None)


def test_unprepared_modules_are_refused_in_a_sentence() -> None:
    with pytest.raises(PlanError, match="ConvNet is not prepared; call fuseq.torch.prepare"):
        fuseq.torch.calibrate(nets.conv_net(), nets.images())
    with pytest.raises(PlanError, match="has no scales; call fuseq.torch.calibrate"):
        fuseq.torch.export(nets.prepared("conv_net"), None)


def test_an_empty_loader_is_named_by_a_public_word() -> None:
    net = nets.prepared("conv_net")
    with pytest.raises(CalibrationError) as refused:
        fuseq.torch.calibrate(net, [])
    assert str(refused.value) == (
        "calibration data is empty: a Loader gave no batch; give one sample or more."
    )
