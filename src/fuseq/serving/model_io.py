"""Inputs and outputs of a model as a server declares them, and whether requests can be batched.

A server can batch requests when every input and output has the batch as its first axis. It is one
when it is dynamic: for the inputs the same symbol everywhere, for the outputs any dynamic size. An
input that is nothing but the batch, ``[N]``, counts too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from fuseq.errors import ModelError
from fuseq.model import input_specs


@dataclasses.dataclass(frozen=True)
class Port:
    """One input or output: ``shape`` holds an int, or -1 for any size, per axis, the batch included."""

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ModelIo:
    """Everything that goes in and out.

    Attributes:
        inputs: In the model's order.
        outputs: In the model's order.
        batched: The first axis of every one is the batch.
        reason: Why it is not, "" when it is.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batched: bool
    reason: str = ""


def model_io(model: ir.Model) -> ModelIo:
    """Read inputs and outputs; shapes of outputs are inferred where the file does not state them.

    Raises:
        ModelError: An input or output whose rank or type is not known.
    """
    inputs = {spec.name: spec.shape for spec in input_specs(model)}
    outputs = _outputs(model)
    dtypes = {value.name: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    for name, shape in {**inputs, **outputs}.items():
        if shape is None or dtypes[name] is None:
            raise ModelError(
                f"the rank or type of {name!r} is not in the file and cannot be inferred; export "
                "the model with shapes."
            )
    reason = _unbatchable(inputs, outputs)
    return ModelIo(
        tuple(_port(name, dtypes[name], shape) for name, shape in inputs.items()),
        tuple(_port(name, dtypes[name], shape) for name, shape in outputs.items()),
        not reason,
        reason,
    )


Shape = tuple[int | str, ...] | None


def _outputs(model: ir.Model) -> dict[str, Shape]:
    shapes = {value.name or "": _shape(value) for value in model.graph.outputs}
    if any(shape is None for shape in shapes.values()):
        proto = ir.to_proto(_without_weights(model))
        inferred = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
        shapes = {value.name or "": _shape(value) for value in inferred.graph.outputs}
    return shapes


def _without_weights(model: ir.Model) -> ir.Model:
    """A copy whose weights are inputs: shape inference reads their shapes only."""
    copy = model.clone()
    for value in list(copy.graph.initializers.values()):
        if value.const_value is not None and value.const_value.nbytes > 1024:
            copy.graph.initializers.pop(value.name or "")
            if value not in copy.graph.inputs:
                copy.graph.inputs.append(value)
    return copy


def _shape(value: ir.Value) -> Shape:
    if value.shape is None:
        return None
    return tuple(
        dim if isinstance(dim, int) else (dim.value or f"?{axis}")
        for axis, dim in enumerate(value.shape)
    )


def _unbatchable(inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> str:
    """Why requests cannot be batched, "" when they can."""
    for name, shape in {**inputs, **outputs}.items():
        if not shape:
            return f"{name!r} is a scalar: it has no batch axis"
        if isinstance(shape[0], int):
            return f"the first axis of {name!r} is always {shape[0]}"
    first = {shape[0] for shape in inputs.values() if shape}
    if len(first) > 1:
        names = ", ".join(sorted(str(symbol) for symbol in first))
        return f"the first axes of the inputs have different names: {names}"
    return ""


def _port(name: str, dtype: ir.DataType | None, shape: Shape) -> Port:
    sizes = tuple(dim if isinstance(dim, int) else -1 for dim in shape or ())
    return Port(name, dtype or ir.DataType.UNDEFINED, sizes)
