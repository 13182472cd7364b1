"""The Attention operator (opset 23) becomes MatMul, Softmax, MatMul, where Q/DQ can be placed."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.attention_mask import MASK_FILL
from fuseq.passes.matching import float_attribute, integer_attribute, is_op
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, typed

_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = 3, 4, 5, 6


def split_attention(model: ir.Model) -> list[str]:
    """Rewrite Attention-23 into its parts (https://onnx.ai/onnx/operators/onnx__Attention.html).

    1. ``softmax(Q * scale @ K^T + mask) @ V``; scale defaults to ``1 / sqrt(head size)`` and goes on
       Q alone. A boolean mask becomes ``Where(mask, 0, MASK_FILL)``.
    2. ``is_causal`` with static lengths becomes a constant mask, lower triangular from the top left.
    3. Three-dimensional inputs are cut into ``q_num_heads`` and joined again.
    4. Grouped heads (fewer K than Q heads) are repeated by Expand.
    5. Left as it is, with a note: a past or present cache, ``softcap``, the scores as an output,
       ``is_causal`` over lengths that are not known. TensorRT-RTX 1.7.1 compiles Attention only for
       the shapes that it has a kernel for, and without Q/DQ.
    """
    taken = value_names(model)
    left = []
    for node in [node for node in model.graph if is_op(node, "Attention")]:
        reason = _refusal(node)
        if reason is None:
            _Parts(model.graph, node, taken).write()
        else:
            left.append(f"Attention {node.name!r} stays one operator and in float: {reason}.")
    return left


def _refusal(node: ir.Node) -> str | None:
    if any(value is not None for value in node.inputs[_PAST_KEY:]):
        return "it has a key and value cache"
    if any(out.uses() or out.is_graph_output() for out in node.outputs[1:]):
        return "its cache or scores are outputs"
    if float_attribute(node, "softcap", 0.0):
        return "its scores are capped"
    query, key = node.inputs[0], node.inputs[1]
    if query is None or key is None or query.shape is None or key.shape is None:
        return "the shapes of Q and K are not known"
    if _head_size(node, query) is None:
        return "its number of heads or its head size is not known"
    return _refusal_of_lengths(node, query.shape[-2], key.shape[-2])


def _refusal_of_lengths(
    node: ir.Node, rows: int | ir.SymbolicDim, columns: int | ir.SymbolicDim
) -> str | None:
    mask = node.inputs[_MASK] if len(node.inputs) > _MASK else None
    if mask is not None and mask.shape is not None:
        width = mask.shape[-1]
        if isinstance(width, int) and isinstance(columns, int) and 1 < width < columns:
            return "its mask is shorter than its keys"
    known = isinstance(rows, int) and isinstance(columns, int)
    if integer_attribute(node, "is_causal", 0) and not known:
        return "it is causal over lengths that are not known"
    return None


def _head_size(node: ir.Node, query: ir.Value) -> int | None:
    width = query.shape[-1] if query.shape is not None else None
    if not isinstance(width, int):
        return None
    if query.shape is not None and len(query.shape) == 3:
        heads = integer_attribute(node, "q_num_heads", 0)
        return width // heads if heads else None
    return width


@dataclasses.dataclass
class _Parts:
    """Writes the parts of one Attention node before it, and then removes it."""

    graph: ir.Graph
    node: ir.Node
    taken: set[str]

    def write(self) -> None:
        query, key, value = self.node.inputs[:3]
        if query is None or key is None or value is None:
            return
        flat = query.shape is not None and len(query.shape) == 3
        heads = integer_attribute(self.node, "q_num_heads", 0)
        kv_heads = integer_attribute(self.node, "kv_num_heads", heads)
        if flat:  # case 3
            query = self._cut(query, heads)
            key, value = self._cut(key, kv_heads), self._cut(value, kv_heads)
        key, value = self._repeat(key, query, 1), self._repeat(value, query, 2)
        size = _head_size(self.node, self.node.inputs[0] or query) or 1
        scale = float_attribute(self.node, "scale", 0.0) or size**-0.5
        query = self._add("Mul", [query, self._number("scale", scale)])
        scores = self._add("MatMul", [query, self._add("Transpose", [key], perm=[0, 1, 3, 2])])
        weights = self._add("Softmax", [self._masked(scores)], axis=-1)
        result = self._add("MatMul", [weights, value])
        for part, made in (("scores", scores), ("softmax", weights), ("context", result)):
            maker = made.producer()
            if maker is not None and self.node.name:
                maker.name = f"{self.node.name}_{part}"
        if flat:
            moved = self._add("Transpose", [result], perm=[0, 2, 1, 3])
            shape = new_constant(
                self.graph, "joined_heads", np.asarray([0, 0, -1], np.int64), self.taken
            )
            result = self._add("Reshape", [moved, shape])
        self._finish(result)

    def _finish(self, result: ir.Value) -> None:
        output = self.node.outputs[0]
        result.type, result.shape = output.type, output.shape
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)
        result.name, output.name = output.name, None

    def _cut(self, value: ir.Value, heads: int) -> ir.Value:
        """[b, s, h * d] -> [b, h, s, d]."""
        target = np.asarray([0, 0, heads, -1], np.int64)
        shape = new_constant(self.graph, "cut_heads", target, self.taken)
        return self._add("Transpose", [self._add("Reshape", [value, shape])], perm=[0, 2, 1, 3])

    def _repeat(self, value: ir.Value, query: ir.Value, index: int) -> ir.Value:
        """Case 4: [b, g, s, d] -> [b, g, 1, s, d] -> [b, g, r, s, d] -> [b, g * r, s, d]."""
        have = _heads(value, integer_attribute(self.node, "kv_num_heads", 0))
        want = _heads(query, integer_attribute(self.node, "q_num_heads", 0))
        if have is None or want is None or have == want:
            return value
        axis = new_constant(self.graph, "group_axis", np.asarray([2], np.int64), self.taken)
        times = np.asarray([1, 1, want // have, 1, 1], np.int64)
        spread = self._add(
            "Expand",
            [
                self._add("Unsqueeze", [value, axis]),
                new_constant(self.graph, "group_size", times, self.taken),
            ],
        )
        given = self.node.inputs[index]
        width = given.shape[-1] if given is not None and given.shape is not None else None
        flat = given is not None and given.shape is not None and len(given.shape) == 3
        size = (
            (width // have if flat else width)
            if isinstance(width, int)
            else _head_size(self.node, query)
        )
        target = np.asarray([0, want, -1, size or 1], np.int64)
        return self._add(
            "Reshape", [spread, new_constant(self.graph, "all_heads", target, self.taken)]
        )

    def _masked(self, scores: ir.Value) -> ir.Value:
        mask = self.node.inputs[_MASK] if len(self.node.inputs) > _MASK else None
        if mask is not None and mask.dtype == ir.DataType.BOOL:
            open_, shut = self._number("open", 0.0), self._number("shut", MASK_FILL)
            mask = self._add("Where", [mask, open_, shut])
        if mask is not None:
            scores = self._add("Add", [scores, mask])
        query, key = self.node.inputs[0], self.node.inputs[1]
        if not integer_attribute(self.node, "is_causal", 0) or query is None or key is None:
            return scores
        rows, columns = (value.shape[-2] for value in (query, key) if value.shape is not None)
        if not isinstance(rows, int) or not isinstance(columns, int):
            return scores
        causal = np.where(np.tri(rows, columns, dtype=bool), 0.0, MASK_FILL)  # case 2
        return self._add("Add", [scores, self._number("causal", causal)])

    def _number(self, name: str, value: float | np.ndarray) -> ir.Value:
        dtype = self.node.outputs[0].dtype or ir.DataType.FLOAT
        return new_constant(self.graph, name, np.asarray(value, dtype.numpy()), self.taken)

    def _add(self, op_type: str, inputs: list[ir.Value], **attributes: object) -> ir.Value:
        made = ir.node(op_type, inputs, attributes)  # type: ignore[arg-type]
        made.metadata_props.update(self.node.metadata_props)
        typed(made, self.node.outputs[0].dtype)
        self.graph.insert_before(self.node, made)
        return made.outputs[0]


def _heads(value: ir.Value, told: int) -> int | None:
    if told:
        return told
    size = value.shape[1] if value.shape is not None and len(value.shape) == 4 else None
    return size if isinstance(size, int) else None
