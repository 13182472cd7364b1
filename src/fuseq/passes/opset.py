"""Raise the opset to the one whose Q/DQ know every format, and whose operators carry types plainly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from fuseq.errors import ModelError
from fuseq.passes.clean import fold_constants
from fuseq.passes.shapes import infer_shapes

if TYPE_CHECKING:
    import onnx

OPSET = 21
"""Lowest opset that files leave with. 19 brought FP8 Q/DQ, 21 block scales, INT4 and 16-bit types
of GroupNormalization. TensorRT-RTX 1.7.1 parses 21 to 25 and ONNX Runtime 1.22 all of them; a file
that is newer keeps its opset, because lowering it can lose meaning."""

BFLOAT16_OPSET = 22
"""Opset whose Conv, pooling and most other operators know BFLOAT16."""

_IR_VERSION = 10
"""IR version that opset 21 came with; before version 4 every initializer had to be an input."""

_SCRIPT_CONVERTER_FROM = 18
"""The converter of onnxscript starts here; below it the C++ converter of onnx goes first."""


_SAME_UNTIL = 21
_CHANGED = frozenset({"DFT", "GridSample", "GroupNormalization"})
"""Operators whose meaning changed from opset 18 to 21; the others only got more types and optional
attributes (ONNX, docs/Changelog.md, versions 19 to 21)."""

_BIG_BYTES = 4096


def raise_opset(model: ir.Model) -> list[str]:
    """Convert ``model`` in place to OPSET, or BFLOAT16_OPSET if it holds BF16, when it is older.

    Raises:
        ModelError: A node has no conversion; the message has the converter's words.
    """
    model.ir_version = max(model.ir_version or 0, _IR_VERSION)
    version = model.opset_imports.get("")
    wanted = BFLOAT16_OPSET if _holds_bfloat16(model) else OPSET
    if version is None or version >= wanted:
        return []
    if version < _SCRIPT_CONVERTER_FROM:
        fold_constants(model)
        infer_shapes(model)  # Softmax-12 converts plainly only where the converter sees the rank
        _convert_by_onnx(model, version)
    raise_to(model, wanted)
    return []


def raise_to(model: ir.Model, opset: int) -> None:
    """Convert a ``model`` of opset 18 or newer in place to ``opset``, unless it is newer.

    Raises:
        ModelError: A node has no conversion; the message has the converter's words.
    """
    version = model.opset_imports.get("", opset)
    if version >= opset:
        return
    operators = {node.op_type for node in model.graph.all_nodes() if node.domain == ""}
    if version >= _SCRIPT_CONVERTER_FROM and opset <= _SAME_UNTIL and not operators & _CHANGED:
        model.opset_imports[""] = opset
        return
    from onnxscript import version_converter  # noqa: PLC0415 (takes a second to import)

    try:
        version_converter.ConvertVersionPass(opset, fallback=False)(model)
    except (RuntimeError, ValueError, ir.passes.PassError) as error:
        raise _cannot(model, error) from error


def _holds_bfloat16(model: ir.Model) -> bool:
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    return any(value.dtype == ir.DataType.BFLOAT16 for value in values)


def _convert_by_onnx(model: ir.Model, version: int) -> None:
    """Convert to 18 with the C++ converter; big weights stay here and do not travel through it."""
    from onnx import version_converter  # noqa: PLC0415

    slim, stayed = _without_big_weights(model)
    try:
        converted = version_converter.convert_version(slim, _SCRIPT_CONVERTER_FROM)
    except RuntimeError as error:
        raise _cannot(model, error) from error
    graph = ir.from_proto(converted).graph
    for value in [value for value in graph.inputs if value.name in stayed]:
        value.const_value = stayed[value.name or ""]
        graph.inputs.remove(value)
        graph.register_initializer(value)
    _keep_metadata(model.graph, graph)
    model.graph = graph


def _without_big_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return the model's proto where weights over _BIG_BYTES are inputs, and those weights."""
    slim = model.clone()
    stayed: dict[str, ir.TensorProtocol] = {}
    for name, value in list(slim.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > _BIG_BYTES:
            stayed[name] = tensor
            value.dtype, value.shape = tensor.dtype, ir.Shape(tensor.shape.numpy())
            slim.graph.initializers.pop(name)
            value.const_value = None
            slim.graph.inputs.append(value)
    return ir.to_proto(slim), stayed


def _keep_metadata(old: ir.Graph, new: ir.Graph) -> None:
    """The C++ converter drops ``metadata_props``; nodes that kept their outputs get theirs back."""
    by_output = {value.name: node for node in old for value in node.outputs}
    for node in new:
        for value in node.outputs:
            was = by_output.get(value.name)
            if was is not None:
                node.metadata_props.update(was.metadata_props)
                node.doc_string = node.doc_string or was.doc_string
                break


def _cannot(model: ir.Model, error: Exception) -> ModelError:
    return ModelError(
        f"the model of opset {model.opset_imports.get('')} cannot be converted to opset {OPSET} "
        f"({str(error).strip().splitlines()[0]}); export it with opset_version={OPSET}."
    )
