"""An ONNX model as a side of a comparison, computed by ONNX Runtime on the CPU as it is written.

As written means: no optimization, every Q and DQ rounds as the file says and products are computed in
float. On a CPU whose integer products saturate this is what an accelerator comes closest to, and
nothing is fused away that could be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.calibration.batches import Batch
from fuseq.calibration.session import open_session
from fuseq.evaluate.compare_side import RunBatch, Side, Value
from fuseq.model import input_specs
from fuseq.passes.shapes import infer_shapes
from fuseq.report.graph_rows import modules_by_node
from fuseq.source_lines import source_line

RUNNER = "onnxruntime:cpu, as written"

_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
_CAST = frozenset({ir.DataType.BFLOAT16})
"""Types that leave as float32, because ONNX Runtime cannot hand them to NumPy."""


def onnx_side(model: ir.Model, label: str) -> Side:
    """Describe ``model``; it is only read.

    A value that no file or inference gives a type is taken for a float: most are.
    """
    typed = model.clone()
    if any(value.dtype is None for node in typed.graph for value in node.outputs):
        infer_shapes(typed)

    def open_values(names: Sequence[str], threads: int) -> RunBatch:
        session = open_session(_giving(typed, names), threads, as_written=True, what=label)
        wanted = list(session.input_types)

        def run(batch: Batch) -> list[np.ndarray]:
            return session.run(names, dict(zip(wanted, batch.values(), strict=True)))

        return run

    return Side(
        label=label,
        runner=RUNNER,
        inputs=tuple(spec.name for spec in input_specs(model)),
        outputs=tuple(value.name or "" for value in typed.graph.outputs),
        values=_values(typed),
        sizes=lambda batch: _sizes(typed, batch),
        open=open_values,
    )


def _values(model: ir.Model) -> tuple[Value, ...]:
    """Every value; what is computed from constants alone (a dequantized weight) is no float to compare."""
    modules = modules_by_node(model)
    varying = {spec.name for spec in input_specs(model)}
    found = []
    for node in model.graph:
        parents = _parents(node)
        if not varying.isdisjoint(parents):
            varying.update(value.name for value in node.outputs if value.name)
        found += [
            Value(
                name=value.name or "",
                op_type=node.op_type,
                node=node.name or "",
                parents=parents,
                module=modules.get(node.name or "", ""),
                source=source_line(node) or "",
                is_float=value.name in varying and (value.dtype is None or value.dtype in _FLOATS),
            )
            for value in node.outputs
            if value.name
        ]
    return tuple(found)


def _parents(node: ir.Node) -> tuple[str, ...]:
    """Values that the node reads, in its subgraphs too."""
    inside = [v for graph in _subgraphs(node) for inner in graph.all_nodes() for v in inner.inputs]
    read = (v for v in (*node.inputs, *inside) if v is not None and v.const_value is None)
    return tuple(dict.fromkeys(value.name for value in read if value.name))


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def _sizes(model: ir.Model, batch: Batch) -> Mapping[str, int]:
    """Bytes as float32 of every value whose shape can be known for the batch."""
    copy = model.clone()
    named = [value for value in copy.graph.inputs if value.name not in copy.graph.initializers]
    for value, array in zip(named, batch.values(), strict=True):
        value.shape = ir.Shape(array.shape)
    infer_shapes(copy)
    found = {}
    for node in copy.graph:
        for value in node.outputs:
            sizes = [dim for dim in value.shape or ("?",) if isinstance(dim, int)]
            if value.shape is not None and len(sizes) == len(value.shape):
                found[value.name or ""] = 4 * math.prod(sizes)
    return found


def _giving(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy whose outputs are exactly the values named, BF16 ones as float32."""
    copy = model.clone()
    graph = copy.graph
    known = {value.name: value for node in graph for value in node.outputs}
    known.update({value.name: value for value in graph.inputs})
    graph.outputs.clear()
    for number, name in enumerate(names):
        value = known[name]
        if value.dtype not in _CAST:
            graph.outputs.append(value)
            continue
        cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=f"fuseq_cast_{number}")
        out = cast.outputs[0]
        out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        value.name, out.name = f"{name}_fuseq_half", name
        graph.append(cast)
        graph.outputs.append(out)
    common.RemoveUnusedNodesPass()(copy)
    return copy
