"""Make tests/data/modelopt with the real ModelOpt, and record what it does with recipes.

Run it in ModelOpt's own environment (benchmarks/README.md), from the repository's root:

    python -m benchmarks.modelopt_artefacts            # checkpoints, an ONNX file, recorded recipes
    python -m benchmarks.modelopt_artefacts --globs    # what it makes of fuseq's own globs

Needs ModelOpt 0.47, transformers and onnx; runs on a CPU in about a minute. Files stay under 200 kB.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modelopt.torch.opt as mto
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.nn import QuantModuleRegistry, TensorQuantizer
from tests.modelopt.nets import conv_input, conv_net, text_encoder, text_input
from torch import nn

import modelopt

DATA = Path("tests/data/modelopt")
OFF: dict[str, Any] = {"enable": False}
INT8_WEIGHT = {"num_bits": 8, "axis": 0}
INT8 = {"num_bits": 8, "axis": None}
FP8 = {"num_bits": (4, 3), "axis": None}
RECIPES: dict[str, Any] = {
    "nothing": [],
    "stock int8": mtq.INT8_DEFAULT_CFG["quant_cfg"],
    "stock fp8": mtq.FP8_DEFAULT_CFG["quant_cfg"],
    "dict, default first": {
        "default": OFF, "*weight_quantizer": INT8_WEIGHT, "*input_quantizer": INT8, "block*": OFF,
    },
    "dict, no default": {"*weight_quantizer": INT8_WEIGHT, "*input_quantizer": INT8, "head.*": OFF},
    "dict, class": {"default": OFF, "nn.Conv2d": {"*weight_quantizer": INT8_WEIGHT, "*input*": INT8}},
    "list, later wins": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": INT8_WEIGHT},
        {"quantizer_name": "*input_quantizer", "cfg": FP8},
        {"quantizer_name": "*block*", "enable": False},
        {"quantizer_name": "block.weight_quantizer", "enable": True},
    ],
    "list, toggles keep attributes": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": FP8, "enable": False},
        {"quantizer_name": "s*", "enable": True},
    ],
    "list, class": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*_quantizer", "parent_class": "nn.Linear", "cfg": FP8},
        {"quantizer_name": "*weight_quantizer", "parent_class": "nn.ConvTranspose2d", "cfg": INT8_WEIGHT},
    ],
    "list, keyed entries": [{"default": OFF}, {"*weight_quantizer": INT8_WEIGHT}, {"[bu]*": OFF}],
    "list, replaced attributes": [
        {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": (4, 3), "axis": 0}},
        {"quantizer_name": "head.weight_quantizer", "cfg": {"num_bits": 8}},
    ],
}  # fmt: skip
TEXT_FP8: dict[str, Any] = {
    "quant_cfg": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": FP8},
        {"quantizer_name": "*input_quantizer", "cfg": FP8},
        {"quantizer_name": "*[qkv]_bmm_quantizer", "cfg": FP8},
        {"quantizer_name": "*embedding*", "enable": False},
        {"quantizer_name": "*layer_norm*", "enable": False},
    ],
    "algorithm": "max",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--globs", action="store_true", help="apply the globs that fuseq wrote")
    if parser.parse_args().globs:
        apply_own_globs()
        return
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    write_conv_net()
    write_text_encoder()
    write_recipes()


def write_conv_net() -> None:
    """``conv_int8.pth`` (mto.save), ``conv_int8.onnx``, and their output on fixed images."""
    net, images = conv_net(), conv_input()
    config = {"quant_cfg": RECIPES["stock int8"], "algorithm": "max"}
    net = quantized(net, config, lambda model: model(images))
    mto.save(net, DATA / "conv_int8.pth")
    with torch.no_grad():
        record("conv_int8", net(images))
    torch.onnx.export(
        net, (images[:1],), str(DATA / "conv_int8.onnx"), opset_version=17, dynamo=False
    )


def write_text_encoder() -> None:
    """``text_fp8`` (save_pretrained with modelopt_state) and ``text_fp8_unified``."""
    net, ids = text_encoder(), text_input()
    net = quantized(net, TEXT_FP8, lambda model: model(ids))
    with torch.no_grad():
        record("text_fp8", net(ids).text_embeds)
    mto.enable_huggingface_checkpointing()
    net.save_pretrained(DATA / "text_fp8")
    net.config.architectures = [type(net).__name__]
    export_hf_checkpoint(net, dtype=torch.float32, export_dir=DATA / "text_fp8_unified")


def write_recipes() -> None:
    """What each recipe makes of each quantizer of the conv net: on, bits, axis."""
    known = classes(conv_net())
    found = {name: settings(conv_net(), recipe) for name, recipe in RECIPES.items()}
    data = {"modelopt": modelopt.__version__, "classes": known, "recipes": RECIPES, "found": found}
    (DATA / "recipes.json").write_text(json.dumps(data, indent=1, default=str) + "\n")


def apply_own_globs() -> None:
    """Apply ``globs_<net>.json`` of fuseq and record which quantizers are on."""
    for name, build in (("conv", conv_net), ("text", text_encoder)):
        quant_cfg = json.loads((DATA / f"globs_{name}.json").read_text())
        for entry in quant_cfg:
            if isinstance((entry.get("cfg") or {}).get("num_bits"), list):
                entry["cfg"]["num_bits"] = tuple(entry["cfg"]["num_bits"])
        found = settings(build(), quant_cfg)
        on = {quantizer: how[1:] for quantizer, how in found.items() if how[0]}
        text = json.dumps({"modelopt": modelopt.__version__, "enabled": on}, indent=1)
        (DATA / f"globs_{name}_enabled.json").write_text(text + "\n")


def quantized(net: nn.Module, config: dict[str, Any], forward: Callable[..., Any]) -> nn.Module:
    return mtq.quantize(net, copy.deepcopy(config), forward)


def settings(net: nn.Module, quant_cfg: Any) -> dict[str, tuple[bool, Any, Any]]:
    """Insert quantizers and apply the recipe without calibrating."""
    mtq.replace_quant_module(net)
    with contextlib.suppress(AttributeError):
        mtq.set_quantizer_by_cfg(net, copy.deepcopy(quant_cfg))
    return {
        name: (part.is_enabled, part.num_bits, part.axis)
        for name, part in net.named_modules()
        if isinstance(part, TensorQuantizer)
    }


def classes(net: nn.Module) -> dict[str, str]:
    """The registry's name of the class that owns each quantizer."""
    plain = {name: type(part) for name, part in net.named_modules()}
    mtq.replace_quant_module(net)
    owners = {
        name: plain[name.rpartition(".")[0]]
        for name, part in net.named_modules()
        if isinstance(part, TensorQuantizer)
    }
    return {name: QuantModuleRegistry.get_key(owner) for name, owner in owners.items()}


def record(name: str, output: torch.Tensor) -> None:
    """The fake-quantized output, which fuseq's result is compared with."""
    rows = [[float(value) for value in row] for row in output]
    (DATA / f"{name}_output.json").write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
