"""A real ModelOpt checkpoint becomes a prepared module and an ONNX file with mended placement."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fuseq.errors import ModelError, OptionError
from fuseq.modelopt.importing import apply_checkpoint
from fuseq.options import QuantizeOptions
from fuseq.torch import export, export_modelopt, load_modelopt, modelopt_to_onnx, prepared_of
from fuseq.torch.transformers_folder import example_inputs_of, model_of_folder
from tests.modelopt.artefacts import DATA, recorded
from tests.modelopt.nets import conv_input, conv_net, text_encoder, text_input

FP32 = QuantizeOptions(policy="full", precision="fp32")


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Relative L2 distance."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    folder = tmp_path_factory.mktemp("text")
    model = load_modelopt(text_encoder(seed=5), DATA / "text_fp8", text_input(), options=FP32)
    export(model, folder / "text.onnx")
    return model, folder / "text.onnx"


def test_weights_are_the_checkpoints_and_keep_their_names(
    text_file: tuple[nn.Module, Path],
) -> None:
    model, _ = text_file
    state = model.state_dict()
    for name, tensor in text_encoder().state_dict().items():
        assert torch.equal(state[name], tensor), name


def test_scales_are_amax_by_448(text_file: tuple[nn.Module, Path]) -> None:
    prepared = prepared_of(text_file[0])
    amax = load_file(DATA / "text_fp8" / "model.safetensors")
    prefix = next(name for name in amax if name.endswith("fc1.weight")).partition("encoder.")[0]
    fc1 = amax[f"{prefix}encoder.layers.0.mlp.fc1.input_quantizer._amax"]
    by_reason = {
        entry.reason: prepared.scales[entry.group].scale
        for entry in prepared.plan.tensors
        if entry.kind == "activation"
    }
    expected = np.float32(np.float64(fc1.item()) / 448)
    assert any(np.array_equal(scale, expected) for scale in by_reason.values())


def test_the_softmax_gets_the_pair_that_the_checkpoint_lacks(
    text_file: tuple[nn.Module, Path],
) -> None:
    """K33: Q, K and V have ranges, the softmax output has none; with 1/448 the attention fuses."""
    prepared = prepared_of(text_file[0])
    attention = next(r for r in prepared.plan.regions if r.pattern == "attention")
    softmax = next(e for e in prepared.plan.tensors if e.reason.startswith("softmax output"))
    assert attention.quantized
    assert prepared.scales[softmax.group].scale == np.float32(1 / 448)
    assert not any("norm" in u.node for e in prepared.plan.tensors for u in e.uses)


def test_module_and_file_compute_the_same(text_file: tuple[nn.Module, Path]) -> None:
    model, file = text_file
    ids = text_input()
    with torch.no_grad():
        expected = model(ids).text_embeds.numpy()
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
    found = next(each for each in outputs if each.shape == expected.shape)
    assert distance(found, expected) < 1e-5


def test_the_result_is_as_near_to_float_as_modelopts_own(text_file: tuple[nn.Module, Path]) -> None:
    """Four sentences, 0.115 against 0.101: the softmax pair, which ModelOpt lacks, has noise too."""
    ids = text_input()
    with torch.no_grad():
        exact = text_encoder()(ids).text_embeds.numpy()
        found = text_file[0](ids).text_embeds.numpy()
    modelopts = np.array(recorded("text_fp8_output.json"))
    assert 0 < distance(found, exact) <= 1.25 * distance(modelopts, exact)


def test_stored_fp8_bits_come_back(tmp_path: Path) -> None:
    """A unified export's FP8 weights are in the file bit for bit, where no layers were merged."""
    fixed = modelopt_to_onnx(DATA / "text_fp8_unified", tmp_path / "a.onnx", options=FP32)
    raw = load_file(DATA / "text_fp8_unified" / "model.safetensors")
    stored = {
        array.tobytes()
        for value in ir.load(tmp_path / "a.onnx").graph.initializers.values()
        if value.dtype == ir.DataType.FLOAT8E4M3FN and value.const_value is not None
        for array in (value.const_value.numpy(), value.const_value.numpy().T)
    }
    for layer in ("out_proj", "fc1", "fc2", "text_projection"):
        name = next(name for name in raw if name.endswith(f"{layer}.weight"))
        bits = raw[name].view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
        assert bits.tobytes() in stored, name
    assert fixed.engine is not None
    assert fixed.notes[0].startswith("unified export, quant_algo FP8: 16 quantizers")
    merged = next(change for change in fixed.changes if change.tensor.endswith("qkv_weight"))
    assert merged.action == "rescaled"  # three weights become one product with one scale


