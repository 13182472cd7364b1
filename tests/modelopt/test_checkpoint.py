"""The three kinds of checkpoints, as the real ModelOpt wrote them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from fuseq.errors import ModelError
from fuseq.modelopt.checkpoint import is_checkpoint, read_checkpoint
from fuseq.modelopt.names import renamed
from tests.modelopt.artefacts import DATA
from tests.modelopt.nets import conv_net, text_encoder


def test_a_file_of_mto_save() -> None:
    found = read_checkpoint(DATA / "conv_int8.pth")
    weights = conv_net().state_dict()
    assert found.kind == "mto.save file"
    assert set(found.weights) == set(weights)
    for name, tensor in weights.items():
        assert np.array_equal(found.weights[name], tensor.numpy()), name
    stem = found.quantizers["stem.weight_quantizer"]
    expected = weights["stem.weight"].abs().amax((1, 2, 3)).double().numpy()
    assert (stem.enabled, stem.attributes.format, stem.attributes.axis) == (True, "int8", 0)
    assert np.array_equal(np.asarray(stem.amax), expected)
    assert not found.quantizers["stem.output_quantizer"].enabled
    assert str(found.recipe.entries[0]) == "'*'"


def test_a_hugging_face_folder() -> None:
    found = read_checkpoint(DATA / "text_fp8")
    names = set(text_encoder().state_dict())
    matched = renamed(found, names)
    assert found.kind == "Hugging Face folder"
    assert set(matched.weights) == names
    on = {name for name, each in matched.quantizers.items() if each.enabled}
    attention = "text_model.encoder.layers.0.self_attn"
    linears = (*(f"{attention}.{side}_proj" for side in ("q", "k", "v", "out")),
               "text_model.encoder.layers.0.mlp.fc1", "text_model.encoder.layers.0.mlp.fc2",
               "text_projection")  # fmt: skip
    expected = {f"{linear}.{kind}_quantizer" for linear in linears for kind in ("input", "weight")}
    expected |= {f"{attention}.{side}_bmm_quantizer" for side in "qkv"}
    assert {name for name in on if "norm" not in name} == expected


def test_a_unified_export_gives_back_the_stored_bits() -> None:
    found = read_checkpoint(DATA / "text_fp8_unified")
    weight = "text_projection.weight"
    raw = _raw_fp8(DATA / "text_fp8_unified" / "model.safetensors")
    scale = raw["text_projection.weight_scale"]
    again = (found.weights[weight] / scale).astype(ml_dtypes.float8_e4m3fn)
    assert found.kind == "unified export"
    assert found.weights[weight].dtype == np.float32
    assert again.tobytes() == raw[weight].tobytes()
    stored = found.quantizers["text_projection.weight_quantizer"]
    assert np.float32(float(np.asarray(stored.amax)) / 448) == scale
    assert len([name for name in found.quantizers if name.endswith("weight_quantizer")]) == 7


def test_the_export_and_the_folder_agree() -> None:
    names = set(text_encoder().state_dict())
    folder = renamed(read_checkpoint(DATA / "text_fp8"), names)
    unified = renamed(read_checkpoint(DATA / "text_fp8_unified"), names)
    assert set(unified.weights) == set(folder.weights)
    for name, stored in unified.quantizers.items():
        own = folder.quantizers[name]
        assert np.allclose(np.asarray(stored.amax), np.asarray(own.amax), rtol=1e-6), name
    assert [str(entry) for entry in unified.recipe.entries] == ["'text_model.embeddings*'"]


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    torch.save(conv_net().state_dict(), tmp_path / "plain.pth")
    with pytest.raises(ModelError, match=r"not a file of mto.save: it holds \['block.bias'"):
        read_checkpoint(tmp_path / "plain.pth")
    with pytest.raises(ModelError, match="neither modelopt_state.pth nor hf_quant_config.json"):
        read_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        read_checkpoint(tmp_path / "nothing.pth")


def test_checkpoints_are_told_from_other_paths(tmp_path: Path) -> None:
    torch.save(conv_net().state_dict(), tmp_path / "plain.onnx")
    (tmp_path / "text.pth").write_text("no zip")
    assert is_checkpoint(DATA / "conv_int8.pth")
    assert is_checkpoint(DATA / "text_fp8")
    assert is_checkpoint(DATA / "text_fp8_unified")
    assert not any(map(is_checkpoint, (tmp_path, tmp_path / "plain.onnx", tmp_path / "text.pth")))


def test_modes_that_change_the_model_are_refused(tmp_path: Path) -> None:
    state = {"modelopt_state_dict": [("fastnas", {"config": {}, "metadata": {}})]}
    torch.save({"modelopt_state": state, "model_state_dict": {}}, tmp_path / "a.pth")
    with pytest.raises(ModelError, match="mode 'fastnas', which changes the model"):
        read_checkpoint(tmp_path / "a.pth")


def test_smoothing_scales_and_sequences_are_problems(tmp_path: Path) -> None:
    state = torch.load(DATA / "conv_int8.pth", weights_only=True)
    state["model_state_dict"]["head.input_quantizer._pre_quant_scale"] = torch.full((8,), 0.5)
    saved = state["modelopt_state"]["modelopt_state_dict"][0][1]["metadata"]["quantizer_state"]
    saved["block.weight_quantizer"] = {"is_sequential_quantizer": True, "num_quantizers": 2}
    saved["up.weight_quantizer"]["_num_bits"] = 4
    for _, later in state["modelopt_state"]["modelopt_state_dict"][1:]:
        later["metadata"].pop("quantizer_state", None)
    torch.save(state, tmp_path / "a.pth")
    found = read_checkpoint(tmp_path / "a.pth").quantizers
    assert "smoothing scale" in found["head.input_quantizer"].problem
    assert "in sequence" in found["block.weight_quantizer"].problem
    assert "num_bits 4" in found["up.weight_quantizer"].problem
    assert found["stem.weight_quantizer"].problem == ""


def test_packed_weights_are_refused(tmp_path: Path) -> None:
    state = torch.load(DATA / "conv_int8.pth", weights_only=True)
    state["model_state_dict"]["head.weight"] = torch.zeros(4, 4, dtype=torch.uint8)
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(ModelError, match="head.weight is stored as uint8 by mtq.compress"):
        read_checkpoint(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"text_projection.weight_scale": None}, "text_projection.weight_scale is missing"),
        ({"text_projection.weight_scale": torch.tensor(0.0)}, "is not finite and above 0"),
        ({"text_projection.weight_scale": torch.ones(7)}, "has 32 rows and 7 scales"),
        ({"text_projection.weight": torch.zeros(32, 16, dtype=torch.uint8)}, "no FP8 or INT8"),
        ({"text_projection.pre_quant_scale": torch.ones(32)}, "no FP8 or INT8"),
    ],
)
def test_other_unified_formats_are_refused(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(DATA / "text_fp8_unified", folder)
    from safetensors.torch import load_file as load_torch  # noqa: PLC0415

    tensors = load_torch(folder / "model.safetensors")
    tensors.update({name: value for name, value in change.items() if value is not None})
    kept = {name: value for name, value in tensors.items() if change.get(name, "") is not None}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(ModelError, match=what):
        read_checkpoint(folder)


def test_shards_and_damage_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    shutil.copytree(DATA / "text_fp8", folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map = {}
    for number, half in enumerate(halves):
        file = f"model-{number}.safetensors"
        save_file({name: torch.from_numpy(tensors[name]) for name in half}, folder / file)
        weight_map.update(dict.fromkeys(half, file))
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    whole = read_checkpoint(DATA / "text_fp8")
    found = read_checkpoint(folder)
    assert set(found.weights) == set(whole.weights)
    assert all(np.array_equal(found.weights[name], whole.weights[name]) for name in whole.weights)
    shutil.copy(folder / "model-0.safetensors", tmp_path / "outside.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(ModelError, match="which is not in the folder"):
        read_checkpoint(folder)
    index.unlink()
    with pytest.raises(ModelError, match="no model.safetensors"):
        read_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(b"\x10" * 9)
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        read_checkpoint(folder)


def _raw_fp8(file: Path) -> dict[str, np.ndarray]:
    from safetensors.torch import load_file as load_torch  # noqa: PLC0415

    raw = {}
    for name, tensor in load_torch(file).items():
        if tensor.dtype == torch.float8_e4m3fn:
            raw[name] = tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
        else:
            raw[name] = tensor.numpy()
    return raw
