"""Quantized networks as tools write them, and what tests ask of the mended ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from fuseq.calibration.scales import Scale
from fuseq.calibration.tensor_scales import constant_scales
from fuseq.fixing import Fixed
from fuseq.options import QuantizeOptions
from fuseq.passes.canonical import canonicalize
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.typing import set_precision
from fuseq.placement.planner import plan_everything
from fuseq.targets import parse_target
from tests.graphs import from_text, named, normal

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
TRT = QuantizeOptions(target="tensorrt:sm89", policy="full", batch=1)
RTX = QuantizeOptions(target="tensorrt-rtx:sm89", policy="full", batch=1)
CPU = QuantizeOptions(target="onnxruntime:cpu", policy="full", batch=1)


def run_as_written(model: ir.Model, **feeds: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def quantized_by_fuseq(
    model: ir.Model, target: str, fmt: str, precision: str, seed: int = 0
) -> tuple[ir.Model, dict[str, float]]:
    """What fuseq writes for a target, with activation scales drawn at random; and the scales."""
    canonicalize(model)
    rules = parse_target(target).rules(fmt)
    plan = plan_everything(model, rules, target=target, user_format=fmt, precision=precision)
    rng = np.random.default_rng(seed)
    drawn: dict[str, Scale] = {}
    for group, entries in plan.groups().items():
        if entries[0].kind == "activation":
            scale = np.asarray(np.float16(rng.uniform(0.01, 0.1)), np.float32)
            drawn[group] = Scale(scale, None, entries[0].format)
    insert_qdq(model, plan, {**constant_scales(plan, model, precision), **drawn})
    set_precision(model, precision)
    again = ir.from_proto(ir.to_proto(model))
    by_tensor = {
        t.tensor: float(drawn[t.group].scale) for t in plan.tensors if t.kind == "activation"
    }
    return again, by_tensor


def actions(result: Fixed, kind: str = "") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for change in result.changes:
        if not kind or change.kind == kind:
            found.setdefault(change.action, []).append(change.tensor)
    return found


def scales_at(model: ir.Model) -> dict[str, float]:
    """Scale of each activation pair by the node that reads it."""
    found = {}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].producer() is not None:
            scale = node.inputs[1].const_value
            for user, index in node.outputs[0].uses():
                found[f"{user.name}[{index}]"] = float(scale.numpy().reshape(-1)[0])
    return found


def naive_block(
    residual: bool = True, scale_type: type = np.float32, zero: str = "int8 0"
) -> ir.Model:
    """A residual block with pairs at convolution inputs alone and per-channel weights, as tools write it."""
    kind, point = zero.split()
    text = f"""{HEAD}
    net (float[1, 16, 8, 8] x) => (float[1, 16, 4, 4] y)
    <{kind} z = {{{point}}}> {{
      r0 = Relu(x)
      q0 = QuantizeLinear(r0, s0, z)
      d0 = DequantizeLinear(q0, s0, z)
      v1 = QuantizeLinear <axis = 0> (w1, t1, wz)
      e1 = DequantizeLinear <axis = 0> (v1, t1, wz)
      c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d0, e1, b1)
      r1 = Relu(c1)
      q1 = QuantizeLinear(r1, s1, z)
      d1 = DequantizeLinear(q1, s1, z)
      v2 = QuantizeLinear <axis = 0> (w2, t2, wz)
      e2 = DequantizeLinear <axis = 0> (v2, t2, wz)
      c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d1, e2)
      s = {"Add(c2, r0)" if residual else "Identity(c2)"}
      r2 = Relu(s)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
      q3 = QuantizeLinear(p, s3, z)
      d3 = DequantizeLinear(q3, s3, z)
      v3 = QuantizeLinear <axis = 0> (w3, t3, wz)
      e3 = DequantizeLinear <axis = 0> (v3, t3, wz)
      y = Conv <kernel_shape = [1, 1]> (d3, e3)
    }}"""
    shapes = {"1": (16, 16, 3, 3), "2": (16, 16, 3, 3), "3": (16, 16, 1, 1)}
    arrays: dict[str, np.ndarray] = {"b1": normal(16), "wz": np.zeros(16, np.int8)}
    for number, shape in shapes.items():
        weight = normal(*shape, seed=int(number))
        arrays[f"w{number}"] = weight
        amax = np.abs(weight).reshape(16, -1).max(1)
        arrays[f"t{number}"] = (amax / 127).astype(scale_type)
    for name, scale in (("s0", 0.021), ("s1", 0.013), ("s3", 0.017)):
        arrays[name] = np.asarray(scale, scale_type)
    return named(from_text(text, **arrays))


def half_done() -> ir.Model:
    """Only the first convolution is quantized."""
    return named(
        from_text(
            f"""{HEAD}
            net (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s0 = {{0.02}}, int8 z = {{0}}> {{
              r0 = Relu(x)
              q0 = QuantizeLinear(r0, s0, z)
              d0 = DequantizeLinear(q0, s0, z)
              e1 = DequantizeLinear <axis = 0> (w1, t1)
              c1 = Conv <kernel_shape = [1, 1]> (d0, e1)
              r1 = Relu(c1)
              y = Conv <kernel_shape = [1, 1]> (r1, w2)
            }}""",
            w1=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            t1=np.full(16, 0.002, np.float32),
            w2=normal(16, 16, 1, 1),
        )
    )
