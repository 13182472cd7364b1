"""Times models on target ``torch:cuda``: the target's kernels, CUDA events around each inference.

Not run where this was written, for want of a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from fuseq.evaluate.bench_rows import (
    BenchOptions,
    BenchResult,
    BenchRow,
    findings_of,
    measured_rows,
)
from fuseq.model import profile_for
from fuseq.planning import Report
from fuseq.targets.base import Target
from fuseq.targets.onnxruntime_cpu import example_feeds
from fuseq.targets.torch_cuda.target import TorchCuda
from fuseq.targets.turns import Run, take_turns


def on_torch(
    target: Target,
    rows: Sequence[BenchRow],
    models: Mapping[str, ir.Model],
    options: BenchOptions,
    report: Report,
) -> BenchResult:
    """Time ``models`` on the GPU; without one, return the rows as they are and say so.

    Args:
        target: ``torch:cuda``.
        rows: One for each model, in order.
        models: By the rows' names.
        options: How they are timed; streams and CUDA graph are the target's own affair.
        report: Called with stage, done, total.

    Raises:
        TargetError: An operator that the target does not run.
    """
    gap = target.missing()
    if gap is not None:
        missing = (
            f"torch:cuda: nothing was measured ({gap.rstrip('.')}); nothing is predicted either."
        )
        return BenchResult(target.name, tuple(rows), (missing,))
    runs = []
    for number, row in enumerate(rows):
        report("load", number, len(rows))
        runs.append(_run(models[row.name], options))
    report("time", 0, None)
    timed = options.timed
    rounds = take_turns(
        runs,
        seconds=timed.seconds * len(runs),
        iterations=timed.iterations,
        warmup_ms=timed.warmup_ms,
    )
    measured = measured_rows(rows, rounds)
    how = f"measured here in {len(rounds)} rounds, the models taking turns"
    return BenchResult(target.name, measured, findings=findings_of(measured), notes=(how,))


def _run(model: ir.Model, options: BenchOptions) -> Run:
    import torch  # noqa: PLC0415

    compiled = TorchCuda().compiled(model)
    feeds = example_feeds(model, profile_for(model, options.batch, options.shapes))
    tensors: list[Any] = [torch.from_numpy(array).cuda() for array in feeds.values()]
    event: Any = torch.cuda.Event
    begun, ended = event(enable_timing=True), event(enable_timing=True)

    def run() -> float:
        begun.record()
        compiled(*tensors)
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended))

    return run
