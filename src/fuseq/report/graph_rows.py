"""The graph of a document: nodes and tensors of an ONNX model, tied to the kernels that run them.

Nodes inside branches and loops are not listed: their node stands for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from fuseq.evaluate.profile_modules import node_modules
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import is_dequantize, is_quantize
from fuseq.report.document import EngineRow, GraphNode, GraphRow, GraphTensor
from fuseq.source_lines import source_line

_WORDS = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp64",
    ir.DataType.FLOAT8E4M3FN: "fp8",
    ir.DataType.INT8: "int8",
    ir.DataType.UINT8: "uint8",
    ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64",
    ir.DataType.BOOL: "bool",
}


def modules_by_node(model: ir.Model) -> dict[str, str]:
    """Module path by node name, where metadata, weights or names tell it."""
    return node_modules(model)


def graph_row(model: ir.Model, engine: EngineRow) -> GraphRow:
    """List what is drawn: every node but constants, and the tensors between them."""
    kernels: dict[str, int] = {}
    for number, kernel in enumerate(engine.kernels):
        for name in kernel.nodes:
            kernels.setdefault(name, number)  # a GEMM's epilogue in the next kernel names it again
    modules = modules_by_node(model)
    nodes, values = [], list(model.graph.inputs)
    for node in model.graph:
        if node.op_type == "Constant":
            continue
        nodes.append(_node(node, engine, kernels.get(node.name or ""), modules))
        values += node.outputs
    read = {name for node in nodes for name in node.inputs}
    outputs = _names(model.graph.outputs)
    kept = [v for v in values if v.name and (v.name in read or v.name in outputs)]
    return GraphRow(
        engine=engine.name,
        nodes=tuple(nodes),
        tensors=tuple(_tensor(value) for value in kept),
        inputs=tuple(v.name or "" for v in model.graph.inputs if v.name in read),
        outputs=outputs,
    )


def dtype_word(dtype: ir.DataType | None) -> str:
    """The short word for a type, ``""`` if unknown."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return ""
    return _WORDS.get(dtype, dtype.name.lower())


def _node(
    node: ir.Node, engine: EngineRow, kernel: int | None, modules: Mapping[str, str]
) -> GraphNode:
    constants = [c for v in node.inputs if v is not None and (c := constant(v)) is not None]
    activations = [v for v in node.inputs if v is not None and constant(v) is None]
    made = node.outputs[0].dtype if node.outputs else None
    return GraphNode(
        name=node.name or "",
        op_type=node.op_type if node.domain == "" else f"{node.domain}.{node.op_type}",
        inputs=_names(activations),
        outputs=_names(node.outputs),
        precision=engine.kernels[kernel].precision if kernel is not None else dtype_word(made),
        module=modules.get(node.name or "", ""),
        source=source_line(node) or "",
        kernel=kernel,
        weights_bytes=sum(c.nbytes for c in constants),
    )


def _tensor(value: ir.Value) -> GraphTensor:
    shape = None
    if value.shape is not None:
        shape = tuple(d if isinstance(d, int) else (d.value or "?") for d in value.shape)
    scale = _scale(value)
    return GraphTensor(
        name=value.name or "",
        shape=shape,
        dtype=dtype_word(value.dtype),
        tensor_bytes=_nbytes(shape, value.dtype),
        scale=None if scale is None else (float(scale.min()), float(scale.max())),
        scale_count=0 if scale is None else int(scale.size),
    )


def _nbytes(shape: tuple[int | str, ...] | None, dtype: ir.DataType | None) -> int | None:
    if shape is None or dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if len(sizes) < len(shape):
        return None
    assert dtype is not None
    return math.ceil(math.prod(sizes) * dtype.itemsize)


def _scale(value: ir.Value) -> np.ndarray | None:
    """The scale with which a Q or DQ made the value; None for others, or if it is no finite constant."""
    node = value.producer()
    if node is None or not (is_quantize(node) or is_dequantize(node)):
        return None
    tensor = constant(node.inputs[1])
    if tensor is None:
        return None
    scale = np.asarray(tensor.numpy(), dtype=np.float32)
    return scale if scale.size and np.isfinite(scale).all() else None


def _names(values: Iterable[ir.Value | None]) -> tuple[str, ...]:
    return tuple(value.name for value in values if value is not None and value.name)
