"""The canonical form and strong typing, judged by TensorRT-RTX: compiles at once, attention fused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.errors import TargetError
from fuseq.model import profile_for
from fuseq.passes.canonical import canonicalize
from fuseq.passes.typing import set_precision
from fuseq.targets import parse_target
from fuseq.targets.base import Engine, KernelType
from tests.graphs import from_text, normal

TARGET = parse_target("tensorrt-rtx:sm89")
pytestmark = pytest.mark.skipif(
    TARGET.missing() is not None, reason="the wheels of tensorrt-rtx are not installed"
)

# CLIP's text encoder as torch.onnx.export(dynamo=True) writes one attention of it
ENCODER = """<ir_version: 10, opset_import: ["" : 20]>
  net (float[b, 197, 128] x) => (float[b, 197, 128] y)
  <int64[4] cut = {-1, 197, 2, 64}, int64[3] join = {-1, 197, 128}, float root = {0.35355338},
   float zero = {0.0}, float low = {-3.4028234663852886e38}, int64[1] m1 = {-1},
   int64[1] m2 = {-2}, int64[1] end = {9223372036854775807}, int64[1] begin = {0},
   int64[1] one = {1}, int64[3] rest = {1, 197, 197}> {
    xs = Shape(x)
    batch = Slice(xs, begin, one)
    q0 = MatMul(x, wq)
    q1 = Add(q0, bias)
    k0 = MatMul(x, wk)
    k1 = Add(k0, bias)
    v0 = MatMul(x, wv)
    v1 = Add(v0, bias)
    q2 = Reshape(q1, cut)
    q3 = Transpose <perm = [0, 2, 1, 3]> (q2)
    k2 = Reshape(k1, cut)
    k3 = Transpose <perm = [0, 2, 1, 3]> (k2)
    v2 = Reshape(v1, cut)
    v3 = Transpose <perm = [0, 2, 1, 3]> (v2)
    ks = Shape(k3)
    last = Slice(ks, m1, end)
    second = Slice(ks, m2, m1)
    lead = Slice(ks, begin, m2)
    flat = Concat <axis = 0> (m1, second, last)
    k4 = Reshape(k3, flat)
    k5 = Transpose <perm = [0, 2, 1]> (k4)
    target = Concat <axis = 0> (lead, last, second)
    k6 = Reshape(k5, target)
    q = Mul(q3, root)
    k = Mul(k6, root)
    spread = Concat <axis = 0> (batch, rest)
    open = Expand(causal, spread)
    mask = Where(open, zero, low)
    s0 = MatMul(q, k)
    s = Add(s0, mask)
    p0 = Softmax <axis = -1> (s)
    nan = IsNaN(p0)
    p = Where(nan, zero, p0)
    o0 = MatMul(p, v3)
    o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
    o2 = Reshape(o1, join)
    o3 = MatMul(o2, wo)
    y = Add(x, o3)
  }"""


def _encoder() -> ir.Model:
    weights = {f"w{name}": normal(128, 128, seed=seed) for seed, name in enumerate("qkvo")}
    causal = np.tri(197, dtype=bool)[None, None]
    return from_text(ENCODER, bias=normal(128, seed=9), causal=causal, **weights)


def _compiled(model: ir.Model) -> Engine:
    return TARGET.compile(model, profile_for(model, 8))


def _attentions(engine: Engine) -> int:
    return sum(kernel.type is KernelType.ATTENTION for kernel in engine.kernels)


def test_a_causal_attention_costs_kernels_and_bytes_less_after_canonicalize() -> None:
    exported = _encoder()
    set_precision(exported, "fp16")
    canonical = _encoder()
    assert canonicalize(canonical) == []  # the mask is a constant: nothing to warn of
    assert set_precision(canonical, "fp16") == []
    before, after = _compiled(exported), _compiled(canonical)
    assert _attentions(before) == _attentions(after) == 1
    assert (len(before.kernels), len(after.kernels)) == (10, 8)
    assert after.activation_bytes < 0.93 * before.activation_bytes
    (kernel,) = [k for k in after.kernels if k.type is KernelType.ATTENTION]
    assert {tensor.dtype for tensor in (*kernel.inputs, *kernel.outputs)} == {"fp16"}


NETS = {
    "clip image stem: Conv input Float, kernel Half": """
        y = Conv <kernel_shape = [2, 2], strides = [2, 2]> (x, w4)""",
    "hard swish and mish have no bf16": """
        a = Conv(x, w1)
        h = HardSwish(a)
        y = Mish(h)""",
    "written-out norm over channels": """
        m = ReduceMean(x, axis)
        d = Sub(x, m)
        q = Mul(d, d)
        v = ReduceMean(q, axis)
        e = Add(v, eps)
        r = Sqrt(e)
        y = Div(d, r)""",
    "epsilon, resize, top-k": """
        n = ReduceL2(x, axis)
        c = Clip(n, tiny)
        d = Div(x, c)
        u = Resize <mode = "linear"> (d, , scales)
        y, i = TopK <axis = 3> (u, two)""",
    "quantized with a scale that fp16 cannot hold": """
        q = QuantizeLinear(x, small, z)
        d = DequantizeLinear(q, small, z)
        y = Conv(d, w1)""",
}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("body", NETS.values(), ids=NETS.keys())
def test_typed_models_compile_at_the_first_try(body: str, precision: str) -> None:
    model = from_text(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[b, 4, 8, 8] x) => (float[p, q, r, s] y)
        <int64[1] axis = {{1}}, int64[1] two = {{2}}, float eps = {{1e-6}}, float tiny = {{1e-12}},
         float[4] scales = {{1.0, 1.0, 2.0, 2.0}}, float small = {{1e-7}}, int8 z = {{0}}> {{
          {body}
        }}""",
        w4=normal(8, 4, 2, 2),
        w1=normal(4, 4, 1, 1),
    )
    canonicalize(model)
    set_precision(model, precision)
    try:
        engine = _compiled(model)
    except TargetError as error:
        pytest.fail(str(error))
    computed = {k.compute_dtype for k in engine.kernels if k.type is KernelType.CONVOLUTION}
    assert computed <= {precision, "int8"}
