"""The float engine, compiled while calibration runs: a compiler keeps one core busy, and there are more.

What stays FP32 is known from calibration alone. Most models keep nothing, so the engine is compiled as
if nothing did, and compiled again where calibration says otherwise.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import onnx_ir as ir

from fuseq.passes.float_range import magnitude_fault
from fuseq.passes.typing import PRECISIONS
from fuseq.planning import Job, compile_float, typed_copy
from fuseq.targets.base import Engine, NativeTarget

LARGEST_BYTES = 2**28
"""Weights from which on nothing is compiled early: the compiler's memory would come on top of
calibration's, which gives back the pages of large weights (:mod:`fuseq.calibration.session`)."""


class EarlyFloat:
    """A float engine on its way; ``engine_of`` gives it, or compiles what it does not fit."""

    def __init__(self, job: Job) -> None:
        """Begin to compile the float model of ``job``, whose magnitudes are not known yet."""
        self._engine: Future[Engine] | None = None
        if _is_worth_it(job):
            self._typed, self._notes = typed_copy(job, job.model)
            pool = ThreadPoolExecutor(1, thread_name_prefix="fuseq-early-float")
            self._engine = pool.submit(job.target.compile, self._typed, job.profile)
            pool.shutdown(wait=False)

    def engine_of(self, job: Job) -> Engine:
        """The float engine of ``job``, whose magnitudes are known now.

        Raises:
            TargetError: The compiler refused the model.
        """
        if self._engine is None:
            return compile_float(job)
        if not self._notes and not _has_faults(job):
            return self._engine.result()
        typed, _ = typed_copy(job, job.model)
        if _spelled(typed) == _spelled(self._typed):
            return self._engine.result()
        return job.target.compile(typed, job.profile)


def _is_worth_it(job: Job) -> bool:
    weights = sum(
        value.const_value.nbytes
        for value in job.model.graph.initializers.values()
        if value.const_value is not None
    )
    return job.judges and isinstance(job.target, NativeTarget) and weights < LARGEST_BYTES


def _has_faults(job: Job) -> bool:
    """A magnitude overflows or vanishes. Where none does, magnitudes only take nodes from what stays
    FP32 (:mod:`fuseq.passes.islands`), which is nothing if typing without them had no notes."""
    dtype = PRECISIONS[job.precision]
    return any(magnitude_fault(amax, dtype) is not None for amax in job.magnitudes.values())


def _spelled(model: ir.Model) -> list[object]:
    """Nodes with the names and types of what they read and write; attributes and weights of two typed
    copies of one model follow from these."""
    return [
        (
            node.op_type,
            node.name,
            [(value.name, value.dtype) for value in node.inputs if value is not None],
            [(value.name, value.dtype) for value in node.outputs],
        )
        for node in model.graph
    ]
