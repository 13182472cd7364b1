"""Cases that users met in PyTorch (their numbers are those of the public reports we collected)."""

from __future__ import annotations

import copy
import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.ao import quantization as ao
from torch.ao.quantization.quantize_fx import prepare_qat_fx
from torch.nn import functional

import fuseq.torch
from fuseq.fixing import fix
from fuseq.placement.patterns import NORMALIZATIONS
from fuseq.quantizing import Quantized, apply_plan, quantize
from tests.torch import nets
from tests.torch.onnx_runs import run

INT8 = nets.options(precision="fp32")


class Neck(nn.Module):
    """Upsample, Concat, ConvTranspose, Linear with BatchNorm1d, a tied Conv, and a module never called."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.tied = nn.Conv2d(width, width, 1)
        self.linear, self.norm = nn.Linear(3 * width, 24), nn.BatchNorm1d(24)
        self.auxiliary = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = functional.relu(self.one(x))
        b = functional.interpolate(a, scale_factor=2.0, mode="nearest")
        b = functional.relu(self.two(b))
        c = self.up(a)
        both = torch.cat([self.tied(b), 3 * self.tied(c), b + c], 1)
        return functional.relu(self.norm(self.linear(both.mean((2, 3)))))


def maps(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(2, 16, 8, 8, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def neck() -> nn.Module:
    torch.manual_seed(0)
    data = maps()
    net = fuseq.torch.prepare(nets.with_statistics(Neck()), data[0], options=INT8)
    return fuseq.torch.calibrate(net, data)


@pytest.fixture(scope="module")
def neck_file(neck: nn.Module) -> Quantized:
    return fuseq.torch.export(neck, None)


@pytest.fixture(scope="module")
def fp8() -> nn.Module:
    return nets.calibrated("encoder", "fp8", "tensorrt:sm89", "fp32")


@pytest.fixture(scope="module")
def fp8_file(fp8: nn.Module) -> Quantized:
    return fuseq.torch.export(fp8, None)


def points(net: nn.Module) -> dict[tuple[str, str, int], set[str]]:
    found = fuseq.torch.prepared_of(net).points.calls
    return {(key.scope, key.kind, key.number): set(call.activations) for key, call in found.items()}


def test_the_whole_neck_computes_what_its_file_computes(
    neck: nn.Module, neck_file: Quantized
) -> None:
    x = maps()[0]
    theirs = next(iter(run(neck_file.model, {"x": x.numpy()}).values()))
    with torch.no_grad():
        ours = neck(x).numpy()
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_k3_resize_moves_eight_bits(neck_file: Quantized) -> None:
    """Both sides of a nearest Upsample share one scale where both are quantized."""
    by_name = {entry.tensor: entry.group for entry in neck_file.plan.tensors}
    for node in neck_file.job.model.graph:
        if node.op_type == "Resize":
            before, after = node.inputs[0].name, node.outputs[0].name
            assert after in by_name
            assert by_name.get(before, by_name[after]) == by_name[after]


def test_k11_functional_add_is_found_without_touching_the_code() -> None:
    found = points(nets.prepared("conv_net", precision="fp32"))
    assert found[("blocks.0", "add", 0)] == {"other"}
    assert found[("blocks.2", "add", 0)] == {"other"}


def test_k33_k37_attention_keeps_all_its_quantizers(fp8: nn.Module, fp8_file: Quantized) -> None:
    found = points(fp8)
    assert "softmax" in found[("separate", "scaled_dot_product_attention", 0)]
    assert "input" in found[("written", "matmul", 1)]  # the softmax output
    softmaxes = [n for n in fp8_file.model.graph if n.op_type == "Softmax"]
    assert len(softmaxes) == 3
    for softmax in softmaxes:
        readers = [use.node for use in softmax.outputs[0].uses()]
        assert [node.op_type for node in readers] == ["QuantizeLinear"]
        scale = readers[0].inputs[1].const_value.numpy()
        assert float(scale) == pytest.approx(1 / 448, rel=1e-3)


def test_k39_k49_weights_stand_right_behind_one_dequantize(neck_file: Quantized) -> None:
    weights = [e for e in neck_file.plan.tensors if e.kind == "weight"]
    assert weights
    nodes = {node.name: node for node in neck_file.model.graph}
    for entry in weights:
        for use in entry.uses:
            made = nodes[use.node].inputs[use.index].producer()
            assert made.op_type == "DequantizeLinear"
            assert made.inputs[0].is_initializer()
            assert made.inputs[0].dtype == ir.DataType.INT8
            axis = made.attributes.get_int("axis", 1)
            assert made.inputs[1].shape.numpy() in ((), (made.inputs[0].shape[axis],))


def test_k41_no_pairs_on_normalization_inputs(fp8_file: Quantized) -> None:
    readers = {use.node for entry in fp8_file.plan.tensors for use in entry.uses}
    norms = [n for n in fp8_file.job.model.graph if n.op_type in NORMALIZATIONS]
    assert len(norms) == 4
    assert not readers.intersection(node.name for node in norms)


def test_k43_k45_batch_norms_are_folded_behind_linear_too(
    neck: nn.Module, neck_file: Quantized
) -> None:
    assert not any(n.op_type == "BatchNormalization" for n in neck_file.model.graph)
    folds = [c.folded for c in fuseq.torch.prepared_of(neck).points.calls.values() if c.folded]
    assert [fold.path for fold in folds] == ["norm"]
    trained = copy.deepcopy(neck).train()
    trained(maps()[0]).sum().backward()
    assert trained.norm.num_batches_tracked == 1
    assert trained.linear.weight.grad.abs().sum() > 0


def test_k47_one_rule_for_both_paths(neck: nn.Module, neck_file: Quantized) -> None:
    """Same plan and same scales as quantizing the exported file, transposed convolutions included."""
    model = fuseq.torch.prepared_of(neck).capture.model
    feeds = [{"x": x.numpy()} for x in maps()]
    other = quantize(model, calib=feeds, options=INT8)
    assert other.plan.tensors == neck_file.plan.tensors
    assert other.plan.regions == neck_file.plan.regions
    assert list(other.scales) == list(neck_file.scales)
    for group, scale in other.scales.items():
        assert scale.scale.tobytes() == neck_file.scales[group].scale.tobytes(), group


def test_k63_standard_symmetric_pairs(neck_file: Quantized, fp8_file: Quantized) -> None:
    for exported in (neck_file, fp8_file):
        kinds = {node.op_type for node in exported.model.graph}
        assert "QuantizeLinear" in kinds and not kinds & {"Round", "DynamicQuantizeLinear"}
        for node in exported.model.graph:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.inputs) > 2:
                assert not node.inputs[2].const_value.numpy().astype(np.float32).any()


def test_k59_zero_points_of_fx_training_are_mended() -> None:
    """PyTorch's own FX quantization-aware training, asymmetric by default, becomes symmetric."""
    model, data = nets.conv_net().train(), nets.images()
    kinds = {
        "activation": (ao.MovingAverageMinMaxObserver, 0, 255, torch.quint8, torch.per_tensor_affine),
        "weight": (
            ao.MovingAveragePerChannelMinMaxObserver, -128, 127, torch.qint8,
            torch.per_channel_symmetric,
        ),
    }  # fmt: skip
    config = ao.QConfig(
        **{
            kind: ao.FakeQuantize.with_args(
                observer=observer, quant_min=low, quant_max=high, dtype=dtype, qscheme=scheme
            )
            for kind, (observer, low, high, dtype, scheme) in kinds.items()
        }
    )
    mapping = ao.QConfigMapping().set_global(config)
    net = prepare_qat_fx(model, mapping, (data[0],))
    with torch.no_grad():
        for x in data:
            net(x)
    net.apply(ao.disable_observer).eval()
    buffer = io.BytesIO()
    torch.onnx.export(net, (data[0],), buffer, dynamo=False, opset_version=17, input_names=["x"])
    file = ir.from_proto(onnx.load_from_string(buffer.getvalue()))
    found = {_zero_point(n) for n in file.graph if n.op_type == "QuantizeLinear"}
    assert any(found)  # asymmetric

    mended = fix(file, options=INT8)
    pairs = [n for n in mended.model.graph if n.op_type == "QuantizeLinear"]
    assert len(pairs) == 7 and not any(_zero_point(n) for n in pairs)
    before, after = (
        next(iter(run(each, {"x": data[0].numpy()}).values())) for each in (file, mended.model)
    )
    cosine = (before * after).sum() / np.sqrt((before**2).sum() * (after**2).sum())
    assert cosine > 0.9995  # measured: 0.99989


