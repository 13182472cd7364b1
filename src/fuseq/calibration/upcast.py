"""Turn FP16 and BF16 models into FP32 for calibration on a CPU.

ONNX Runtime's CPU provider has no BF16 kernels and runs most FP16 operators between two Casts, so
FP32 is the only type in which every model runs there, and the faster one. Ranges found in FP32 are
those of the model's mathematics; whether FP16 can hold them is asked afterwards.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

HALF_TYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type")


def upcast(model: ir.Model) -> None:
    """Make every FP16 and BF16 value, constant and type attribute FP32, in place.

    1. Initializers and tensor attributes are converted, in subgraphs and functions too.
    2. Casts to a half type become Casts to FP32.
    3. Values, inputs and outputs included, are declared FP32.
    """
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _upcast_value(value)
        for node in graph:
            _upcast_node(node)
    for function in model.functions.values():
        for node in function.all_nodes():
            _upcast_node(node)


def _upcast_value(value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is not None and tensor.dtype in HALF_TYPES:
        value.const_value = _float32(tensor)
    if value.dtype in HALF_TYPES and isinstance(value.type, ir.TensorType):
        # A new type object: a cloned model shares its type objects with the original.
        value.type = ir.TensorType(ir.DataType.FLOAT)


def _upcast_node(node: ir.Node) -> None:
    for value in node.outputs:
        _upcast_value(value)
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in HALF_TYPES:
            node.attributes[name] = ir.AttrTensor(name, _float32(attribute.value))
        elif name in _TYPE_ATTRIBUTES and attribute.value in HALF_TYPES:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
