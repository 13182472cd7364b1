"""A linear layer whose result is cut by Split becomes one layer a part: a CPU saves the copies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.convert_weights import LAZY_BYTES
from fuseq.passes.matching import constant, integer_attribute, integers, is_op, only_reader
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, replace, typed


def split_linears(model: ir.Model) -> list[str]:
    """Rewrite ``Split <axis = -1> (x @ W [K, N] (+ b [N]))`` into a MatMul (and Add) for each part, in place.

    Q, K and V of an attention come so, from the exporter or from
    :func:`fuseq.passes.sibling_linears.merge_sibling_linears`. GPUs want one product; ONNX Runtime's CPU
    kernels are as fast for three, and Split copies: 8x197x1152, 1.3 ms of 25 a layer of ViT-S with INT8
    products (one thread, Sapphire Rapids). Each part has the name of the Split's output. Big weights
    are cut when they are read.
    """
    taken = value_names(model)
    for node in list(model.graph):
        if is_op(node, "MatMul"):
            _split(model.graph, node, taken)
    return []


def _split(graph: ir.Graph, product: ir.Node, taken: set[str]) -> None:
    weight = constant(product.inputs[1])
    if weight is None or len(weight.shape) != 2:
        return
    width = weight.shape.numpy()[1]
    add, bias = only_reader(product.outputs[0]), None
    if add is not None and is_op(add, "Add"):
        other = add.inputs[1] if add.inputs[0] is product.outputs[0] else add.inputs[0]
        bias = constant(other)
        if bias is None or tuple(bias.shape.numpy()) != (width,):
            return
    else:
        add = None
    last = product if add is None else add
    split = only_reader(last.outputs[0])
    sizes = _sizes(split, width, len(last.outputs[0].shape or ())) if split is not None else None
    if split is None or sizes is None or any(v.is_graph_output() for v in split.outputs):
        return
    ends = np.cumsum([0, *sizes])
    made: list[ir.Node] = []
    parts: list[ir.Value] = []
    for output, start, end in zip(split.outputs, ends[:-1], ends[1:], strict=True):
        columns = _columns(weight, int(start), int(end))
        matrix = new_constant(graph, f"{output.name}_weight", columns, taken)
        name = f"{product.name}_{len(parts)}"
        part = ir.node("MatMul", [product.inputs[0], matrix], name=name)
        made.append(typed(part, output.dtype))
        if bias is not None and add is not None:
            part.outputs[0].shape = output.shape
            vector = new_constant(graph, f"{output.name}_bias", bias.numpy()[start:end], taken)
            part = ir.node("Add", [part.outputs[0], vector], name=f"{add.name}_{len(parts)}")
            made.append(typed(part, output.dtype))
        parts.append(part.outputs[0])
    old = [product, *([add] if add is not None else []), split]
    for node in made:
        node.metadata_props.update(product.metadata_props)
    replace(graph, old, made, split.outputs, parts)


def _columns(weight: ir.TensorProtocol, start: int, end: int) -> ir.TensorProtocol:
    """Columns ``start`` to ``end`` of a weight [K, N]."""

    def read() -> ir.TensorProtocol:
        part = np.ascontiguousarray(weight.numpy()[:, start:end])
        return ir.Tensor(part, dtype=weight.dtype, shape=ir.Shape(part.shape))

    is_lazy = isinstance(weight, (ir.ExternalTensor, ir.LazyTensor))
    if not is_lazy or weight.nbytes <= LAZY_BYTES:
        return read()
    shape = ir.Shape([weight.shape.numpy()[0], end - start])
    return ir.LazyTensor(read, dtype=weight.dtype, shape=shape, cache=False)


def _sizes(split: ir.Node, width: int, rank: int) -> list[int] | None:
    """Columns of each part of a Split along the last of ``rank`` axes; None where they are unknown."""
    if not is_op(split, "Split") or rank < 2:
        return None
    axis = integer_attribute(split, "axis", 0)
    if axis not in (-1, rank - 1):
        return None
    if len(split.inputs) > 1 and split.inputs[1] is not None:
        return integers(split.inputs[1])
    count = len(split.outputs)
    return [width // count] * count if width % count == 0 else None
