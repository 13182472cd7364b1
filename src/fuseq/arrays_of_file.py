"""Weights that lie in the ONNX file itself become arrays once, and the file's message is given back.

onnx_ir reads such a weight out of the message each time that it is asked for its values, which copies
it: ResNet-50's 100 MB dozens of times on the way to a plan.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir


def hold_arrays(model: ir.Model) -> None:
    """Replace every tensor of ``model`` that refers to the message it was read from, in place.

    1. Bytes as ONNX stores them become an array, same shape, type and values.
    2. Other spellings (fields of numbers, two 4-bit values a byte) are copied as they are: one tensor
       that referred to the message would keep all of it in memory.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.serde.TensorProtoTensor):
                value.const_value = _held(value.const_value)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
                    continue
                tensor = attribute.as_tensor()
                if isinstance(tensor, ir.serde.TensorProtoTensor):
                    held = ir.AttrTensor(name, _held(tensor), doc_string=attribute.doc_string)
                    node.attributes[name] = held


def _held(tensor: ir.serde.TensorProtoTensor) -> ir.TensorProtocol:
    if tensor.raw.HasField("raw_data") and tensor.dtype.bitwidth >= 8:  # case 1
        return ir.Tensor(
            tensor.numpy(),
            dtype=tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )
    proto = onnx.TensorProto()  # case 2
    proto.CopyFrom(tensor.raw)
    return ir.serde.TensorProtoTensor(proto)
