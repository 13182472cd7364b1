"""Small graphs in ONNX text for tests; weights are drawn with a fixed seed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser


def from_text(text: str, **weights: np.ndarray) -> ir.Model:
    """Parse ONNX text; ``weights`` become initializers of those names."""
    model = parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def normal(*shape: int, seed: int = 0, scale: float = 0.1) -> np.ndarray:
    """Normal float32 values."""
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


def conv_net(residual: bool = True, channels: int = 16) -> ir.Model:
    """Conv-Relu-Conv, residual Add, Relu, MaxPool, Conv: the smallest ResNet block."""
    add = "Add(c2, r0)" if residual else "Identity(c2)"
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[1, {channels}, 8, 8] x) => (float[1, {channels}, 4, 4] y) {{
      r0 = Relu(x)
      c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r0, w1, b1)
      r1 = Relu(c1)
      c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r1, w2)
      s = {add}
      r2 = Relu(s)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
      y = Conv <kernel_shape = [1, 1]> (p, w3)
    }}"""
    model = from_text(
        text,
        w1=normal(channels, channels, 3, 3, seed=1),
        b1=normal(channels, seed=2),
        w2=normal(channels, channels, 3, 3, seed=3),
        w3=normal(channels, channels, 1, 1, seed=4),
    )
    return named(model)


def attention_net(batch: int = 1, heads: int = 2, length: int = 16, size: int = 32) -> ir.Model:
    """LayerNorm, Q, K, V projections, attention with a scale, output projection, residual."""
    width = heads * size
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[{batch}, {length}, {width}] x) => (float[{batch}, {length}, {width}] y)
    <int64[4] split = {{0, 0, {heads}, {size}}}, int64[3] merge = {{0, 0, {width}}},
     float scale = {{{size**-0.5}}}>
    {{
      n = LayerNormalization <axis = -1> (x, g)
      q0 = MatMul(n, wq)
      k0 = MatMul(n, wk)
      v0 = MatMul(n, wv)
      q1 = Reshape(q0, split)
      k1 = Reshape(k0, split)
      v1 = Reshape(v0, split)
      q = Transpose <perm = [0, 2, 1, 3]> (q1)
      k = Transpose <perm = [0, 2, 3, 1]> (k1)
      v = Transpose <perm = [0, 2, 1, 3]> (v1)
      s0 = MatMul(q, k)
      s = Mul(s0, scale)
      p = Softmax <axis = -1> (s)
      o0 = MatMul(p, v)
      o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
      o = Reshape(o1, merge)
      r = MatMul(o, wo)
      rb = Add(r, bo)
      y = Add(rb, x)
    }}"""
    weights = {
        f"w{name}": normal(width, width, seed=seed) for seed, name in enumerate("qkvo", start=1)
    }
    model = from_text(text, g=np.ones(width, np.float32), bo=normal(width, seed=9), **weights)
    return named(model)


def named(model: ir.Model) -> ir.Model:
    """Name each node after its output, as tests read better so."""
    for node in model.graph:
        node.name = f"n_{node.outputs[0].name}"
    return model
