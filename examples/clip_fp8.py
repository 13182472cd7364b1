"""Hugging Face CLIP in FP8: both encoders quantized, exported with a dynamic batch, compiled.

    python examples/clip_fp8.py --out clip            # ViT-L/14 with random weights, as no hub is needed
    python examples/clip_fp8.py --weights ./clip-vit-large-patch14

Prints file sizes and, for an engine of batch 128 on compute capability 8.9, kernels and predicted times
(predictions of fuseq's cost model, never measurements). Needs `pip install 'fuseq[torch,rtx]' transformers`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import CLIPConfig, CLIPModel

import fuseq
import fuseq.torch
from fuseq.planning import typed_copy
from fuseq.targets.base import Engine, KernelType

MIB = 2**20


class TextEncoder(nn.Module):
    """Token ids ``[batch, length]`` to embeddings ``[batch, projection]``."""

    def __init__(self, clip: CLIPModel) -> None:
        super().__init__()
        self.text_model, self.text_projection = clip.text_model, clip.text_projection

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.text_projection(self.text_model(input_ids=input_ids).pooler_output)


class ImageEncoder(nn.Module):
    """Pixels ``[batch, 3, size, size]`` to embeddings ``[batch, projection]``."""

    def __init__(self, clip: CLIPModel) -> None:
        super().__init__()
        self.vision_model, self.visual_projection = clip.vision_model, clip.visual_projection

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.visual_projection(self.vision_model(pixel_values=pixel_values).pooler_output)


def main() -> None:
    """Quantize both encoders and print the tables."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    clip = _clip(arguments)
    options = fuseq.QuantizeOptions(
        format="fp8", target=arguments.target, policy=arguments.policy, batch=arguments.batch
    )
    generator = torch.Generator().manual_seed(0)
    rows = []
    for name, encoder, example, data in (
        ("text", TextEncoder(clip), *_tokens(clip, generator)),
        ("image", ImageEncoder(clip), *_pixels(clip, generator)),
    ):
        rows.append(quantize_encoder(name, encoder.eval(), example, data, options, arguments.out))
    _print(rows, options)


def quantize_encoder(
    name: str,
    encoder: nn.Module,
    example: torch.Tensor,
    data: list[torch.Tensor],
    options: fuseq.QuantizeOptions,
    folder: Path,
) -> dict[str, Any]:
    """Prepare, calibrate, export, and compile the float and the quantized file.

    Returns:
        Name, sizes of both files in bytes, both engines, closeness to float on the calibration data.
    """
    with torch.no_grad():
        wanted = encoder(data[0])
    net = fuseq.torch.prepare(encoder, example, options=options, inplace=True)
    fuseq.torch.calibrate(net, data)
    exported = fuseq.torch.export(net, folder / f"clip_{name}_fp8.onnx")
    with torch.no_grad():
        cosine = nn.functional.cosine_similarity(net(data[0]), wanted).mean().item()
    half, _ = typed_copy(exported.job, exported.job.model)
    fuseq.save(half, folder / f"clip_{name}_fp16.onnx")
    target = fuseq.parse_target(options.target)
    return {
        "name": name,
        "bytes": (_size(folder, f"clip_{name}_fp16"), _size(folder, f"clip_{name}_fp8")),
        "engines": tuple(
            target.compile(model, exported.job.profile) for model in (half, exported.model)
        ),
        "cosine": cosine,
    }


def fused_attentions(engine: Engine) -> str:
    """``fused FP8 kernels of all attention kernels``."""
    attentions = [kernel for kernel in engine.kernels if kernel.type is KernelType.ATTENTION]
    return f"{sum(kernel.compute_dtype == 'fp8' for kernel in attentions)} of {len(attentions)}"


def _print(rows: list[Mapping[str, Any]], options: fuseq.QuantizeOptions) -> None:
    console = Console()
    sizes = Table("encoder", "FP16 MiB", "FP8 MiB", "cosine to float", title="ONNX files")
    engines = Table(
        "encoder", "precision", "kernels", "only Q/DQ or cast", "FP8 attention", "predicted ms",
        title=f"engines for {options.target}, batch {options.batch}",
    )  # fmt: skip
    for row in rows:
        half, eight = row["bytes"]
        sizes.add_row(
            row["name"], f"{half / MIB:.1f}", f"{eight / MIB:.1f}", f"{row['cosine']:.4f}"
        )
        for precision, engine in zip(("FP16", "FP8"), row["engines"], strict=True):
            engines.add_row(
                row["name"], precision, str(len(engine.kernels)), str(len(engine.alone)),
                fused_attentions(engine), f"{engine.predicted_us / 1000:.2f}",
            )  # fmt: skip
    console.print(sizes)
    console.print(engines)


def _clip(arguments: argparse.Namespace) -> CLIPModel:
    if arguments.weights:
        return CLIPModel.from_pretrained(arguments.weights, local_files_only=True)
    torch.manual_seed(0)
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    image = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "patch_size": 14
    }  # fmt: skip
    config = CLIPConfig(
        text_config={**text, "num_hidden_layers": arguments.text_layers, "projection_dim": 768},
        vision_config={
            **image, "num_hidden_layers": arguments.image_layers, "projection_dim": 768
        },
        projection_dim=768,
    )  # fmt: skip
    return CLIPModel(config)


def _tokens(clip: CLIPModel, generator: torch.Generator) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Random sentences: words, then the end token, which is the largest id, as padding too."""
    config = clip.config.text_config
    end, length = config.vocab_size - 1, config.max_position_embeddings
    data = []
    for _ in range(2):
        ids = torch.randint(1, end, (4, length), generator=generator)
        words = torch.randint(4, length - 1, (4, 1), generator=generator)
        data.append(torch.where(torch.arange(length) < words, ids, end))
    return data[0], data


def _pixels(clip: CLIPModel, generator: torch.Generator) -> tuple[torch.Tensor, list[torch.Tensor]]:
    size = clip.config.vision_config.image_size
    data = [torch.randn(4, 3, size, size, generator=generator) for _ in range(2)]
    return data[0], data


def _size(folder: Path, stem: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(f"{stem}.onnx*"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="folder of a CLIP checkpoint; random weights without it")
    parser.add_argument("--out", type=Path, default=Path("clip"), help="folder for the ONNX files")
    parser.add_argument("--target", default="tensorrt-rtx:sm89")
    parser.add_argument("--policy", default="pays", choices=["pays", "full"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--text-layers", type=int, default=12)
    parser.add_argument("--image-layers", type=int, default=24)
    return parser.parse_args()


if __name__ == "__main__":
    main()
