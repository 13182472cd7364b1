"""Scales and zero points behind Cast, ConstantOfShape and Mul are read like constants."""

from __future__ import annotations

import numpy as np

from fuseq.passes.quantizer_constants import fold_quantizer_constants
from fuseq.passes.quantizers import Quantizer, is_dequantize, read_quantizer
from tests.graphs import from_text


def test_what_torchao_and_torch_write() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[1, 4] x) => (float[3] y, float[1, 4] z, float[1, 4] r)
        <int32[3] b = {10, 20, 30}, float[3] ws = {0.5, 0.25, 0.125}, float xs = {2},
         int64[1] three = {3}, double s = {0.1}, int64 zp = {3}> {
          zi = ConstantOfShape(three)
          zc = Cast <to = 6> (zi)
          bs = Mul(ws, xs)
          y = DequantizeLinear <axis = 0> (b, bs, zc)
          sc = Cast <to = 1> (s)
          zz = Cast <to = 3> (zp)
          q = QuantizeLinear(x, sc, zz)
          z = DequantizeLinear(q, sc, zz)
          run = ReduceMax <keepdims = 0> (x)
          q2 = QuantizeLinear(x, run, zz)
          r = DequantizeLinear(q2, run, zz)
        }"""
    )
    fold_quantizer_constants(model)
    found = [read_quantizer(node) for node in model.graph if is_dequantize(node)]
    bias, activation, computed = found
    assert isinstance(bias, Quantizer) and isinstance(activation, Quantizer)
    assert bias.scale.tolist() == [1.0, 0.5, 0.25] and bias.zero_point.tolist() == [0, 0, 0]
    assert activation.scale == np.float32(0.1) and activation.zero_point == 3
    assert computed == "its scale is computed at run time"
