"""Change the compute type of one node: its float outputs and the attributes that spell a type."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.convert_weights import converted
from fuseq.passes.float_slots import FLOATS, Slots

_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
_TENSOR_ATTRIBUTES = ("value", "value_float", "value_floats")


def retype_node(node: ir.Node, slots: Slots, dtype: ir.DataType) -> None:
    """Make ``node`` compute in ``dtype``; its inputs are the caller's to convert.

    1. Outputs that follow the compute type, and outputs of fixed type, get their type.
    2. ``to``, ``dtype`` and ``output_dtype`` that name a float type name the new one.
    3. The value of Constant and ConstantOfShape is converted.
    """
    if slots.as_is:
        return
    for index in slots.outputs:
        node.outputs[index].type = ir.TensorType(dtype)
    for index, fixed in slots.fixed_outputs:
        node.outputs[index].type = ir.TensorType(fixed)
    if not slots.outputs:
        return
    for name in _TYPE_ATTRIBUTES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value in FLOATS:
            node.attributes[name] = ir.AttrInt64(name, int(dtype))
    if node.op_type in ("Constant", "ConstantOfShape"):
        _retype_value(node, dtype)


def _retype_value(node: ir.Node, dtype: ir.DataType) -> None:
    for name in _TENSOR_ATTRIBUTES:
        attribute = node.attributes.pop(name, None)
        if attribute is None:
            continue
        tensor = attribute.value if name == "value" else ir.tensor(attribute.value)
        node.attributes["value"] = ir.AttrTensor("value", converted(tensor, dtype))
        return
    zero = ir.tensor([0.0], dtype=dtype)  # ConstantOfShape without a value is FP32 zero
    node.attributes["value"] = ir.AttrTensor("value", zero)
