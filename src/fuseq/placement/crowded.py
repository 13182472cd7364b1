"""Looks inside cells of several regions, which gain together: some of their regions may still lose.

1. Regions whose Q or DQ runs as a kernel of its own, by equal kernels.
2. Classes of regions (24 equal blocks have few) whose own kernels lose: the layer before an output,
   whose bias and scale become a kernel.
3. Where the cell gains little: the class that gains least, the two that do, and so on. A shared
   kernel's time is charged to its regions in equal parts, which ranks classes.

The compiler judges each, but for what no compile would change, by 44 trials of six networks:
a. Regions whose own kernels gain more than twice what the kernels alone cost are not left out. What
   leaving out then cost was below the gain in sum by 0.65 of the kernels alone at most.
b. Where the engine is farther behind float than all groups that are left can save, it ends. Leaving a
   group out saved 1.13 times the larger of its loss and its kernels alone at most.
"""

from __future__ import annotations

from collections.abc import Callable

from fuseq.placement.cells import Cell, Trial, cells_of, owners_of
from fuseq.placement.plan import Plan
from fuseq.targets.base import Engine, Kernel, KernelType

MAX_ALONE_TRIALS = 8
"""Compiles spent on kernels alone."""

MAX_CLASS_TRIALS = 4
"""Compiles spent on classes of one model."""

MOST_SAVED = 1.25
"""Most that leaving out regions saves, in times of what they lose or their kernels alone cost (b)."""

LARGE_CELL = 8
"""Regions from which on a cell is looked into by classes; in smaller ones case 1 is enough."""

MAX_LOSING_TRIALS = 2
"""Compiles spent on classes whose own kernels lose."""

THIN_GAIN = 0.1
"""Where a cell saves less than this part of its float time, its weak classes are tried too."""

SAME_TIME = 0.01
"""Predicted times within this part count as equal, for the cost model errs by more (docs/cost-model.md);
then fewer activation bytes decide."""

_PRODUCTS = (KernelType.GEMM, KernelType.CONVOLUTION, KernelType.ATTENTION)


def improve_crowded_cells(
    best: Trial, float_engine: Engine, compile_plan: Callable[[Plan], Trial]
) -> Trial:
    """Return ``best``, or a trial with fewer regions that is better."""
    crowded = [cell for cell in cells_of(best, float_engine) if len(cell.regions) > 1]
    large = [cell for cell in crowded if len(cell.regions) >= LARGE_CELL]
    names = {name for cell in crowded for name in cell.regions}
    groups = [group for group in _served_alone(best) if names.intersection(group[1])]
    groups = groups[:MAX_ALONE_TRIALS]
    for number, (cost_us, regions) in enumerate(groups):
        behind_us = best.engine.predicted_us - float_engine.predicted_us
        if behind_us > MOST_SAVED * _hope_us(best, float_engine, groups[number:], large):
            return best
        if _gain_us(best, float_engine, regions) >= cost_us:
            continue
        reason = "float: its Q or DQ would run as a kernel of its own and cost more than it saves"
        trial = _without(best, regions, reason, compile_plan)
        if trial is not None and trial.engine.predicted_us < best.engine.predicted_us:
            best = trial
    names = {name for cell in large for name in cell.regions}
    best = _without_losing_classes(best, float_engine, names, compile_plan)
    if any(cell.gain_us < THIN_GAIN * cell.float_us for cell in large):
        best = _without_weak_classes(best, float_engine, names, compile_plan)
    return best


def _without_losing_classes(
    best: Trial, float_engine: Engine, names: set[str], compile_plan: Callable[[Plan], Trial]
) -> Trial:
    classes = _classes(best, float_engine, names & _quantized(best.plan), shared=False)
    for gain_us, regions in classes[:MAX_LOSING_TRIALS]:
        if gain_us >= 0:
            break
        reason = "float: its own kernels are predicted slower when quantized"
        trial = _without(best, regions, reason, compile_plan)
        if trial is not None and trial.engine.predicted_us < best.engine.predicted_us:
            best = trial
    return best


def _without_weak_classes(
    best: Trial, float_engine: Engine, names: set[str], compile_plan: Callable[[Plan], Trial]
) -> Trial:
    classes = _classes(best, float_engine, names & _quantized(best.plan), shared=True)
    trials, dropped = [best], list[str]()
    for _, regions in classes[: min(MAX_CLASS_TRIALS, len(classes) - 1)]:
        dropped += regions
        reason = "float: without it the regions that share its kernels are predicted faster"
        trial = _without(best, dropped, reason, compile_plan)
        trials += [trial] if trial is not None else []
    return _best_of(trials)


