"""PyTorch path beside ONNX path: one row a model, engines compared kernel by kernel.

For each model: (a) fuseq.torch.prepare, calibrate, export; (b) torch.onnx.export, then fuseq.quantize
with the same data; (c) the module of (a) after training steps, exported again. The files are compiled
for the target, and their kernels compared by type, dtypes and shapes. Outputs are compared before types
are set (FP32), the prepared module's included.

    python benchmarks/torch_path.py --models resnet18 --targets tensorrt:sm80 tensorrt-rtx:sm89

Needs torch, torchvision, timm and transformers beside fuseq.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

import fuseq.torch
from fuseq.calibration.scales import Scale
from fuseq.options import QuantizeOptions
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.quantizing import Quantized, quantize
from fuseq.targets import parse_target
from fuseq.targets.base import Engine


def main() -> int:
    arguments = _arguments()
    rows = []
    for name in arguments.models:
        for target in arguments.targets:
            row = compare(name, target, arguments.format, arguments.policy, arguments.batches)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    equal = ("kernels_equal", "kernels_equal_after_training")
    return 0 if all(row[key] for row in rows for key in equal) else 1


def compare(name: str, target: str, format: str, policy: Any, batches: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, example = MODELS[name]()
    model.eval()
    _spread_statistics(model)
    data = [_like(example, seed) for seed in range(batches)]
    options = QuantizeOptions(format=format, target=target, policy=policy, batch=8)

    started = time.process_time()
    prepared = fuseq.torch.prepare(model, example, options=options)
    prepare_cpu_s = time.process_time() - started
    fuseq.torch.calibrate(prepared, data, scales="learned")
    exported = fuseq.torch.export(prepared, None)
    found = fuseq.torch.prepared_of(prepared)
    compiler = parse_target(target)
    ours = compiler.compile(exported.model, found.job.profile)

    plain = _plain_export(model, example)
    names = [value.name for value in plain.graph.inputs]
    feeds = [dict(zip(names, _arrays(item), strict=True)) for item in data]
    other = quantize(plain, calib=feeds, options=found.job.options)
    theirs = other.engine or compiler.compile(other.model, other.job.profile)

    file_a = _float_run(found.job.model, exported.plan, dict(exported.scales), feeds[0])
    file_b = _float_run(other.job.model, other.plan, dict(other.scales), feeds[0])
    with torch.no_grad():
        live, plain_output = (
            _first(module(**data[0]) if isinstance(data[0], dict) else module(*data[0])).numpy()
            for module in (prepared, model)
        )
    trained = compiler.compile(_trained(prepared, data).model, found.job.profile)
    return {
        "model": name, "target": target, "format": format, "policy": policy,
        "kernels": len(ours.kernels), "kernels_onnx": len(theirs.kernels),
        "kernels_equal": kernel_list(ours) == kernel_list(theirs),
        "kernels_equal_after_training": kernel_list(trained) == kernel_list(ours),
        "alone": len(ours.alone), "predicted_us": round(ours.predicted_us, 1),
        "predicted_us_onnx": round(theirs.predicted_us, 1),
        "quantized_regions": sum(region.quantized for region in exported.plan.regions),
        "unmapped": len(found.points.missing), "points": len(found.points.calls),
        "files_differ_by": _relative(file_a, file_b), "module_differs_by": _relative(live, file_a),
        "quantization_changes_by": _relative(file_a, plain_output),
        "prepare_cpu_s": round(prepare_cpu_s, 1), "torch": torch.__version__,
    }  # fmt: skip


def _trained(prepared: nn.Module, data: list[Any], steps: int = 3) -> Quantized:
    """Export after training steps that move weights, scales and BatchNorm statistics."""
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1e-3)
    prepared.train()
    for step in range(steps):
        optimizer.zero_grad()
        batch = data[step % len(data)]
        output = prepared(**batch) if isinstance(batch, dict) else prepared(*batch)
        _first(output).square().mean().backward()
        nn.utils.clip_grad_norm_(prepared.parameters(), 1.0)  # random weights: gradients explode
        optimizer.step()
    return fuseq.torch.export(prepared.eval(), None)


def kernel_list(engine: Engine) -> list[tuple[Any, ...]]:
    """Type, compute type, and shapes and dtypes of inputs and outputs, in order."""
    return [
        (
            kernel.type.value, kernel.compute_dtype,
            tuple((each.shape, each.dtype) for each in kernel.inputs),
            tuple((each.shape, each.dtype) for each in kernel.outputs),
        )
        for kernel in engine.kernels
    ]  # fmt: skip


def _plain_export(model: nn.Module, example: Any) -> ir.Model:
    args, kwargs = ((), example) if isinstance(example, dict) else (example, {})
    axis = {0: torch.export.Dim.DYNAMIC}
    shapes = dict.fromkeys(kwargs, axis) if kwargs else tuple(axis for _ in args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, args, kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    assert program is not None
    return program.model


def _float_run(
    model: ir.Model, plan: Any, scales: dict[str, Scale], feeds: dict[str, np.ndarray]
) -> np.ndarray:
    import onnxruntime as ort  # noqa: PLC0415

    quantized = model.clone()
    insert_qdq(quantized, plan, scales)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = ir.to_proto(quantized).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))


def _first(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    found: torch.Tensor = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return found


def _arrays(item: Any) -> list[np.ndarray]:
    tensors = item.values() if isinstance(item, dict) else item
    return [tensor.numpy() for tensor in tensors]


def _like(example: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator)
        if tensor.max() <= 1:
            return tensor
        return torch.randint(1, int(tensor.max()) + 1, tensor.shape, generator=generator)

    if isinstance(example, dict):
        return {key: fresh(value) for key, value in example.items()}
    return tuple(fresh(value) for value in example)


def _spread_statistics(model: nn.Module) -> None:
    """BatchNorm statistics other than the initial ones, so that folding shows."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_var is not None:
            part.running_mean.uniform_(-0.2, 0.2)
            part.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)


