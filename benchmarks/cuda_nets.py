"""Networks of the torch:cuda benchmark: random weights, inputs of any batch, and their embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

Inputs = dict[str, torch.Tensor]
PIXELS = (3, 224, 224)


@dataclasses.dataclass(frozen=True)
class Net:
    """``make`` gives the FP32 module in eval mode, ``inputs`` a batch from a seed."""

    make: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], Inputs]


def _images(batch: int, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(batch, *PIXELS, generator=generator)}


def _clip_tokens(batch: int, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 49400, (batch, 77), generator=generator)
    lengths = torch.randint(8, 77, (batch,), generator=generator)
    tokens[torch.arange(77)[None, :] >= lengths[:, None]] = 49407
    return {"input_ids": tokens}


def _padded_tokens(batch: int, seed: int) -> Inputs:
    """128 tokens, of which between a quarter and all are a sentence and the rest padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1000, 30000, (batch, 128), generator=generator)
    lengths = torch.randint(32, 129, (batch,), generator=generator)
    mask = (torch.arange(128)[None, :] < lengths[:, None]).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def _clip_image() -> torch.nn.Module:
    config = hf.CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
        num_attention_heads=16, image_size=224, patch_size=14, projection_dim=768,
    )  # fmt: skip
    return hf.CLIPVisionModelWithProjection(config)


def _clip_text() -> torch.nn.Module:
    config = hf.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
        projection_dim=768, eos_token_id=49407,
    )  # fmt: skip
    return hf.CLIPTextModelWithProjection(config)


def _minilm() -> torch.nn.Module:
    config = hf.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return hf.BertModel(config, add_pooling_layer=False)


NETS = {
    "image": Net(_clip_image, _images),
    "text": Net(_clip_text, _clip_tokens),
    "vit_b16": Net(lambda: hf.ViTModel(hf.ViTConfig(), add_pooling_layer=False), _images),
    "bert_base": Net(lambda: hf.BertModel(hf.BertConfig(), add_pooling_layer=False), _padded_tokens),
    "minilm": Net(_minilm, _padded_tokens),
    "efficientnet_b0": Net(
        lambda: hf.EfficientNetModel(
            hf.EfficientNetConfig(
                width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280
            )
        ),
        _images,
    ),
}  # fmt: skip


def float_module(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return NETS[name].make().eval()


def embedding(result: Any) -> torch.Tensor:
    """The projected embedding where there is one, else the pooled or first hidden state, [batch, n]."""
    for key in ("image_embeds", "text_embeds", "pooler_output", "last_hidden_state"):
        found = getattr(result, key, None)
        if found is not None:
            return found.flatten(1).float()
    return result[0].flatten(1).float()
