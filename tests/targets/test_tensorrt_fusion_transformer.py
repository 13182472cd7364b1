"""Attention, GEMM epilogues and generated kernels in the fusion model of TensorRT.

Reference: layer list of TensorRT 10.10 for a BERT encoder in FP16 on an A100
(https://github.com/NVIDIA/TensorRT/issues/4397): seven kernels a layer.
"""

from __future__ import annotations

import onnx_ir as ir
import pytest

from fuseq.targets.base import Engine, KernelType
from tests.targets.tensorrt_models import by_operator, net, simulate, types

SIGNATURE = (
    "(float[2, 128, 128] x, float[2, 1, 1, 128] mask) => (float[2, 128, 128] y) "
    "<int64[4] heads = {2, 128, 2, 64}, int64[3] merge = {2, 128, 128}, float scale = {0.125}, "
    "float nought = {0}>"
)
ALL = ("q", "k", "v", "p")


def encoder(
    quantized: tuple[str, ...] = (),
    stored: str = "int8",
    linears: bool = False,
    guard: bool = False,
) -> ir.Model:
    """One encoder layer of two heads of 64, attention first.

    Args:
        quantized: Which of q, k, v and the softmax output p get a pair.
        stored: ``int8`` or ``fp8``.
        linears: Inputs and weights of the GEMMs have pairs too.
        guard: The exporter's guard against NaN stands behind the softmax.
    """

    def product(out: str, data: str, size: str) -> str:
        if not linears:
            return f"{out}w = Zeros<{size}> ()\n{out} = MatMul({data}, {out}w)"
        return f"{out}d = Pair<0.1> ({data})\n{out}w = Weight<{size}> ()\n{out} = MatMul({out}d, {out}w)"

    def pair(name: str) -> str:
        kind = "Pair<0.5>" if name in quantized else "Identity"
        return f"{name}d = {kind} ({name})"

    body = f"""
      bias = Zeros<128> ()
      wide = Zeros<512> ()
      {product("mq", "x", "128, 128")}
      q0 = Add(mq, bias)
      q1 = Reshape(q0, heads)
      q = Transpose <perm = [0, 2, 1, 3]> (q1)
      {product("mk", "x", "128, 128")}
      k0 = Add(mk, bias)
      k1 = Reshape(k0, heads)
      k = Transpose <perm = [0, 2, 3, 1]> (k1)
      {product("mv", "x", "128, 128")}
      v0 = Add(mv, bias)
      v1 = Reshape(v0, heads)
      v = Transpose <perm = [0, 2, 1, 3]> (v1)
      {pair("q")}
      {pair("k")}
      {pair("v")}
      s0 = MatMul(qd, kd)
      s1 = Mul(s0, scale)
      s2 = Add(s1, mask)
      p0 = Softmax <axis = -1> (s2)
      {"t = IsNaN(p0)" if guard else ""}
      p = {"Where(t, nought, p0)" if guard else "Identity(p0)"}
      {pair("p")}
      a = MatMul(pd, vd)
      a1 = Transpose <perm = [0, 2, 1, 3]> (a)
      a2 = Reshape(a1, merge)
      {product("mo", "a2", "128, 128")}
      o = Add(mo, bias)
      r1 = Add(x, o)
      n1 = LayerNormalization <axis = -1> (r1, bias, bias)
      {product("m1", "n1", "128, 512")}
      h = Add(m1, wide)
      g = Gelu(h)
      {product("m2", "g", "512, 128")}
      h2 = Add(m2, bias)
      r2 = Add(n1, h2)
      y = LayerNormalization <axis = -1> (r2, bias, bias)
    """
    return net(SIGNATURE, body, stored)


def attention_kernels(engine: Engine) -> list[str]:
    return [k.compute_dtype for k in engine.kernels if k.type is KernelType.ATTENTION]


