"""MatMul with a bias behind it becomes Gemm on rows, which adds the bias inside its integer kernel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, is_op, only_reader
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, replace, typed


def linears_to_gemms(model: ir.Model) -> list[str]:
    """Rewrite ``MatMul(x [..., K], W [K, N]) + b [N]``, in place, into Reshape, Gemm, Reshape.

    ONNX Runtime does the same itself, but not where a dimension of x is symbolic; then a bias stored
    as INT32 costs a DequantizeLinear kernel and an Add of its own. Reshape moves no data.

    1. At most one leading dimension is symbolic: the last Reshape's shape is constant.
    2. More are symbolic, and an input of the model begins with the same ones: the shape is computed
       from that input, once for all layers of one width.
    3. Otherwise the nodes stay.
    """
    taken = value_names(model)
    shapes: dict[tuple[object, ...], ir.Value] = {}
    for node in list(model.graph):
        if not is_op(node, "MatMul"):
            continue
        data, weight = node.inputs
        add = only_reader(node.outputs[0])
        if data is None or weight is None or add is None or not is_op(add, "Add"):
            continue
        bias = _bias_of(add, node.outputs[0], weight)
        if bias is None or data.shape is None or len(data.shape) < 3:
            continue
        target = _shape_behind(model.graph, data.shape, bias.shape, shapes, taken)
        if target is not None:
            _rewrite(model.graph, (node, add), data, (weight, bias), target, taken)
    return []


def _bias_of(add: ir.Node, product: ir.Value, weight: ir.Value) -> ir.Value | None:
    """The other operand: one constant for each column of a constant weight [K, N]."""
    other = add.inputs[1] if add.inputs[0] is product else add.inputs[0]
    matrix, vector = constant(weight), constant(other)
    if matrix is None or vector is None or len(matrix.shape) != 2:
        return None
    return other if tuple(vector.shape.numpy()) == (matrix.shape.numpy()[1],) else None


def _shape_behind(
    graph: ir.Graph,
    data: ir.Shape,
    columns: ir.Shape | None,
    shapes: dict[tuple[object, ...], ir.Value],
    taken: set[str],
) -> ir.Value | None:
    """The shape ``[..., N]`` as a value: a constant (1) or computed from an input (2)."""
    leading = tuple(dim if isinstance(dim, int) else (dim.value or None) for dim in data[:-1])
    width = int(columns[0]) if columns is not None and isinstance(columns[0], int) else 0
    key = (*leading, width)
    symbolic = [dim for dim in leading if not isinstance(dim, int)]
    if len(symbolic) > 1 and None in symbolic:
        return None
    if key not in shapes:
        made = _constant_shape(graph, leading, width, taken)
        if made is None:
            made = _computed_shape(graph, leading, width, taken)
        if made is None:
            return None
        shapes[key] = made
    return shapes[key]


def _constant_shape(
    graph: ir.Graph, leading: tuple[int | str | None, ...], width: int, taken: set[str]
) -> ir.Value | None:
    dims = [dim if isinstance(dim, int) else -1 for dim in leading]
    if dims.count(-1) > 1:
        return None
    return new_constant(graph, "linear_shape", np.array([*dims, width], np.int64), taken)


def _computed_shape(
    graph: ir.Graph, leading: tuple[int | str | None, ...], width: int, taken: set[str]
) -> ir.Value | None:
    for value in graph.inputs:
        dims = tuple(d if isinstance(d, int) else d.value for d in (value.shape or ()))
        if dims[: len(leading)] != leading:
            continue
        head = ir.node("Shape", [value], {"start": 0, "end": len(leading)}, name="linear_head")
        columns = new_constant(graph, "linear_width", np.array([width], np.int64), taken)
        whole = ir.node("Concat", [head.outputs[0], columns], {"axis": 0}, name="linear_shape")
        for node, size in ((head, len(leading)), (whole, len(leading) + 1)):
            typed(node, ir.DataType.INT64, ir.Shape([size]))
        graph.insert_before(graph[0], [head, whole])
        return whole.outputs[0]
    return None


def _rewrite(
    graph: ir.Graph,
    old: tuple[ir.Node, ir.Node],
    data: ir.Value,
    constants: tuple[ir.Value, ir.Value],
    target: ir.Value,
    taken: set[str],
) -> None:
    product, add = old
    weight, bias = constants
    rows, columns = (weight.shape or ir.Shape([0, 0]))[0:2]
    flat_shape = new_constant(graph, "rows_shape", np.array([-1, int(str(rows))], np.int64), taken)
    flat = ir.node("Reshape", [data, flat_shape], name=f"{product.name}_rows")
    typed(flat, data.dtype, ir.Shape([None, rows]))
    gemm = ir.node("Gemm", [flat.outputs[0], weight, bias], {"beta": 1.0}, name=product.name)
    typed(gemm, data.dtype, ir.Shape([None, columns]))
    gemm.metadata_props.update(product.metadata_props)
    back = ir.node("Reshape", [gemm.outputs[0], target], name=add.name)
    replace(graph, list(old), [flat, gemm, back], [add.outputs[0]], [back.outputs[0]])
