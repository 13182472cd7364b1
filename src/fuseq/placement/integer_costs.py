"""Estimates what units cost in float and as integers, and what converting between the two costs.

Estimates serve to compare: for one sample (symbolic batch 1, other symbols
:data:`NOMINAL_LENGTH`) on one core, from the target's :class:`OperatorCosts`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from fuseq.placement.integer_units import Unit
from fuseq.placement.patterns import weighted
from fuseq.targets.fusion import Cost, OperatorCosts

NOMINAL_LENGTH = 128
"""Stands for a symbolic dimension that is no batch: tokens of a text, for example."""

_WINDOWED = frozenset({"MaxPool", "AveragePool"})
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that could be quantized, and what converting it costs.

    Attributes:
        value: The tensor.
        writer: Number of the unit whose kernel needs it quantized; None if it is written in float.
        readers: Numbers of the units that read it, once a unit.
        extra_ns: What each of ``readers`` costs more in float if this tensor's writer is integer,
            because it cannot fuse.
        float_readers: Readers that are no unit, the model's outputs included.
        quantize_ns: From float to integer.
        dequantize_ns: From integer to float, for each float reader.
    """

    value: ir.Value
    writer: int | None
    readers: tuple[int, ...]
    extra_ns: tuple[float, ...]
    float_readers: int
    quantize_ns: float
    dequantize_ns: float

    def conversion_ns(self, is_integer: Callable[[int], bool]) -> float:
        """Cost of its conversions, given which units run on integers."""
        if self.writer is not None and is_integer(self.writer):
            in_float = [
                e for r, e in zip(self.readers, self.extra_ns, strict=True) if not is_integer(r)
            ]
            return self.dequantize_ns * (self.float_readers + len(in_float)) + sum(in_float)
        return self.quantize_ns if any(map(is_integer, self.readers)) else 0.0


def elements(value: ir.Value | None, batch: frozenset[str]) -> int | None:
    """Number of elements for one sample; None where the rank is unknown.

    Where shape inference lost a dimension, the number comes from what was reshaped or multiplied.

    Args:
        value: The tensor.
        batch: Names of dimensions that are the batch.
    """
    if value is None or value.shape is None:
        return None
    producer = value.producer()
    if producer is not None and any(map(_is_lost, value.shape)):
        if producer.op_type in _VIEWS:
            return elements(producer.inputs[0], batch)
        match = weighted(producer)
        if match is not None and not match.is_conv and match.weight.const_value is not None:
            read = elements(match.data, batch)
            columns = match.weight.const_value.shape.numpy()[match.channel_axis]
            return (
                read // max(match.weight.const_value.size // columns, 1) * columns if read else read
            )
    return math.prod(_size(dim, axis, batch) for axis, dim in enumerate(value.shape))


def _is_lost(dim: int | ir.SymbolicDim) -> bool:
    """A dimension without a name, or with one that shape inference made up."""
    return not isinstance(dim, int) and (dim.value is None or dim.value.startswith("unk__"))


def batch_symbols(graph: ir.Graph) -> frozenset[str]:
    """Names of the symbolic first dimensions of the inputs."""
    firsts = [value.shape[0] for value in graph.inputs if value.shape]
    return frozenset(dim.value for dim in firsts if isinstance(dim, ir.SymbolicDim) and dim.value)


def _size(dim: int | ir.SymbolicDim, axis: int, batch: frozenset[str]) -> int:
    if isinstance(dim, int):
        return dim
    if dim.value in batch or (axis == 0 and dim.value is None):
        return 1
    return 1 if axis == 0 else NOMINAL_LENGTH


def unit_cost(unit: Unit, costs: OperatorCosts, batch: frozenset[str]) -> Cost | None:
    """Cost of one unit, measured if it was; None where a shape is unknown."""
    if unit.name in costs.measured:
        return costs.measured[unit.name]
    out = elements(unit.core.outputs[0], batch)
    if out is None:
        return None
    if unit.weighted is not None:
        return _weighted_cost(unit, costs, out)
    element = costs.element.get(unit.core.op_type, costs.other)
    kernel_ns = 0.0 if unit.core.op_type in _VIEWS else costs.kernel_ns
    count = _work(unit, out, batch)
    return Cost(count * element.float_ns + kernel_ns, count * element.integer_ns + kernel_ns)


def _weighted_cost(unit: Unit, costs: OperatorCosts, out: int) -> Cost:
    match = unit.weighted
    assert match is not None  # the caller asked
    shape = match.weight.const_value.shape.numpy() if match.weight.const_value is not None else ()
    macs = out * (math.prod(shape) // max(shape[match.channel_axis], 1))
    if not match.is_conv:
        mac, output = costs.linear_mac, Cost(0.0, 0.0)
    elif match.groups > 1:
        mac, output = costs.depthwise_mac, costs.depthwise_output
    else:
        mac, output = costs.conv_mac, costs.conv_output
    return Cost(
        macs * mac.float_ns + out * output.float_ns + costs.kernel_ns,
        macs * mac.integer_ns + out * output.integer_ns + costs.kernel_ns,
    )


def _work(unit: Unit, out: int, batch: frozenset[str]) -> int:
    """Elements that an operator without weights goes through."""
    if unit.core.op_type in _WINDOWED:
        window = unit.core.attributes.get_ints("kernel_shape", ()) or ()
        return out * math.prod(int(side) for side in window)
    read = [elements(unit.core.inputs[use.index], batch) or 0 for use in unit.inputs]
    return max(out, *read)


def tensors_of(
    graph: ir.Graph, units: Sequence[Unit], costs: OperatorCosts, batch: frozenset[str]
) -> list[Tensor]:
    """Every tensor that a unit reads or writes, in graph order of the units."""
    readers: dict[ir.Value, list[int]] = {}
    writers: dict[ir.Value, int] = {}
    for number, unit in enumerate(units):
        for use in unit.inputs:
            value = unit.core.inputs[use.index]
            if value is not None:
                readers.setdefault(value, []).append(number)
        for value in unit.outputs:
            readers.setdefault(value, [])
            if not unit.writes_float:
                writers[value] = number
    found = []
    for value, reading in readers.items():
        count = elements(value, batch) or 0
        outputs = sum(output is value for output in graph.outputs)
        by_unit = tuple(dict.fromkeys(reading))
        unfused = [costs.unfused_ns.get(units[reader].core.op_type, 0.0) for reader in by_unit]
        found.append(
            Tensor(
                value=value,
                writer=writers.get(value),
                readers=by_unit,
                extra_ns=tuple(count * each for each in unfused),
                float_readers=len(value.uses()) - len(reading) + outputs,
                quantize_ns=count * costs.quantize_ns + costs.kernel_ns,
                dequantize_ns=count * costs.dequantize_ns + costs.kernel_ns,
            )
        )
    return found