def test_fp16_encoder_layer_is_seven_kernels() -> None:
    engine = simulate(encoder(), 80, "fp16")
    assert types(engine) == [
        "cast", "cast", "gemm", "attention", "gemm", "normalization", "gemm", "gemm",
        "normalization",
    ]  # fmt: skip
    merged, first, last = engine.kernels[2], engine.kernels[6], engine.kernels[8]
    assert len(merged.outputs) == 3 and merged.flops == 3 * 2 * 256 * 128 * 128
    assert [node.split("_")[0] for node in first.nodes] == ["MatMul", "Add", "Gelu"]
    assert [node.split("_")[0] for node in last.nodes] == ["Add", "LayerNormalization"]
    attention = engine.kernels[3]
    assert attention.flops == 2 * 2 * (2 * 2 * 128 * 128 * 64)
    assert [tensor.shape for tensor in attention.inputs] == [
        (2, 2, 128, 64), (2, 2, 64, 128), (2, 1, 1, 128), (2, 2, 128, 64),
    ]  # fmt: skip


def test_fp8_attention_is_one_kernel_with_four_pairs() -> None:
    engine = simulate(encoder(ALL, "fp8"), 89, "fp16")
    assert attention_kernels(engine) == ["fp8"]
    fused = next(k for k in engine.kernels if k.type is KernelType.ATTENTION)
    assert {t.dtype for t in fused.inputs if t.shape[-2] > 1} == {"fp8"}


@pytest.mark.parametrize("missing", ALL)
def test_three_pairs_break_the_attention(missing: str) -> None:
    quantized = tuple(name for name in ALL if name != missing)
    engine = simulate(encoder(quantized, "fp8"), 89, "fp16")
    assert attention_kernels(engine) == []
    assert types(engine).count("gemm") > types(simulate(encoder(), 89, "fp16")).count("gemm")
    assert "softmax" in types(engine)
    assert any("attention is not fused" in note for note in engine.notes)
    assert len(engine.kernels) > len(simulate(encoder(ALL, "fp8"), 89, "fp16").kernels)


def test_attention_without_pairs_stays_one_fp16_kernel_between_fp8_linears() -> None:
    engine = simulate(encoder((), "fp8", linears=True), 89, "fp16")
    assert attention_kernels(engine) == ["fp16"]
    assert {k.compute_dtype for k in engine.kernels if k.type is KernelType.GEMM} == {"fp8"}
    # x and the attention's FP16 result are quantized alone; LayerNorm and GELU write FP8 themselves
    assert [k.type for k in engine.alone if k.outputs[0].dtype == "fp8"] == [
        KernelType.QUANTIZE
    ] * 2
    for operator in ("LayerNormalization_n1", "Gelu"):
        assert "fp8" in {t.dtype for t in by_operator(engine, operator)[0].outputs}


def test_fully_quantized_encoder_quantizes_alone_only_its_input() -> None:
    engine = simulate(encoder(ALL, "fp8", linears=True), 89, "fp16")
    assert attention_kernels(engine) == ["fp8"]
    (alone,) = [kernel for kernel in engine.alone if kernel.type is KernelType.QUANTIZE]
    assert alone.inputs[0].name.split()[0] == "x"
    assert types(engine).count("gemm") == 4


@pytest.mark.parametrize(
    ("stored", "capability", "fused"),
    [("int8", 80, ["int8"]), ("int8", 120, ["int8"]), ("fp8", 89, ["fp8"]), ("fp8", 90, ["fp8"])],
)
def test_attention_formats_by_capability(stored: str, capability: int, fused: list[str]) -> None:
    assert attention_kernels(simulate(encoder(ALL, stored), capability, "fp16")) == fused


def test_guard_against_nan_breaks_only_the_low_precision_kernel() -> None:
    assert attention_kernels(simulate(encoder(guard=True), 89, "fp16")) == ["fp16"]
    engine = simulate(encoder(ALL, "fp8", guard=True), 89, "fp16")
    assert attention_kernels(engine) == []
    assert any("guard against NaN" in note for note in engine.notes)


def test_fp32_attention_is_not_fused() -> None:
    engine = simulate(encoder(), 80, "strong")
    assert attention_kernels(engine) == []
    assert types(engine).count("softmax") == 1


def test_a_generated_kernel_holds_one_row_operation() -> None:
    body = """
      bias = Zeros<128> ()
      a = LayerNormalization <axis = -1> (x, bias, bias)
      b = Mul(a, a)
      c = Tanh(b)
      y = LayerNormalization <axis = -1> (c, bias, bias)
    """
    engine = simulate(net("(float[2, 128, 128] x) => (float[2, 128, 128] y)", body))
    assert types(engine) == ["normalization", "normalization"]
    assert [len(kernel.nodes) for kernel in engine.kernels] == [3, 1]