def test_a_folder_builds_its_own_model() -> None:
    model = model_of_folder(DATA / "text_fp8_unified")
    assert type(model) is type(text_encoder())
    assert not model.training
    own = {name: tensor.shape for name, tensor in text_encoder().state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == own
    assert {name: tuple(x.shape) for name, x in example_inputs_of(model).items()} == {
        "input_ids": (2, 16)
    }


def test_the_float_model_of_a_checkpoint_can_be_exported_alone() -> None:
    """What a deployment starts from: the float graph, and the checkpoint by its names."""
    exported = export_modelopt(DATA / "text_fp8")
    fixed = apply_checkpoint(exported.model, exported.checkpoint, options=FP32)
    weights = exported.model.graph.initializers
    assert "text_projection.weight" in weights
    stored = {value.dtype for value in weights.values()}
    assert not stored & {ir.DataType.FLOAT8E4M3FN, ir.DataType.INT8}
    assert fixed.plan.format == "fp8"
    attention = next(r for r in fixed.plan.regions if r.pattern == "attention")
    assert attention.quantized


def test_a_quantizer_that_never_saw_data_leaves_its_layer_float(tmp_path: Path) -> None:
    """K77: quantizers without a range are named, what none carries to stays float, the rest goes on."""
    state = torch.load(DATA / "conv_int8.pth", weights_only=True)
    del state["model_state_dict"]["block.input_quantizer._amax"]
    state["model_state_dict"]["head.input_quantizer._amax"] = torch.tensor(0.0)
    torch.save(state, tmp_path / "a.pth")
    net = load_modelopt(conv_net(), tmp_path / "a.pth", conv_input(), options=FP32)
    notes = prepared_of(net).notes
    assert any("block.input_quantizer): it has no range: calibration never" in n for n in notes)
    assert any("head.input_quantizer): its range is 0, NaN or infinite" in n for n in notes)
    found = {r.pattern: r for r in prepared_of(net).plan.regions}
    assert found["head"].reason.startswith("float: view has no scale")
    assert found["conv block"].quantized  # its input is bounded by the sum that it goes into


def test_a_hostile_architecture_name_builds_nothing(tmp_path: Path) -> None:
    for name in ("AutoModel", "os.system", "PreTrainedModel.__init__", "pipeline", "logging"):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
        with pytest.raises(ModelError, match="which transformers"):
            modelopt_to_onnx(tmp_path)


def test_int8_of_a_conv_net_with_a_folded_batch_norm() -> None:
    """The norm goes into the stem's weight, and the checkpoint's range of each row with it."""
    options = QuantizeOptions(policy="full", precision="fp32", target="tensorrt:sm80")
    net = load_modelopt(conv_net(seed=5), DATA / "conv_int8.pth", conv_input(), options=options)
    prepared = prepared_of(net)
    stem = next(e for e in prepared.plan.tensors if e.tensor == "stem.weight")
    float_net = conv_net()
    norm = float_net.stem_norm
    factor = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).double().abs()
    amax = float_net.stem.weight.abs().amax((1, 2, 3)).double() * factor
    scale = prepared.scales[stem.group].scale
    assert stem.axis == 0
    assert np.allclose(scale, amax.detach().numpy() / 127, rtol=1e-5)
    with torch.no_grad():
        exact, found = float_net(conv_input()).numpy(), net(conv_input()).numpy()
    modelopts = np.array(recorded("conv_int8_output.json"))
    assert 0 < distance(found, exact) < 3 * distance(modelopts, exact)


def test_a_transposed_convolution_keeps_its_axis() -> None:
    """K47: ModelOpt 0.47 puts a scale on each input channel, the kernel wants one an output channel."""
    options = QuantizeOptions(policy="full", precision="fp32", target="tensorrt:sm80")
    fixed = modelopt_to_onnx(
        DATA / "conv_int8.pth", model=conv_net(), example_inputs=conv_input(), options=options
    )
    entry = next(e for e in fixed.plan.tensors if e.tensor == "up.weight")
    change = next(c for c in fixed.changes if c.tensor == "up.weight")
    assert entry.axis == 1
    assert fixed.scales[entry.group].scale.shape == (8,)
    assert change.action == "rescaled"
    assert "one scale a channel of axis 0" in change.reason


def test_what_the_recipe_excluded_stays_float_and_is_named(tmp_path: Path) -> None:
    state = torch.load(DATA / "conv_int8.pth", weights_only=True)
    quantize = state["modelopt_state"]["modelopt_state_dict"][0][1]
    quantize["config"]["quant_cfg"].append({"quantizer_name": "*block*", "enable": False})
    for _, saved in state["modelopt_state"]["modelopt_state_dict"]:
        for name, quantizer in saved["metadata"].get("quantizer_state", {}).items():
            if name.startswith("block."):
                quantizer["_disabled"] = True
    torch.save(state, tmp_path / "a.pth")
    fixed = modelopt_to_onnx(
        tmp_path / "a.pth", model=conv_net(), example_inputs=conv_input(), options=FP32
    )
    region = next(r for r in fixed.plan.regions if "conv2d_1" in r.name)
    assert region.reason == "float: block is excluded by '*block*' of the ModelOpt recipe"
    assert "quant_cfg '*block*' excluded 1 layer (block)." in fixed.notes


def test_a_checkpoint_of_another_model_is_refused() -> None:
    with pytest.raises(ModelError, match="has no text_model.embeddings"):
        load_modelopt(text_encoder(), DATA / "conv_int8.pth", text_input())
    net = conv_net()
    net.head = nn.Linear(8, 5)
    before = net.stem.weight.clone()
    with pytest.raises(
        ModelError, match=r"head.weight has shape \[4, 8\], the model wants \[5, 8\]"
    ):
        load_modelopt(net, DATA / "conv_int8.pth", conv_input())
    assert torch.equal(net.stem.weight, before)


def test_example_inputs_are_asked_for() -> None:
    with pytest.raises(OptionError, match="ConvNet needs example inputs"):
        load_modelopt(conv_net(), DATA / "conv_int8.pth")


def test_training_goes_on_and_copies_carry_the_scales() -> None:
    """K75: an EMA copy and a state dict hold plain tensors; training moves weights, not ranges."""
    import copy  # noqa: PLC0415

    options = QuantizeOptions(policy="full", precision="fp32")
    net = load_modelopt(conv_net(), DATA / "conv_int8.pth", conv_input(), options=options)
    average = copy.deepcopy(net)
    assert {type(value) for value in net.state_dict().values()} == {torch.Tensor}
    average.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    net.train()
    net(conv_input()).square().mean().backward()
    optimizer.step()
    assert torch.equal(net.fuseq_scales, average.fuseq_scales)
    assert not torch.equal(net.head.weight, average.head.weight)
