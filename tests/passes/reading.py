"""Read a graph as short lines, and run it as it stands."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx.reference import ReferenceEvaluator


def lines(model: ir.Model) -> list[str]:
    """One line a node, in order: ``y = Clip(x, 0.0, 6.0)``; small constants stand as numbers."""
    return [_line(node) for node in model.graph]


def run(model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs by ONNX Runtime without its own rewrites; the model is checked in full first."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


def run_reference(model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs by the reference evaluator of onnx, which knows BF16 and FP8."""
    return ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)


def ops(model: ir.Model) -> list[str]:
    """Operator types in order."""
    return [node.op_type for node in model.graph]


def node_named(model: ir.Model, name: str) -> ir.Node:
    """The node called ``name``."""
    return next(node for node in model.graph if node.name == name)


def value_named(model: ir.Model, name: str) -> ir.Value:
    """The value of the main graph called ``name``."""
    found = ir.convenience.create_value_mapping(model.graph)
    return found[name]


def _line(node: ir.Node) -> str:
    outputs = ", ".join(value.name or "?" for value in node.outputs)
    inputs = ", ".join(_operand(value) for value in node.inputs)
    return f"{outputs} = {node.op_type}({inputs})"


def _operand(value: ir.Value | None) -> str:
    if value is None:
        return "-"
    tensor = value.const_value
    if tensor is not None and tensor.size <= 6:
        return str(tensor.numpy().tolist())
    return value.name or "?"
