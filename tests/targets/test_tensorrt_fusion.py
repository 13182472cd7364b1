"""The fusion model of full TensorRT against engines that the real compiler built.

Truth: NVIDIA/TensorRT, tools/experimental/trt-engine-explorer: ResNet-18 on an A100 (examples/pytorch/
resnet/A100, batch 32) and MobileNetV2 on a TITAN RTX (tests/inputs/mobilenet_v2_residuals.qat, batch 1),
built by ``trtexec`` with the precisions named below.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.targets.base import Engine, Kernel, TensorInfo
from fuseq.targets.layer_info import read_engine
from fuseq.targets.tensorrt.builder import Typing
from tests.targets.tensorrt_models import (
    by_node,
    counts,
    identity_edges,
    mobilenet_v2,
    resnet18,
    simulate,
    weighted_edges,
    with_pairs,
)

ROOT = Path(__file__).resolve().parents[2]
TREX = Path(
    os.environ.get("FUSEQ_TREX_DATA", ROOT.parent / "shared" / "data" / "trt-engine-explorer")
)

Counts = dict[str, int]
TRUTH: dict[str, Counts] = {
    "fp32": {"convolution fp32": 21, "pool": 2, "move": 1, "fused adds": 8},
    "fp16": {"convolution fp16": 21, "pool": 2, "cast": 2, "fused adds": 8},
    "qat": {
        "convolution int8": 8, "convolution fp16": 11, "convolution fp32": 2, "pool": 2,
        "quantize": 10, "cast": 1, "move": 1, "fused adds": 8,
    },
    "qat-residual": {
        "convolution int8": 19, "convolution fp32": 2, "pool": 1, "quantize": 2, "dequantize": 1,
        "fused adds": 8,
    },
    "qat-residual-qgap": {
        "convolution int8": 20, "convolution fp32": 1, "pool": 1, "quantize": 1, "fused adds": 8,
    },
}  # fmt: skip
"""Kernels of the real engines; ``cast`` and ``move`` are Reformat layers, the first with a new type."""

MEASURED_MS = {"fp16": 0.862, "qat": 0.883, "qat-residual": 0.546, "qat-residual-qgap": 0.500}
"""Median GPU compute times."""


def placement(name: str) -> ir.Model:
    """ResNet-18 with the pairs of the engine called ``name``."""
    model = resnet18()
    if name in ("fp32", "fp16"):
        return model
    edges = weighted_edges(model)
    if "residual" in name:
        edges += identity_edges(model)
    if "qgap" in name:
        gap = next(node for node in model.graph if node.name == "gap")
        assert gap.inputs[0] is not None
        edges.append((gap.inputs[0].name or "", "gap", 0))
    return with_pairs(model, edges)


@pytest.fixture(scope="module")
def engines() -> dict[str, Engine]:
    """All five, simulated with the precisions that their build metadata name."""
    typing: dict[str, Typing] = {"fp32": "fp32"}
    return {name: simulate(placement(name), 80, typing.get(name, "fp16")) for name in TRUTH}


def adds(model: ir.Model) -> frozenset[str]:
    return frozenset(node.name or "" for node in model.graph if node.op_type == "Add")


@pytest.mark.parametrize("name", TRUTH)
def test_resnet18_has_the_kernels_of_the_real_engine(engines: dict[str, Engine], name: str) -> None:
    assert counts(engines[name], adds(resnet18())) == TRUTH[name]


def signature(kernel: Kernel) -> tuple[object, ...]:
    """Everything but names; trailing axes of 1 are a matter of spelling."""

    def of(tensors: tuple[TensorInfo, ...]) -> list[tuple[str, str, int]]:
        shapes = ["x".join(map(str, tensor.shape)).removesuffix("x1x1") for tensor in tensors]
        return [(t.dtype, shape, t.nbytes) for t, shape in zip(tensors, shapes, strict=True)]

    return (
        kernel.type.value,
        of(kernel.inputs),
        of(kernel.outputs),
        kernel.flops,
        kernel.compute_dtype,
        kernel.weights_bytes,
    )


@pytest.mark.skipif(not TREX.is_dir(), reason=f"no TREx engines at {TREX}")
@pytest.mark.parametrize("name", TRUTH)
def test_resnet18_equals_the_real_engine_kernel_by_kernel(
    engines: dict[str, Engine], name: str
) -> None:
    real = read_engine(TREX / f"resnet18-a100-{name}.graph.json")
    simulated = sorted(signature(kernel) for kernel in engines[name].kernels)
    assert simulated == sorted(signature(kernel) for kernel in real.kernels)


def test_resnet18_predicted_order_is_measured_order_and_ratios_are_close(
    engines: dict[str, Engine],
) -> None:
    predicted = {name: engines[name].predicted_us for name in MEASURED_MS}
    assert sorted(predicted, key=lambda name: predicted[name]) == [
        "qat-residual-qgap", "qat-residual", "fp16", "qat",
    ]  # fmt: skip
    for name, measured in MEASURED_MS.items():
        ratio = predicted[name] / predicted["fp16"]
        assert ratio == pytest.approx(measured / MEASURED_MS["fp16"], rel=0.15), name


def test_of_two_convolutions_the_later_one_takes_a_float_add(engines: dict[str, Engine]) -> None:
    for name in ("fp16", "qat"):
        assert "layer2.0.down" in by_node(engines[name], "layer2.0.add").nodes
    # with a pair on the shortcut, the convolution on the other branch does
    assert "layer2.0.conv2" in by_node(engines["qat-residual"], "layer2.0.add").nodes


def test_resnet18_stem_is_one_kernel_with_its_pool_only_in_int8(
    engines: dict[str, Engine],
) -> None:
    words = {name: engine.kernels[1].compiler_type for name, engine in engines.items()}
    assert words["qat-residual"] == words["qat-residual-qgap"] == "ConvActPool"
    assert words["qat"] == words["fp16"] == "CaskConvolution"


def test_resnet18_lone_dequantize_makes_the_last_block_fp32(engines: dict[str, Engine]) -> None:
    (alone,) = [k for k in engines["qat-residual"].alone if k.type.value == "dequantize"]
    assert alone.outputs[0].dtype == "fp32"
    last = by_node(engines["qat-residual"], "layer4.1.conv2")
    assert [t.dtype for t in last.inputs] == ["int8", "fp32"]
    assert last.outputs[0].dtype == "fp32"


def test_every_node_runs_once(engines: dict[str, Engine]) -> None:
    for name, engine in engines.items():
        model = placement(name)
        ran = [node for kernel in engine.kernels for node in kernel.nodes]
        assert len(ran) == len(set(ran)), name
        # a view launches nothing, and of equal pairs on one tensor one remains
        expected = {
            node.name
            for node in model.graph
            if node.op_type != "Flatten" and not (node.name or "").startswith("pair_")
        }
        assert expected <= set(ran), name


def test_kernels_read_what_is_made_before_them(engines: dict[str, Engine]) -> None:
    for name, engine in engines.items():
        made = {"input"}
        for kernel in engine.kernels:
            assert {tensor.name for tensor in kernel.inputs} <= made, (name, kernel.name)
            made |= {tensor.name for tensor in kernel.outputs}


# Held out: no rule was read off this engine before the simulator predicted it.


def test_mobilenet_v2_has_the_kernels_of_the_real_engine() -> None:
    model = mobilenet_v2()
    engine = simulate(with_pairs(model, weighted_edges(model) + identity_edges(model)), 75, "fp16")
    assert counts(engine, adds(model)) == {
        "convolution int8": 51, "convolution fp16": 1, "convolution fp32": 1, "pool": 1,
        "quantize": 2, "move": 1, "fused adds": 10,
    }  # fmt: skip
    depthwise = [k for k in engine.kernels if k.compiler_type == "CudaDepthwiseConvolution"]
    assert len(depthwise) == 17
    assert {k.outputs[0].dtype for k in depthwise} == {"int8"}
    first, last = engine.kernels[1], engine.kernels[-1]
    assert first.compute_dtype == "int8x4" and first.outputs[0].dtype == "int8"
    assert last.outputs[0].dtype == "fp32" and last.outputs[0].nbytes == 4000


def test_mobilenet_v2_without_shortcut_pairs_runs_quantizers_alone() -> None:
    """As ``mobilenet.qat`` of the same folder: each of the 15 block results around an addition stays
    float, and its Q runs alone. (The real engine chose FP32 for the last three, the model FP16.)"""
    model = mobilenet_v2()
    engine = simulate(with_pairs(model, weighted_edges(model)), 75, "fp16")
    assert counts(engine, adds(model)) == {
        "convolution int8": 36, "convolution fp16": 16, "convolution fp32": 1, "pool": 1,
        "quantize": 17, "move": 1, "fused adds": 10,
    }  # fmt: skip
