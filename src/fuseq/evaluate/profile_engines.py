"""Profiles engines on this machine's GPU with TensorRT's own profiler.

Not run where this was written, for want of a GPU (:mod:`fuseq.targets.engine_runtime.runner`).
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fuseq.targets.base import Engine
from fuseq.targets.engine_runtime.runner import open_engine
from fuseq.targets.layer_info import read_engine


def profile_plan(
    plan: bytes, kind: str, shapes: Mapping[str, tuple[int, ...]], runs: int, known: Engine | None
) -> Engine:
    """Kernels of a serialized engine with their average times.

    Args:
        plan: The serialized engine.
        kind: ``tensorrt`` or ``tensorrt-rtx``.
        shapes: Shape by input name; others have the shape that the engine was built for.
        runs: Profiled inferences.
        known: Kernels that the compiler listed under the names that the profiler reports; None: the
            engine's own list is read.

    Raises:
        MissingExtraError: TensorRT or CUDA's bindings are not installed.
        TargetError: There is no GPU, or TensorRT refused the engine.
    """
    with open_engine(plan, kind, shapes) as runner:
        times_us = runner.layer_times_us(runner.example_feeds(), runs)
        layers = "" if known is not None else runner.layer_information()
    if known is not None:
        return with_times(known, times_us)
    with tempfile.TemporaryDirectory(prefix="fuseq-profile-") as folder:
        file = Path(folder) / "layers.json"
        file.write_text(layers, encoding="utf-8")
        times = Path(folder) / "profile.json"
        rows = [{"name": name, "averageMs": us / 1e3} for name, us in times_us.items()]
        times.write_text(json.dumps([{"count": runs}, *rows]), encoding="utf-8")
        return dataclasses.replace(read_engine(file, times), target=kind)


def with_times(engine: Engine, times_us: Mapping[str, float]) -> Engine:
    """``engine`` with the profiler's times; a note says which of them fit no kernel."""
    names = {kernel.name for kernel in engine.kernels}
    strangers = [name for name in times_us if name not in names]
    kernels = tuple(
        dataclasses.replace(kernel, measured_us=times_us.get(kernel.name))
        for kernel in engine.kernels
    )
    notes = engine.notes
    if strangers:
        lost_us = sum(times_us[name] for name in strangers)
        notes += (
            f"layers that the profiler timed and the compiler did not list: {len(strangers)}, "
            f"{lost_us:.1f} us in all",
        )
    return dataclasses.replace(engine, kernels=kernels, notes=notes)
