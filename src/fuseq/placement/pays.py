"""Takes out of a plan what does not pay, judged by two compiled engines: float and planned.

A kernel can serve several regions (a LayerNorm that also writes the next layer's FP8 input), so
regions that share a kernel in either engine are judged together, as one cell. Cells share no kernel:
leaving one in float changes no other cell's kernels, only what lies in the cache between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from fuseq.placement.plan import Plan, Prediction
from fuseq.targets.base import Engine, Kernel

MAX_ROUNDS = 4
"""Compiles spent on taking out losers; each round only removes, so it ends anyway."""

MAX_STRANDED_TRIALS = 8
"""Compiles spent on kernels alone in cells of several regions."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A plan, the quantized model and its engine, and which regions each inserted node serves."""

    plan: Plan
    engine: Engine
    served: Mapping[str, tuple[str, ...]]
    model: ir.Model


@dataclasses.dataclass(frozen=True)
class Cell:
    """Regions judged together, with their predicted time in both engines."""

    regions: tuple[str, ...]
    float_us: float
    quantized_us: float

    @property
    def gain_us(self) -> float:
        """Predicted time saved by quantizing; negative when it costs."""
        return self.float_us - self.quantized_us


def keep_what_pays(
    plan: Plan, float_engine: Engine, compile_plan: Callable[[Plan], Trial]
) -> Trial | None:
    """Compile, drop the cells that lose, and repeat until none does.

    Args:
        plan: Everything the target runs in the format.
        float_engine: Engine of the same model without Q/DQ.
        compile_plan: Applies a plan and compiles it.

    Returns:
        The best trial, whose engine is predicted faster than the float one; None if there is none.
    """
    best: Trial | None = None
    current = plan
    for _ in range(MAX_ROUNDS):
        if not current.tensors:
            break
        trial = compile_plan(current)
        if best is None or trial.engine.predicted_us < best.engine.predicted_us:
            best = trial
        losers = _losers(cells_of(trial, float_engine))
        if not losers:
            break
        current = current.without(losers, losers)
    if best is not None:
        best = _without_stranded(best, float_engine, compile_plan)
    if best is None or best.engine.predicted_us >= float_engine.predicted_us:
        return None
    return dataclasses.replace(best, plan=_with_reasons(best, float_engine))


def _without_stranded(
    best: Trial, float_engine: Engine, compile_plan: Callable[[Plan], Trial]
) -> Trial:
    """Leave in float what a kernel alone serves, wherever that is predicted faster.

    A cell of many regions can gain as a whole and still hold one that loses; a cell of one region
    has been judged already. Equal kernels (24 equal blocks) are tried together.
    """
    crowded = {
        name
        for cell in cells_of(best, float_engine)
        if len(cell.regions) > 1
        for name in cell.regions
    }
    groups = [regions for regions in _served_alone(best) if crowded.intersection(regions)]
    for regions in groups[:MAX_STRANDED_TRIALS]:
        left = [name for name in regions if name in _quantized(best.plan)]
        reason = "float: its Q or DQ would run as a kernel of its own and cost more than it saves"
        candidate = best.plan.without(left, f"{reason} (predicted)")
        if not left or not candidate.tensors:
            continue
        trial = compile_plan(candidate)
        if trial.engine.predicted_us < best.engine.predicted_us:
            best = trial
    return best


def _served_alone(trial: Trial) -> list[list[str]]:
    """Regions that kernels alone serve, by equal kernels, the costliest first."""
    groups: dict[tuple[object, ...], list[str]] = {}
    costs: dict[tuple[object, ...], float] = {}
    for kernel in trial.engine.alone:
        served = [name for node in kernel.nodes for name in trial.served.get(node, ())]
        if not served:
            continue
        key = tuple((t.shape, t.dtype) for t in (*kernel.inputs, *kernel.outputs))
        groups.setdefault(key, [])
        groups[key] += [name for name in served if name not in groups[key]]
        costs[key] = costs.get(key, 0.0) + (kernel.predicted_us or 0.0)
    return [groups[key] for key in sorted(groups, key=lambda key: -costs[key])]


def _quantized(plan: Plan) -> set[str]:
    return {region.name for region in plan.regions if region.quantized}


def cells_of(trial: Trial, float_engine: Engine) -> list[Cell]:
    """Group regions by shared kernels and sum each group's predicted times in both engines."""
    owners = _owners(trial)
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            name = parent[name]
        return name

    charged: list[tuple[Kernel, str, bool]] = []
    for engine, is_float in ((float_engine, True), (trial.engine, False)):
        for kernel in engine.kernels:
            names = [name for node in kernel.nodes for name in owners.get(node, (node,))]
            for name in names[1:]:
                parent[root(name)] = root(names[0])
            if names:
                charged.append((kernel, names[0], is_float))
    sums: dict[str, list[float]] = {}
    for kernel, name, is_float in charged:
        pair = sums.setdefault(root(name), [0.0, 0.0])
        pair[0 if is_float else 1] += kernel.predicted_us or 0.0
    members: dict[str, list[str]] = {}
    for region in trial.plan.regions:
        if region.quantized:
            members.setdefault(root(region.name), []).append(region.name)
    return [Cell(tuple(regions), *sums.get(name, [0.0, 0.0])) for name, regions in members.items()]


def prediction_of(float_engine: Engine, engine: Engine) -> Prediction:
    """The figures that a plan keeps of both engines."""
    return Prediction(
        float_us=round(float_engine.predicted_us, 3),
        quantized_us=round(engine.predicted_us, 3),
        float_kernels=len(float_engine.kernels),
        quantized_kernels=len(engine.kernels),
        float_activation_bytes=float_engine.activation_bytes,
        quantized_activation_bytes=engine.activation_bytes,
    )


def _owners(trial: Trial) -> dict[str, tuple[str, ...]]:
    """Regions by node name: of the float graph and of the inserted nodes."""
    owners: dict[str, tuple[str, ...]] = {}
    for region in trial.plan.regions:
        if region.quantized:
            for node in region.nodes:
                owners[node] = (*owners.get(node, ()), region.name)
    owners.update(trial.served)
    return owners


def _losers(cells: list[Cell]) -> dict[str, str]:
    return {
        region: (
            f"float: quantized it would take {cell.quantized_us:.1f} us against "
            f"{cell.float_us:.1f} us in float{_company(cell)} (predicted)"
        )
        for cell in cells
        if cell.gain_us <= 0
        for region in cell.regions
    }


def _with_reasons(trial: Trial, float_engine: Engine) -> Plan:
    """Add to each kept region what it gains."""
    gains = {region: cell for cell in cells_of(trial, float_engine) for region in cell.regions}
    regions = tuple(
        dataclasses.replace(
            region,
            reason=f"{region.reason}; {gains[region.name].quantized_us:.1f} us against "
            f"{gains[region.name].float_us:.1f} us in float{_company(gains[region.name])} "
            "(predicted)",
        )
        if region.name in gains
        else region
        for region in trial.plan.regions
    )
    return dataclasses.replace(
        trial.plan, regions=regions, prediction=prediction_of(float_engine, trial.engine)
    )


def _company(cell: Cell) -> str:
    others = len(cell.regions) - 1
    return f" together with {others} regions that share its kernels" if others else ""