def _vision(name: str, size: int = 224) -> tuple[nn.Module, Any]:
    import torchvision  # noqa: PLC0415

    return torchvision.models.get_model(name, weights=None), (torch.randn(2, 3, size, size),)


def _timm(name: str) -> tuple[nn.Module, Any]:
    import timm  # noqa: PLC0415

    return timm.create_model(name, pretrained=False), (torch.randn(2, 3, 224, 224),)


def _clip(part: str) -> tuple[nn.Module, Any]:
    from transformers import (  # noqa: PLC0415
        CLIPTextConfig,
        CLIPTextModelWithProjection,
        CLIPVisionConfig,
        CLIPVisionModelWithProjection,
    )

    layers = {"num_hidden_layers": 4}
    if part == "image":
        config = CLIPVisionConfig(
            hidden_size=1024, intermediate_size=4096, num_attention_heads=16, patch_size=14,
            projection_dim=768, **layers,
        )  # fmt: skip
        return CLIPVisionModelWithProjection(config), {"pixel_values": torch.randn(2, 3, 224, 224)}
    config = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, projection_dim=768,
        **layers,
    )  # fmt: skip
    tokens = torch.randint(1, 49406, (2, 77))
    return CLIPTextModelWithProjection(config), {"input_ids": tokens}


class UNet(nn.Module):
    """Two scales with skip connections by concatenation and a nearest Upsample."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.down = _pair(3, width), _pair(width, 2 * width)
        self.middle, self.up = _pair(2 * width, 2 * width), nn.Upsample(scale_factor=2)
        self.joined, self.last = _pair(4 * width, width), _pair(3 * width - width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.down(nn.functional.max_pool2d(a, 2))
        c = self.middle(nn.functional.max_pool2d(b, 2))
        d = self.joined(torch.cat([self.up(c), b], 1))
        return self.out(self.last(torch.cat([self.up(d), a], 1)))


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


def _unet() -> tuple[nn.Module, Any]:
    return UNet(), (torch.randn(2, 3, 128, 128),)


def _lite() -> tuple[nn.Module, Any]:
    return _timm("tf_efficientnet_lite0")


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "resnet18": lambda: _vision("resnet18"),
    "resnet50": lambda: _vision("resnet50"),
    "mobilenet_v2": lambda: _vision("mobilenet_v2"),
    "mobilenet_v3_large": lambda: _vision("mobilenet_v3_large"),
    "efficientnet_b0": lambda: _timm("efficientnet_b0"),
    "efficientnet_lite0": _lite,
    "convnext_tiny": lambda: _timm("convnext_tiny"),
    "vit_s16": lambda: _timm("vit_small_patch16_224"),
    "swin_t": lambda: _timm("swin_tiny_patch4_window7_224"),
    "unet": _unet,
    "clip_text": lambda: _clip("text"),
    "clip_image": lambda: _clip("image"),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--targets", nargs="+", default=["tensorrt:sm80", "tensorrt-rtx:sm89"])
    parser.add_argument("--format", default="int8", choices=["int8", "fp8"])
    parser.add_argument("--policy", default="pays", choices=["pays", "full"])
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--output", help="JSON file to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
