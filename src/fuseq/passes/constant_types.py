"""Constants take the float type of the tensor that they meet."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.convert_weights import converted
from fuseq.passes.float_slots import FLOATS, slots_of
from fuseq.passes.matching import constant
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant


def unify_constant_types(model: ir.Model) -> list[str]:
    """Convert a constant whose float type differs from the node's computed inputs.

    torch.onnx.export(dynamo=True) folds BatchNormalization into the FP32 weights of a BF16 or FP16
    Conv and leaves them FP32: the file is not valid ONNX, and TensorRT refuses it ("Conv input
    Half, kernel Float"). Q/DQ scales are left to :func:`fuseq.passes.typing.set_precision`.
    """
    taken = value_names(model)
    mended = 0
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        slots = slots_of(node, model.opset_imports.get("", 0))
        inputs = [(index, node.inputs[index]) for index in slots.inputs]
        computed = {
            value.dtype for _, value in inputs if value is not None and constant(value) is None
        }
        if slots.as_is or len(computed) != 1 or not computed <= FLOATS:
            continue
        wanted = next(iter(computed))
        for index, value in inputs:
            tensor = constant(value)
            if value is None or tensor is None or wanted is None or tensor.dtype == wanted:
                continue
            name = value.name or "constant"
            made = new_constant(model.graph, name, converted(tensor, wanted), taken)
            node.replace_input_with(index, made)
            mended += 1
    if not mended:
        return []
    return [f"{mended} constants had another float type than the tensors they meet; converted."]
