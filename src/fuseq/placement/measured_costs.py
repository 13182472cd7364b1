"""What operators cost on this machine, read from two profiled engines: float, and all integer.

Where the target runs here, its own kernels replace the table of estimated costs: each kernel's
time goes to the operator that it runs. Conversions are scaled by the one that both engines' table
knows, the quantization of the input.

1. A float kernel that absorbed a residual Add belongs to its convolution; the Add costs nothing in
   float.
2. Kernels that only convert belong to no operator: they stand where the plan's ends are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from fuseq.placement.cells import Trial, owners_of
from fuseq.placement.integer_costs import batch_symbols, elements
from fuseq.placement.integer_units import Unit
from fuseq.targets.base import Engine, Kernel, KernelType, ShapeProfile
from fuseq.targets.fusion import Cost, OperatorCosts

_LEAST_ELEMENTS = 1 << 14
"""Smaller conversions take as long as their launch, which says nothing about an element."""


def measured_costs(
    units: Sequence[Unit],
    float_engine: Engine,
    trial: Trial,
    table: OperatorCosts,
    samples: float,
) -> OperatorCosts:
    """``table`` with the measured times of ``units``, for one sample.

    Args:
        units: Operators that run on integers in ``trial``.
        float_engine: The float model, profiled.
        trial: The plan of everything, profiled.
        table: Estimated costs.
        samples: Samples in one profiled run (:func:`samples_in`).
    """
    in_float = _ns_by_unit(units, float_engine.kernels, {})
    on_integers = _ns_by_unit(units, trial.engine.kernels, owners_of(trial))
    scale = _conversion_scale(trial.engine.kernels, table)
    return dataclasses.replace(
        table,
        quantize_ns=table.quantize_ns * scale,
        dequantize_ns=table.dequantize_ns * scale,
        unfused_ns={op_type: ns * scale for op_type, ns in table.unfused_ns.items()},
        kernel_ns=table.kernel_ns / samples,
        measured={
            unit.name: Cost(
                in_float.get(unit.name, 0.0) / samples, on_integers.get(unit.name, 0.0) / samples
            )
            for unit in units
        },
    )


def samples_in(graph: ir.Graph, profile: ShapeProfile) -> float:
    """How many samples, as :mod:`integer_costs` counts them, one run of ``profile`` has."""
    batch = batch_symbols(graph)
    for value in graph.inputs:
        shape = profile.optimum.get(value.name or "")
        one = elements(value, batch)
        if shape and one:
            return math.prod(shape) / one
    return 1.0


def _ns_by_unit(
    units: Sequence[Unit], kernels: Iterable[Kernel], owners: Mapping[str, tuple[str, ...]]
) -> dict[str, float]:
    """Nanoseconds by unit; a kernel of several belongs to the first that has weights."""
    order = {unit.name: number for number, unit in enumerate(units)}
    weighted = {unit.name for unit in units if unit.weighted is not None}
    homes = {node.name or "": unit.name for unit in units for node in unit.nodes}
    found: dict[str, float] = {}
    for kernel in kernels:
        if kernel.is_alone:
            continue
        named = [homes[node] for node in kernel.nodes if node in homes]
        named = named or [name for node in kernel.nodes for name in owners.get(node, ())]
        known = [name for name in named if name in order]
        if known:
            first = min(known, key=lambda name: (name not in weighted, order[name]))
            found[first] = found.get(first, 0.0) + (kernel.measured_us or 0.0) * 1e3
    return found


def _conversion_scale(kernels: Iterable[Kernel], table: OperatorCosts) -> float:
    """Measured time of the engine's large quantizations over what the table says."""
    measured = estimated = 0.0
    for kernel in kernels:
        count = sum(math.prod(tensor.shape) for tensor in kernel.outputs)
        if kernel.type is KernelType.QUANTIZE and count >= _LEAST_ELEMENTS:
            measured += (kernel.measured_us or 0.0) * 1e3
            estimated += count * table.quantize_ns
    return measured / estimated if measured and estimated else 1.0
