"""Rows of a document that say, layer by layer, what runs in which precision and why."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from fuseq.placement.plan import Plan, Region
from fuseq.report.document import EngineRow, LayerRow
from fuseq.source_lines import source_line


def layer_rows(
    plan: Plan, model: ir.Model, engine: EngineRow | None, modules: Mapping[str, str]
) -> tuple[LayerRow, ...]:
    """One row a region of the plan, in graph order.

    Args:
        plan: What was decided.
        model: The quantized model.
        engine: Its engine, None where nothing compiles here.
        modules: Module path by node name.
    """
    nodes = {node.name or "": node for node in model.graph}
    precision = {} if engine is None else precisions(engine)
    formats: dict[str, set[str]] = {}
    for entry in plan.tensors:
        if entry.kind == "activation":
            formats.setdefault(entry.region, set()).add(entry.format)
    order = {name: number for number, name in enumerate(nodes)}
    regions = sorted(plan.regions, key=lambda region: order.get(region.name, len(order)))
    return tuple(
        LayerRow(
            name=region.name,
            pattern=region.pattern,
            op_type=nodes[region.name].op_type if region.name in nodes else "",
            module=_first(region, modules),
            source=_source(region, nodes),
            quantized=region.quantized,
            planned_precision=_planned(region, plan, formats),
            engine_precision=next(
                (precision[n] for n in (region.name, *region.nodes) if n in precision), ""
            ),
            reason=region.reason,
        )
        for region in regions
    )


def precisions(engine: EngineRow) -> dict[str, str]:
    """Precision by node name; a kernel with products wins over one that only moves."""
    found: dict[str, str] = {}
    for kernel in sorted(engine.kernels, key=lambda kernel: bool(kernel.compute_dtype)):
        found.update(dict.fromkeys(kernel.nodes, kernel.precision))
    return found


def _planned(region: Region, plan: Plan, formats: Mapping[str, set[str]]) -> str:
    if not region.quantized:
        return plan.precision
    return "+".join(sorted(formats.get(region.name, ()))) or plan.format


def _first(region: Region, modules: Mapping[str, str]) -> str:
    return next((modules[n] for n in (region.name, *region.nodes) if n in modules), "")


def _source(region: Region, nodes: Mapping[str, ir.Node]) -> str:
    lines = (source_line(nodes[n]) for n in (region.name, *region.nodes) if n in nodes)
    return next((line for line in lines if line), "")
