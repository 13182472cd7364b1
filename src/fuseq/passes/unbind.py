"""``qkv.reshape(b, s, 3, h, d).permute(2, 0, 3, 1, 4).unbind(0)`` becomes a Split of the last axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute, integers, is_op, made_by, only_reader
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, typed

_PERM = [2, 0, 3, 1, 4]
_HEADS_PERM = [0, 2, 1, 3]


def split_unbound_heads(model: ir.Model) -> list[str]:
    """Rewrite the timm and torchvision spelling of q, k, v into the one of separate layers.

    ``x [b, s, n*h*d] -> Reshape [b, s, n, h, d] -> Transpose [n, b, h, s, d] -> part i [b, h, s, d]``
    becomes ``Split(x) -> Reshape [b, s, h, d] -> Transpose [b, h, s, d]``: the values and the names
    of the parts are the same, and so are TensorRT-RTX's kernels; planning sees one form.

    A part is taken by Slice and Squeeze, by Gather of one index, or by Split and Squeeze.
    """
    taken = value_names(model)
    for transpose in list(model.graph):
        reshape = made_by(transpose.inputs[0], "Reshape") if _unbinds(transpose) else None
        if reshape is None or only_reader(reshape.outputs[0]) is not transpose:
            continue
        count = transpose.outputs[0].shape[0] if transpose.outputs[0].shape is not None else None
        parts = _parts(transpose)
        shape = _without_count(model.graph, reshape, taken) if parts else None
        if isinstance(count, int) and parts and shape is not None:
            _rewrite(model.graph, reshape, shape, count, parts, taken)
            _remove_chain(model.graph, reshape)
    return []


def _unbinds(node: ir.Node) -> bool:
    perm = node.attributes.get("perm") if is_op(node, "Transpose") else None
    return perm is not None and list(perm.as_ints()) == _PERM


def _parts(transpose: ir.Node) -> dict[int, ir.Value] | None:
    """Return the part per index, or None when something else reads the transposed tensor."""
    parts: dict[int, ir.Value] = {}
    if transpose.outputs[0].is_graph_output():
        return None
    for reader in transpose.outputs[0].consumers():
        if is_op(reader, "Gather") and integer_attribute(reader, "axis", 0) == 0:
            found = _gathered(reader)
        elif is_op(reader, "Slice"):
            found = _sliced(reader)
        elif is_op(reader, "Split") and integer_attribute(reader, "axis", 0) == 0:
            found = {at: _squeezed(value) for at, value in enumerate(reader.outputs)}
        else:
            return None
        if not found or None in found.values() or set(found) & set(parts):
            return None
        parts |= {index: value for index, value in found.items() if value is not None}
    return parts


def _gathered(node: ir.Node) -> dict[int, ir.Value | None]:
    index = constant(node.inputs[1])
    return (
        {int(index.numpy()): node.outputs[0]}
        if index is not None and index.size == 1 and len(index.shape) == 0
        else {}
    )


def _sliced(node: ir.Node) -> dict[int, ir.Value | None]:
    starts, ends, axes = (integers(value) for value in node.inputs[1:4])
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if starts is None or ends is None or axes != [0] or steps != [1] or ends[0] != starts[0] + 1:
        return {}
    return {starts[0]: _squeezed(node.outputs[0])}


def _squeezed(value: ir.Value) -> ir.Value | None:
    reader = only_reader(value)
    if reader is None or not is_op(reader, "Squeeze") or len(reader.inputs) < 2:
        return None
    return reader.outputs[0] if integers(reader.inputs[1]) == [0] else None


def _without_count(graph: ir.Graph, reshape: ir.Node, taken: set[str]) -> ir.Value | None:
    """Return the shape [b, s, h, d] for the shape [b, s, n, h, d] of ``reshape``."""
    target = integers(reshape.inputs[1])
    if target is not None and len(target) == 5 and target[2] != -1:
        kept = np.asarray([*target[:2], *target[3:]], dtype=np.int64)
        return new_constant(graph, f"{reshape.outputs[0].name}_shape", kept, taken)
    joined = made_by(reshape.inputs[1], "Concat")
    if joined is None or len(joined.inputs) != 5 or integers(joined.inputs[2]) in (None, [-1]):
        return None
    pieces = [*joined.inputs[:2], *joined.inputs[3:]]
    shorter = ir.node("Concat", pieces, {"axis": 0}, name=joined.name)
    typed(shorter, ir.DataType.INT64, ir.Shape([4]))
    graph.insert_after(joined, shorter)
    return shorter.outputs[0]


def _rewrite(
    graph: ir.Graph,
    reshape: ir.Node,
    shape: ir.Value,
    count: int,
    parts: dict[int, ir.Value],
    taken: set[str],
) -> None:
    source = reshape.inputs[0]
    name = source.name if source is not None else "qkv"
    split = ir.node(
        "Split",
        [source],
        {"axis": -1, "num_outputs": count},
        num_outputs=count,
        name=f"Split_{name}",
    )
    made = [split]
    for index, old in parts.items():
        cut = typed(
            ir.node("Reshape", [split.outputs[index], shape]), old.dtype, _swapped(old.shape)
        )
        heads = ir.node("Transpose", cut.outputs, {"perm": _HEADS_PERM})
        heads.outputs[0].type, heads.outputs[0].shape = old.type, old.shape
        made += [cut, heads]
        old.replace_all_uses_with(heads.outputs[0], replace_graph_outputs=True)
        heads.outputs[0].name, old.name = old.name, None
    for part in split.outputs:
        part.type = source.type if source is not None else None
        part.shape = _narrower(source.shape if source is not None else None, count)
    for node in made:
        node.metadata_props.update(reshape.metadata_props)
    graph.insert_after(reshape, made)


def _remove_chain(graph: ir.Graph, reshape: ir.Node) -> None:
    """Remove what took the parts before: dead, it would still have to pass shape inference."""
    transpose = reshape.outputs[0].consumers()[0]
    readers = transpose.outputs[0].consumers()
    squeezes = [node for reader in readers for out in reader.outputs for node in out.consumers()]
    graph.remove([reshape, transpose, *readers, *squeezes], safe=True)


def _swapped(heads: ir.Shape | None) -> ir.Shape | None:
    return None if heads is None else ir.Shape([heads[axis] for axis in _HEADS_PERM])


def _narrower(whole: ir.Shape | None, count: int) -> ir.Shape | None:
    if whole is None or not isinstance(whole[-1], int):
        return None
    return ir.Shape([*whole[:-1], whole[-1] // count])
