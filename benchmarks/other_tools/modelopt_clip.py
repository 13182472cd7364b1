"""Encoders of CLIP ViT-L/14 widths quantized to FP8 by the real ModelOpt 0.47, on a CPU.

    python modelopt_clip.py OUT --layers 2

Writes for each encoder OUT/<encoder> (save_pretrained with ModelOpt's checkpointing), for the text
encoder OUT/text_unified (its unified export), and OUT/<encoder>.onnx (its own ONNX export, FP16).
Weights are random, of a seed; linear layers, Q, K and V are quantized, as in the published recipe for
CLIP; the stock FP8_DEFAULT_CFG would leave the whole image encoder out ("*vision_model*").
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

FP8 = {"num_bits": (4, 3), "axis": None}
RECIPE: dict[str, Any] = {
    "quant_cfg": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": FP8},
        {"quantizer_name": "*input_quantizer", "cfg": FP8},
        {"quantizer_name": "*[qkv]_bmm_quantizer", "cfg": FP8},
        {"quantizer_name": "*embedding*", "enable": False},
        {"quantizer_name": "*norm*", "enable": False},
        {"quantizer_name": "*layrnorm*", "enable": False},
    ],
    "algorithm": "max",
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("output", type=Path)
    arguments.add_argument("--layers", type=int, default=2)
    options = arguments.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in ("image", "text"):
        write(name, options.layers, options.output)


def write(name: str, layers: int, output: Path) -> None:
    import modelopt.torch.opt as mto
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch._deploy.utils import OnnxBytes, get_onnx_bytes_and_metadata
    from modelopt.torch.export import export_hf_checkpoint

    model, inputs = encoder(name, layers)
    with torch.no_grad():
        model = mtq.quantize(model, RECIPE, lambda module: module(inputs))
    mto.enable_huggingface_checkpointing()
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(output / name)
    try:
        content, _ = get_onnx_bytes_and_metadata(
            model, (inputs,), model_name=name, weights_dtype="fp16"
        )
        OnnxBytes.from_bytes(content).write_to_disk(str(output), clean_dir=False)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        print(f"{name}: ModelOpt's own ONNX export failed: {type(error).__name__}: {error}")
    if name == "text":
        export_hf_checkpoint(model, dtype=torch.float16, export_dir=output / "text_unified")


def encoder(name: str, layers: int) -> tuple[Any, Any]:
    """The model, and 8 samples of its input."""
    import torch
    import transformers

    torch.manual_seed(0)
    common = {"num_hidden_layers": layers, "projection_dim": 768, "attn_implementation": "sdpa"}
    if name == "image":
        config = transformers.CLIPVisionConfig(
            hidden_size=1024,
            intermediate_size=4096,
            num_attention_heads=16,
            patch_size=14,
            **common,
        )
        pixels = torch.randn(8, 3, 224, 224)
        return transformers.CLIPVisionModelWithProjection(config).eval(), pixels
    text_config = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, vocab_size=1000,
        max_position_embeddings=77, eos_token_id=999, bos_token_id=998, pad_token_id=1, **common,
    )  # fmt: skip
    ids = torch.randint(2, 900, (8, 77))
    ids[:, -1] = 999
    return transformers.CLIPTextModelWithProjection(text_config).eval(), ids


if __name__ == "__main__":
    main()
