"""Scales that a quantized file carries, kept with their tensors while the graph changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.ranges import Range
from fuseq.formats import Format
from fuseq.passes.quantizers import Quantizer
from fuseq.placement.plan import Kind, Use


@dataclasses.dataclass(frozen=True)
class FoundScale:
    """The scale that the file has for one tensor of the stripped float graph.

    Attributes:
        tensor: Name of the value.
        kind: ``activation``, ``weight`` or ``bias`` (stored as INT32).
        by: Scale, zero point, stored type, axis.
        uses: Readers that saw the quantized tensor; node ``""`` is the model's own output.
        nodes: Names of the Q/DQ nodes in the file.
        reach: Part of the stored type's range that the tool's largest values take
            (:func:`float8_reach`); 1 for integers.
    """

    tensor: str
    kind: Kind
    by: Quantizer
    uses: tuple[Use, ...]
    nodes: tuple[str, ...]
    reach: float = 1.0

    @property
    def is_centred(self) -> bool:
        """Its values lie around 0 as those of a symmetric format: zero point 0, or UINT8 with 128."""
        return _is_centred(self.by)

    def range_for(self, fmt: Format) -> Range:
        """The range to calibrate ``fmt`` with, so that an equal format gets the same scale bits.

        1. Symmetric ``fmt``, centred values: ``qmax * scale`` on both sides. UINT8 with zero point
           128 stores the integers of INT8 plus 128, so nothing is lost.
        2. Symmetric ``fmt``, other zero points: ``amax = max(|low|, |high|)`` of the stored range.
        3. Asymmetric ``fmt``: the stored range, ``(qmin - z) * scale`` to ``(qmax - z) * scale``.
        4. Another format than the file's: as much of the stored range as its tool fills (``reach``).

        A scale a channel gives the range that holds all channels.
        """
        scale = self.by.scale.astype(np.float64)
        if self.by.format != fmt.name:  # case 4
            scale = scale * self.reach
        low = (self.by.qmin - self.by.zero_point) * scale
        high = (self.by.qmax - self.by.zero_point) * scale
        if not fmt.symmetric:
            return Range(float(low.min()), float(high.max()))
        amax = float((high if self.is_centred else np.maximum(-low, high)).max())
        return Range(-amax, amax)


def _is_centred(by: Quantizer) -> bool:
    middle = 128 if by.stored == ir.DataType.UINT8 else 0
    if by.stored == ir.DataType.UINT16:
        middle = 32768
    return bool((by.zero_point == middle).all())


@dataclasses.dataclass(frozen=True)
class Mark:
    """A scale on its way: its readers tell which tensor it belongs to, whatever becomes of names.

    Attributes:
        by: The scale.
        kind: See :class:`FoundScale`.
        value: The tensor when the pair was taken away.
        readers: (node, input number) of each reader of the quantized tensor.
        outputs: Numbers of the model's outputs that were the quantized tensor.
        nodes: Names of the Q/DQ nodes.
    """

    by: Quantizer
    kind: Kind
    value: ir.Value
    readers: tuple[tuple[ir.Node, int], ...]
    outputs: tuple[int, ...]
    nodes: tuple[str, ...]


def settle(graph: ir.Graph, marks: list[Mark]) -> tuple[FoundScale, ...]:
    """Name the tensor of each mark as the graph is now.

    1. The tensor is what the mark's readers read: a pass that removes a value without changing it
       lets them read another that is the same.
    2. Where all readers are gone, it is the value itself, if the graph still has it.
    3. Marks of one tensor with one scale are one.
    """
    found: dict[tuple[object, ...], FoundScale] = {}
    for mark in marks:
        for value, uses in _places(graph, mark).items():
            scale = FoundScale(value.name or "", mark.kind, mark.by, tuple(uses), mark.nodes)
            key = _key(scale)
            known = found.get(key)
            found[key] = scale if known is None else _joined(known, scale)
    return tuple(found.values())


def _places(graph: ir.Graph, mark: Mark) -> dict[ir.Value, list[Use]]:
    places: dict[ir.Value, list[Use]] = {}
    for node, index in mark.readers:
        value = node.inputs[index] if node.graph is graph and index < len(node.inputs) else None
        if value is not None:
            places.setdefault(value, []).append(Use(node.name or "", index))
    for number in mark.outputs:
        places.setdefault(graph.outputs[number], []).append(Use("", number))
    if not places and _is_alive(graph, mark.value):
        places[mark.value] = []
    return places


def _is_alive(graph: ir.Graph, value: ir.Value) -> bool:
    maker = value.producer()
    if maker is not None:
        return maker.graph is graph
    return graph.initializers.get(value.name or "") is value or value in graph.inputs


def _key(scale: FoundScale) -> tuple[object, ...]:
    by = scale.by
    return (
        scale.tensor, scale.kind, by.scale.tobytes(), by.zero_point.tobytes(), by.stored, by.axis
    )  # fmt: skip


def _joined(one: FoundScale, other: FoundScale) -> FoundScale:
    return dataclasses.replace(
        one,
        uses=tuple(dict.fromkeys((*one.uses, *other.uses))),
        nodes=tuple(dict.fromkeys((*one.nodes, *other.nodes))),
    )


def float8_reach(model: ir.Model, found: Sequence[FoundScale]) -> float:
    """The largest stored magnitude of a file's FP8 weights, as part of 448; median over channels.

    A float format loses nothing where its largest values are not used, so tools differ: ModelOpt's ONNX
    quantizer calibrates for INT8 and multiplies the scales by 448/127, which brings the largest values to
    36 of 448. Integers of the same range would lose 3.6 of their 8 bits. Its weights tell the habit.

    Args:
        model: The stripped float model.
        found: Its scales by its names.

    Returns:
        1 without FP8 weights, and where more than 0.9 is used.
    """
    parts: list[np.ndarray] = []
    for scale in found:
        value = model.graph.initializers.get(scale.tensor)
        tensor = value.const_value if value is not None else None
        if scale.kind != "weight" or scale.by.format != "fp8" or tensor is None:
            continue
        rows = np.moveaxis(np.abs(tensor.numpy()), scale.by.axis or 0, 0)
        largest = rows.reshape(scale.by.scale.size, -1).max(1, initial=0.0)
        part = largest / scale.by.scale.reshape(-1) / scale.by.qmax
        parts.append(part[part > 0])
    filled = np.concatenate(parts) if parts else np.ones(1)
    reach = float(np.median(filled)) if filled.size else 1.0
    return reach if reach < _FULL_REACH else 1.0


_FULL_REACH = 0.9
