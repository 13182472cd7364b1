"""What each region of a plan saves, by two engines: each kernel's time in equal parts to its regions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fuseq.placement.cells import Trial, owners_of
from fuseq.targets.base import Engine, Kernel
from fuseq.trials.objective import Objective, kernel_value


def region_gains(trial: Trial, float_engine: Engine, objective: Objective) -> dict[str, float]:
    """What each quantized region saves against float, in the objective's unit.

    1. A kernel's time is charged in equal parts to the regions whose nodes it holds.
    2. A kernel without any (the cast of an input, a copy) is charged to those of its readers.
    3. What is left belongs to no region; where it is the same in both engines it cancels.
    """
    owners = owners_of(trial)
    gains = {region.name: 0.0 for region in trial.plan.regions if region.quantized}
    for engine, sign in ((float_engine, 1.0), (trial.engine, -1.0)):
        readers = _readers(engine)
        for kernel in engine.kernels:
            sharing = _regions(kernel, owners, gains)  # case 1
            for reader in readers.get(kernel.name, ()) if not sharing else ():
                sharing |= _regions(reader, owners, gains)  # case 2
            for name in sharing:
                gains[name] += sign * kernel_value(kernel, objective) / len(sharing)
    return gains


def _regions(
    kernel: Kernel, owners: Mapping[str, tuple[str, ...]], known: Collection[str]
) -> set[str]:
    return {name for node in kernel.nodes for name in owners.get(node, ()) if name in known}


def _readers(engine: Engine) -> dict[str, list[Kernel]]:
    """Kernels that read what a kernel writes, by its name."""
    by_tensor: dict[str, list[Kernel]] = {}
    for kernel in engine.kernels:
        for tensor in kernel.inputs:
            by_tensor.setdefault(tensor.name, []).append(kernel)
    return {
        kernel.name: [r for tensor in kernel.outputs for r in by_tensor.get(tensor.name, ())]
        for kernel in engine.kernels
    }