def _best_of(trials: list[Trial]) -> Trial:
    """The fastest; of those within :data:`SAME_TIME` of it, the one that moves the fewest bytes."""
    least_us = min(trial.engine.predicted_us for trial in trials)
    equal = [t for t in trials if t.engine.predicted_us <= least_us * (1 + SAME_TIME)]
    return min(equal, key=lambda trial: trial.engine.activation_bytes)


def _without(
    base: Trial, regions: list[str], reason: str, compile_plan: Callable[[Plan], Trial]
) -> Trial | None:
    """The trial without ``regions``; None if that changes nothing or leaves nothing."""
    left = [name for name in regions if name in _quantized(base.plan)]
    candidate = base.plan.without(left, f"{reason} (predicted)")
    return compile_plan(candidate) if left and candidate.tensors else None


def _gain_us(trial: Trial, float_engine: Engine, regions: list[str]) -> float:
    """What quantizing ``regions`` gains by the kernels of both engines; negative when it costs."""
    names = _quantized(trial.plan).intersection(regions)
    return sum(_gains(trial, float_engine, names, shared=True)[0].values())


def _hope_us(
    trial: Trial, float_engine: Engine, groups: list[tuple[float, list[str]]], large: list[Cell]
) -> float:
    """What could be saved by leaving out ``groups``, and classes of ``large`` cells that lose."""
    names = {name for cell in large for name in cell.regions} & _quantized(trial.plan)
    classes = _classes(trial, float_engine, names, shared=False)
    losing_us = sum(-gain_us for gain_us, _ in classes if gain_us < 0)
    return losing_us + sum(
        max(cost_us, -_gain_us(trial, float_engine, regions)) for cost_us, regions in groups
    )


def _served_alone(trial: Trial) -> list[tuple[float, list[str]]]:
    """Regions that kernels alone serve, by equal kernels, with their cost, the costliest first."""
    groups: dict[tuple[object, ...], list[str]] = {}
    costs: dict[tuple[object, ...], float] = {}
    for kernel in trial.engine.alone:
        served = [name for node in kernel.nodes for name in trial.served.get(node, ())]
        if not served:
            continue
        key = _shapes(kernel)
        groups.setdefault(key, [])
        groups[key] += [name for name in served if name not in groups[key]]
        costs[key] = costs.get(key, 0.0) + (kernel.predicted_us or 0.0)
    return [(costs[key], groups[key]) for key in sorted(groups, key=lambda key: -costs[key])]


def _classes(
    trial: Trial, float_engine: Engine, names: set[str], *, shared: bool
) -> list[tuple[float, list[str]]]:
    """Regions of ``names`` by the shapes of their product, with what they gain; the least first."""
    gains, shapes = _gains(trial, float_engine, names, shared=shared)
    classes: dict[tuple[object, ...], list[str]] = {}
    for name in sorted(names):
        classes.setdefault(shapes.get(name, (name,)), []).append(name)
    found = [(sum(gains[name] for name in regions), regions) for regions in classes.values()]
    return sorted(found, key=lambda pair: pair[0])


def _gains(
    trial: Trial, float_engine: Engine, names: set[str], *, shared: bool
) -> tuple[dict[str, float], dict[str, tuple[object, ...]]]:
    """What each of ``names`` gains, and the shapes of its product.

    Kernels of several regions are charged to them in equal parts, or with ``shared`` false to none.
    """
    owners = owners_of(trial)
    gains = dict.fromkeys(names, 0.0)
    shapes: dict[str, tuple[object, ...]] = {}
    for engine, sign in ((float_engine, 1.0), (trial.engine, -1.0)):
        for kernel in engine.kernels:
            sharing = {name for node in kernel.nodes for name in owners.get(node, ())}
            for name in sharing & names:
                if shared or len(sharing) == 1:
                    gains[name] += sign * (kernel.predicted_us or 0.0) / len(sharing)
                if sign > 0 and kernel.type in _PRODUCTS and name in kernel.nodes:
                    shapes[name] = _shapes(kernel)
    return gains, shapes


def _shapes(kernel: Kernel) -> tuple[object, ...]:
    """What makes kernels equal: shapes and types of what they read and write."""
    return tuple((tensor.shape, tensor.dtype) for tensor in (*kernel.inputs, *kernel.outputs))


def _quantized(plan: Plan) -> set[str]:
    return {region.name for region in plan.regions if region.quantized}
