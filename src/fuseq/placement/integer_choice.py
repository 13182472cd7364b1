"""Chooses the units that run on integers: the split of least estimated cost, found exactly.

Each unit costs its float or its integer time; each tensor between the two kinds costs a conversion.
That is a minimum cut (:mod:`fuseq.placement.min_cut`): units on the source's side run on integers.
Islands that do not repay their conversions therefore stay float as a whole, without thresholds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from fuseq.placement.integer_costs import Tensor
from fuseq.placement.min_cut import UNCUTTABLE, Network
from fuseq.targets.fusion import Cost

MARGIN = 0.05
"""Integer times count this much more: an estimate must promise a twentieth to be believed."""


_NOUN = {"estimated": "estimate", "measured": "measurement"}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated time of the units and their conversions, for one sample on one core.

    Attributes:
        float_ns: All units in float.
        planned_ns: With the chosen units on integers.
    """

    float_ns: float
    planned_ns: float


def choose_units(
    costs: Sequence[Cost], tensors: Sequence[Tensor], forced: Set[int] = frozenset()
) -> frozenset[int]:
    """Numbers of the units to run on integers; a tie stays float.

    Args:
        costs: Cost by unit number.
        tensors: The tensors between units and the rest.
        forced: Units that run on integers whatever it costs.
    """
    network = Network()
    nodes = [network.add_node() for _ in costs]
    for number, (node, cost) in enumerate(zip(nodes, costs, strict=True)):
        to_float = UNCUTTABLE if number in forced else _whole(cost.float_ns)
        network.add_edge(network.SOURCE, node, to_float)
        network.add_edge(node, network.SINK, _whole(cost.integer_ns * (1 + MARGIN)))
    for tensor in tensors:
        _add_conversions(network, nodes, tensor)
    chosen = network.source_side()
    return frozenset(number for number, node in enumerate(nodes) if node in chosen)


def _add_conversions(network: Network, nodes: Sequence[int], tensor: Tensor) -> None:
    """One quantization for all integer readers; a dequantization for each float reader."""
    float_side = network.SINK if tensor.writer is None else nodes[tensor.writer]
    if tensor.readers:
        quantized = network.add_node()
        network.add_edge(quantized, float_side, _whole(tensor.quantize_ns))
        for reader in tensor.readers:
            network.add_edge(nodes[reader], quantized, UNCUTTABLE)
    if tensor.writer is None:
        return
    for reader, extra_ns in zip(tensor.readers, tensor.extra_ns, strict=True):
        price = _whole(tensor.dequantize_ns + extra_ns)
        network.add_edge(nodes[tensor.writer], nodes[reader], price)
    once = _whole(tensor.dequantize_ns)
    network.add_edge(nodes[tensor.writer], network.SINK, once * tensor.float_readers)


def _whole(nanoseconds: float) -> int:
    """Picoseconds, so that capacities are whole numbers."""
    return round(nanoseconds * 1000)


def estimate(costs: Sequence[Cost], tensors: Sequence[Tensor], chosen: frozenset[int]) -> Estimate:
    """Estimated times of the whole; :data:`MARGIN` is not in them."""
    planned = sum(
        cost.integer_ns if number in chosen else cost.float_ns for number, cost in enumerate(costs)
    )
    planned += sum(tensor.conversion_ns(chosen.__contains__) for tensor in tensors)
    return Estimate(sum(cost.float_ns for cost in costs), planned)


def why_float(
    number: int,
    costs: Sequence[Cost],
    tensors: Sequence[Tensor],
    chosen: frozenset[int],
    known_by: str = "estimated",
) -> str:
    """Why a unit that could run on integers stays float, with the numbers that decided.

    Args:
        number: The unit.
        costs: Cost by unit number.
        tensors: The tensors between units and the rest.
        chosen: Units that run on integers.
        known_by: ``estimated`` or ``measured``: where the costs come from.
    """
    cost = costs[number]
    if cost.float_ns == 0:
        return "it costs nothing in float, and what stands around it is float"
    if cost.integer_ns >= cost.float_ns:
        return (
            f"its integer kernel is {known_by} at {cost.integer_ns / 1e3:.1f} us a sample, "
            f"the float one at {cost.float_ns / 1e3:.1f} us"
        )
    touched = [t for t in tensors if number in t.readers or t.writer == number]
    flipped = chosen | {number}
    converting_ns = sum(
        t.conversion_ns(flipped.__contains__) - t.conversion_ns(chosen.__contains__)
        for t in touched
    )
    saved_ns = cost.float_ns - cost.integer_ns
    if saved_ns > converting_ns:
        return (
            f"integers would save {(saved_ns - converting_ns) / 1e3:.1f} of "
            f"{cost.float_ns / 1e3:.1f} us a sample, less than the error of the {_NOUN[known_by]}"
        )
    return (
        f"integers would save {saved_ns / 1e3:.1f} us a sample, and converting at its ends "
        f"would cost {converting_ns / 1e3:.1f} us ({known_by})"
    )
