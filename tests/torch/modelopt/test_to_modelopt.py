"""fuseq's placement as ModelOpt's globs; what the real ModelOpt made of them is recorded."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from torch import nn

from fuseq.modelopt.cfg_writer import WrittenRecipe
from fuseq.modelopt.quant_cfg import apply_recipe, read_recipe
from fuseq.options import QuantizeOptions
from fuseq.torch import prepare
from fuseq.torch.to_modelopt import to_modelopt_cfg
from tests.modelopt.artefacts import recorded
from tests.modelopt.nets import conv_input, conv_net, text_config, text_encoder, text_input


@functools.cache
def written(name: str) -> WrittenRecipe:
    build: dict[str, tuple[nn.Module, Any, QuantizeOptions]] = {
        "text": (text_encoder(), text_input(), QuantizeOptions(policy="full", format="fp8")),
        "conv": (conv_net(), conv_input(), QuantizeOptions(policy="full", target="tensorrt:sm80")),
    }
    model, inputs, options = build[name]
    return to_modelopt_cfg(prepare(model, inputs, options=options))


def listed(quant_cfg: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**entry, "cfg": {**entry["cfg"], "num_bits": _plain(entry["cfg"]["num_bits"])}}
        if "cfg" in entry
        else entry
        for entry in quant_cfg
    ]


@pytest.mark.parametrize("name", ["text", "conv"])
def test_the_real_modelopt_enables_exactly_the_planned_quantizers(name: str) -> None:
    """The committed globs are what fuseq writes today, and the record is what ModelOpt did with them."""
    found = written(name)
    assert listed(found.config["quant_cfg"]) == recorded(f"globs_{name}.json")
    enabled = recorded(f"globs_{name}_enabled.json")["enabled"]
    planned = {
        quantizer: [_plain(bits), axis] for quantizer, (bits, axis) in found.quantizers.items()
    }
    assert planned == enabled


def test_pairs_without_a_quantizer_are_named() -> None:
    notes = written("conv").notes
    assert len(notes) == 1
    assert notes[0].startswith("relu for node_add")
    assert "no quantizer of ModelOpt stands there" in notes[0]
    assert "gives 3 weights one scale" in written("text").notes[0]


@pytest.mark.slow
def test_layers_that_differ_in_a_number_become_one_glob() -> None:
    from transformers import CLIPTextModelWithProjection  # noqa: PLC0415

    config = text_config()
    config.num_hidden_layers = 3
    model = CLIPTextModelWithProjection(config).eval()
    options = QuantizeOptions(policy="full", format="fp8", exclude=("*layers.1.mlp.fc2*",))
    found = to_modelopt_cfg(prepare(model, text_input(), options=options))
    globs = [entry["quantizer_name"] for entry in found.config["quant_cfg"]]
    assert "text_model.encoder.layers.*.mlp.fc1.weight_quantizer" in globs
    assert [glob for glob in globs if "fc2.weight" in glob] == [
        "text_model.encoder.layers.0.mlp.fc2.weight_quantizer",
        "text_model.encoder.layers.2.mlp.fc2.weight_quantizer",
    ]
    everyone = {
        name.replace("layers.0", f"layers.{layer}"): ""
        for name in recorded("globs_text_enabled.json")["enabled"]
        for layer in range(3)
    }
    applied = apply_recipe(read_recipe(found.config), everyone)
    on = {name for name, setting in applied.settings.items() if setting.enabled}
    assert on == set(found.quantizers)
    assert len(on) == len(everyone) - 2


def _plain(bits: Any) -> Any:
    return list(bits) if isinstance(bits, tuple) else bits
