"""Which inputs and outputs of a node carry its compute type, read from the ONNX operator schema."""

from __future__ import annotations

import dataclasses
import functools

import onnx_ir as ir

from fuseq.passes.subgraphs import holds_graphs

FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
"""The types that are computed in. FP8, FP4 and integers store values; they are never retyped."""

_SPELLING = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(bfloat16)": ir.DataType.BFLOAT16,
    "tensor(double)": ir.DataType.DOUBLE,
}
_LAYER_NORM_STATISTICS = (1, 2)


@dataclasses.dataclass(frozen=True)
class Slots:
    """Float slots of one node.

    Attributes:
        inputs: Indices of inputs that have the node's compute type.
        outputs: Indices of outputs that have the node's compute type.
        fixed_inputs: Input index to the one float type that the operator takes there.
        fixed_outputs: Output index to the one float type that the operator gives there.
        allowed: Compute types that every slot accepts.
        as_is: The operator is not known, or holds subgraphs: every slot keeps the type it has.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fixed_inputs: tuple[tuple[int, ir.DataType], ...] = ()
    fixed_outputs: tuple[tuple[int, ir.DataType], ...] = ()
    allowed: frozenset[ir.DataType] = FLOATS
    as_is: bool = False


def is_float(value: ir.Value | None) -> bool:
    """Tell whether ``value`` is a tensor of a type that is computed in."""
    return value is not None and value.dtype in FLOATS


def slots_of(node: ir.Node, opset: int) -> Slots:
    """Return the float slots of ``node``.

    1. A slot whose schema type is one float type is fixed (scales of Resize).
    2. A slot with a type variable follows the compute type; ``allowed`` is what all variables share.
    3. Mean and inverse deviation of LayerNormalization have the type of ``stash_type``.
    4. Unknown operators, those with subgraphs, and those that read a value of unknown type (from
       an unknown operator) keep their types.
    """
    floats_in = tuple(i for i, value in enumerate(node.inputs) if is_float(value))
    floats_out = tuple(i for i, value in enumerate(node.outputs) if is_float(value))
    schema = None if holds_graphs(node) else _schema(node.op_type, node.domain, opset)
    if schema is None or any(value is not None and value.dtype is None for value in node.inputs):
        return Slots(floats_in, floats_out, as_is=True, allowed=frozenset())
    formal_in, formal_out = schema
    types_in = {i: _formal(formal_in, i) for i in floats_in}
    types_out = {i: _formal(formal_out, i) for i in floats_out}
    if node.op_type == "LayerNormalization":  # case 3
        types_out.update(
            {i: frozenset({ir.DataType.FLOAT}) for i in floats_out if i in _LAYER_NORM_STATISTICS}
        )
    return _sorted_out(types_in, types_out)


def _sorted_out(
    types_in: dict[int, frozenset[ir.DataType]], types_out: dict[int, frozenset[ir.DataType]]
) -> Slots:
    following = [t for t in [*types_in.values(), *types_out.values()] if len(t) != 1]
    return Slots(
        inputs=tuple(i for i, types in types_in.items() if len(types) != 1),
        outputs=tuple(i for i, types in types_out.items() if len(types) != 1),
        fixed_inputs=tuple((i, next(iter(t))) for i, t in types_in.items() if len(t) == 1),
        fixed_outputs=tuple((i, next(iter(t))) for i, t in types_out.items() if len(t) == 1),
        allowed=functools.reduce(frozenset.intersection, following, FLOATS),
    )


def _formal(
    formal: tuple[tuple[frozenset[ir.DataType], bool], ...], index: int
) -> frozenset[ir.DataType]:
    if index < len(formal):
        return formal[index][0]
    return formal[-1][0] if formal and formal[-1][1] else FLOATS  # the last one may be variadic


_Formal = tuple[tuple[frozenset[ir.DataType], bool], ...]


@functools.lru_cache(maxsize=1024)
def _schema(op_type: str, domain: str, opset: int) -> tuple[_Formal, _Formal] | None:
    from onnx import defs  # noqa: PLC0415 (loads every schema)

    if not defs.has(op_type, opset, domain):
        return None
    schema = defs.get_schema(op_type, opset, domain)
    variables = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}

    def formal(parameters: list[defs.OpSchema.FormalParameter]) -> _Formal:
        return tuple(
            (
                frozenset(
                    _SPELLING[text]
                    for text in variables.get(each.type_str, [each.type_str])
                    if text in _SPELLING
                ),
                each.option == defs.OpSchema.FormalParameterOption.Variadic,
            )
            for each in parameters
        )

    return formal(list(schema.inputs)), formal(list(schema.outputs))
