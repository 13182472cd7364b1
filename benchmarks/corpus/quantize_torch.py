"""Quantize one of the corpus' networks in PyTorch and export it to ONNX, each tool in its own way.

    python quantize_torch.py TOOL NET OUT.onnx

| TOOL | what |
| --- | --- |
| pt2e-xnnpack, pt2e-x86 | torchao's PT2E post-training, that quantizer, torch.onnx.export(dynamo=True) |
| pt2e-qat | the same after two training steps with fake quantization |
| fx-ptq, fx-qat | torch.ao.quantization's FX graph mode, default configuration, torch.onnx.export |
| modelopt-int8, modelopt-fp8 | nvidia-modelopt's PyTorch quantizer and its own export |

Needs torch, onnxscript and the tool.
"""

# ruff: noqa: PLC0415 - every tool is imported where it is used; no environment has all
from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import nets
import torch

TRAINING_STEPS = 2
BATCH = 8


def pt2e(made: nets.Made, out: Path, quantizer: str, training: bool = False) -> None:
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e import quantize_pt2e as q

    made_quantizer = {"xnnpack": xnnpack, "x86": x86}[quantizer](training)
    example = tuple(value[:BATCH] for value in made.inputs.values())
    captured = torch.export.export(made.net, example).module()
    prepare = q.prepare_qat_pt2e if training else q.prepare_pt2e
    prepared = prepare(captured, made_quantizer)
    if training:
        train(prepared, made)
        move_exported_model_to_eval(prepared)
    else:
        feed(prepared, made)
    converted = q.convert_pt2e(prepared)
    export(converted, example, made, out, dynamo=True)


def xnnpack(training: bool) -> object:
    from torchao.testing.pt2e._xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    config = get_symmetric_quantization_config(is_per_channel=True, is_qat=training)
    return XNNPACKQuantizer().set_global(config)


def x86(training: bool) -> object:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x

    config = x.get_default_x86_inductor_quantization_config(is_qat=training)
    return x.X86InductorQuantizer().set_global(config)


def fx(made: nets.Made, out: Path, training: bool) -> None:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import (
        convert_fx,
        prepare_fx,
        prepare_qat_fx,
    )

    example = tuple(value[:BATCH] for value in made.inputs.values())
    if training:
        mapping = get_default_qat_qconfig_mapping("fbgemm")
        prepared = prepare_qat_fx(made.net.train(), mapping, example)
        train(prepared, made)
        prepared.eval()
    else:
        prepared = prepare_fx(made.net, get_default_qconfig_mapping("fbgemm"), example)
        feed(prepared, made)
    export(convert_fx(prepared), example, made, out, dynamo=False)


def modelopt(made: nets.Made, out: Path, number_format: str) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.torch._deploy.utils import OnnxBytes, get_onnx_bytes_and_metadata

    config = {"int8": mtq.INT8_DEFAULT_CFG, "fp8": mtq.FP8_DEFAULT_CFG}[number_format]
    quantized = mtq.quantize(made.net, config, lambda net: feed(net, made))
    example = tuple(value[:BATCH] for value in made.inputs.values())
    content, _ = get_onnx_bytes_and_metadata(
        quantized, example, model_name=out.stem, weights_dtype="fp16"
    )
    OnnxBytes.from_bytes(content).write_to_disk(str(out.parent), clean_dir=False)


def feed(net: Callable[..., object], made: nets.Made) -> None:
    """All samples, step by step."""
    with torch.no_grad():
        for start in range(0, nets.SAMPLES, BATCH):
            net(*(value[start : start + BATCH] for value in made.inputs.values()))


def train(net: torch.nn.Module, made: nets.Made) -> None:
    """A few steps towards zero outputs: enough that the scales are trained ones."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(TRAINING_STEPS):
        for start in range(0, nets.SAMPLES, BATCH):
            out = net(*(value[start : start + BATCH] for value in made.inputs.values()))
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()


def export(
    net: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    made: nets.Made,
    out: Path,
    dynamo: bool,
) -> None:
    names = list(made.inputs)
    if dynamo:
        program = torch.onnx.export(
            net, example, input_names=names, output_names=["y"], dynamo=True, optimize=False
        )
        assert program is not None
        program.save(str(out))
        return
    torch.onnx.export(
        net,
        example,
        str(out),
        input_names=names,
        output_names=["y"],
        dynamo=False,
        opset_version=17,
    )


TOOLS: dict[str, Callable[[nets.Made, Path], None]] = {
    "pt2e-xnnpack": lambda made, out: pt2e(made, out, "xnnpack"),
    "pt2e-x86": lambda made, out: pt2e(made, out, "x86"),
    "pt2e-qat": lambda made, out: pt2e(made, out, "xnnpack", training=True),
    "fx-ptq": lambda made, out: fx(made, out, training=False),
    "fx-qat": lambda made, out: fx(made, out, training=True),
    "modelopt-int8": lambda made, out: modelopt(made, out, "int8"),
    "modelopt-fp8": lambda made, out: modelopt(made, out, "fp8"),
}


def main() -> None:
    tool, net, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    warnings.simplefilter("ignore")
    out.parent.mkdir(parents=True, exist_ok=True)
    TOOLS[tool](nets.make(net), out)


if __name__ == "__main__":
    main()
