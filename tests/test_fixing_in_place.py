"""fix --keep-placement: nothing changes but what the target refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fuseq.errors import TargetError
from fuseq.fixing import fix
from fuseq.model import load, save
from fuseq.options import QuantizeOptions
from tests.graphs import from_text, named, normal
from tests.quantized_nets import CPU, HEAD, RTX, actions, cosine, naive_block, run_as_written
from tests.same_graph import signature


def test_keep_placement_mends_only_what_is_illegal() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {{0.02}}, uint8 z = {{0}}, float t = {{0.01}}, uint8 m = {{128}}> {{
              q = QuantizeLinear(x, t, m)
              d = DequantizeLinear(q, t, m)
              e = DequantizeLinear(w, t)
              b = DequantizeLinear(bi, bs)
              c = Conv <kernel_shape = [1, 1]> (d, e, b)
              q1 = QuantizeLinear(c, s, z)
              d1 = DequantizeLinear(q1, s, z)
              v = Sigmoid(d1)
              q2 = QuantizeLinear(v, s, z)
              y = DequantizeLinear(q2, s, z)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            bi=np.arange(16, dtype=np.int32),
            bs=np.full(1, 1e-4, np.float32),
        )
    )
    x = normal(1, 16, 8, 8, scale=1.0)
    before = run_as_written(model, x=x)
    first = fix(model, options=RTX, keep_placement=True).model
    second = fix(first, options=RTX, keep_placement=True)
    assert signature(second.model) == signature(first) and set(actions(second)) == {"kept"}
    result = fix(model, options=dataclasses.replace(RTX, precision="fp32"), keep_placement=True)
    ops = [node.op_type for node in result.model.graph]
    assert ops.count("QuantizeLinear") == 3 and ops.count("DequantizeLinear") == 4
    assert "Clip" in ops  # the zero point 0 had stood for a Relu
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    assert actions(result)["removed"] == ["bi"]
    assert sorted(actions(result)["rescaled"]) == ["c_clipped", "y"]
    assert actions(result)["kept"] == ["x", "w"]
    assert cosine(before, run_as_written(result.model, x=x)) > 0.999


def test_keep_placement_on_the_cpu_keeps_zero_points_and_int32_biases() -> None:
    text = f"""{HEAD}
    g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
    <float s = {{0.02}}, uint8 z = {{113}}> {{
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      e = DequantizeLinear(w, t, wz)
      b = DequantizeLinear(bi, bs)
      c = Conv <kernel_shape = [1, 1]> (d, e, b)
      q1 = QuantizeLinear(c, s, z)
      y = DequantizeLinear(q1, s, z)
    }}"""
    model = named(
        from_text(
            text,
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            t=np.asarray(0.01, np.float32),
            wz=np.asarray(0, np.int8),
            bi=np.arange(16, dtype=np.int32),
            bs=np.asarray(0.02 * 0.01, np.float32),
        )
    )
    result = fix(model, options=CPU, keep_placement=True)
    assert signature(result.model) == signature(model)


def test_the_input_file_is_not_touched_and_nothing_is_half_written(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    save(naive_block(), source)
    bytes_before = source.read_bytes()
    with pytest.raises(TargetError):
        fix(
            source,
            tmp_path / "out.onnx",
            options=QuantizeOptions(target="tensorrt-rtx:sm80"),
            fmt="fp8",
        )
    assert source.read_bytes() == bytes_before
    assert [file.name for file in tmp_path.iterdir()] == ["in.onnx"]
    assert load(source).graph.outputs[0].name == "y"