def _zero_point(node: ir.Node) -> int:
    constant = node.inputs[2].producer() or node.inputs[2]
    while isinstance(constant, ir.Node) and constant.op_type == "Identity":
        constant = constant.inputs[0].producer() or constant.inputs[0]
    if isinstance(constant, ir.Node):
        return int(np.abs(constant.attributes["value"].value.numpy().astype(int)).max())
    return int(np.abs(constant.const_value.numpy().astype(int)).max())


def test_k71_fp8_without_private_operators(fp8_file: Quantized) -> None:
    assert {node.domain for node in fp8_file.model.graph} == {""}
    assert fp8_file.model.opset_imports[""] >= 20
    stored = [
        value
        for value in fp8_file.model.graph.initializers.values()
        if value.dtype == ir.DataType.FLOAT8E4M3FN and value.shape.rank() == 2
    ]
    assert len(stored) == sum(entry.kind == "weight" for entry in fp8_file.plan.tensors)


def test_k77_a_module_that_is_never_called_is_named(neck: nn.Module) -> None:
    assert "- auxiliary: Conv2d, float: the forward pass never calls it" in fuseq.torch.explain(
        neck
    )


def test_a_module_that_runs_twice_has_points_for_each_run(neck: nn.Module) -> None:
    calls = fuseq.torch.prepared_of(neck).points.calls
    tied = {key.visit: call for key, call in calls.items() if key.scope == "tied"}
    assert set(tied) == {0, 1}
    groups = {call.activations["input"].group for call in tied.values()}
    assert len(groups) == 2
    # The second product is times 3, which the export folds into a weight of its own.
    assert len({call.weight.group for call in tied.values()}) == 2
    assert tied[0].weight.source.factor is None
    assert tied[1].weight.source.factor == pytest.approx([3.0] * 16, rel=1e-6)


def test_learned_scales_of_a_folded_constant_are_the_exports(neck: nn.Module) -> None:
    net = fuseq.torch.calibrate(copy.deepcopy(neck), maps(), scales="learned")
    x = maps()[0]
    theirs = next(iter(run(fuseq.torch.export(net, None).model, {"x": x.numpy()}).values()))
    with torch.no_grad():
        assert np.abs(net(x).numpy() - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_fp16_export_is_strongly_typed(fp8: nn.Module, fp8_file: Quantized) -> None:
    job = fp8_file.job
    half = job.__class__(**{**vars(job), "precision": "fp16"})
    model, _ = apply_plan(half, fp8_file.plan, fp8_file.scales)
    floats = {v.dtype for n in model.graph for v in n.outputs if n.op_type == "MatMul"}
    assert floats == {ir.DataType.FLOAT16}
