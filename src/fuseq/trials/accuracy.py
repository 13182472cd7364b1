"""How far a plan's outputs are from the float model's, on ONNX Runtime's CPU provider, as a task.

The float model runs in FP32 with the plan's Q/DQ in it, computed as written: what is measured is the
error of quantizing, not of FP16. Outputs are kept beside the trials, so that nothing runs twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Batch
from fuseq.errors import ModelError
from fuseq.evaluate.closeness import cosine
from fuseq.evaluate.running import run_batches
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.passes.set_constants import set_constants
from fuseq.placement.plan import Plan
from fuseq.planning import Report
from fuseq.trials.arrays import read_arrays, write_arrays
from fuseq.trials.executor import Executor, Session, usable_processors
from fuseq.trials.keys import plan_key
from fuseq.trials.rounded import rounded_values
from fuseq.trials.workload import Workload, open_workload, scales_of

_KEPT_BYTES = 64 * 2**20
"""Outputs up to this size are kept on disk; larger ones (masks, feature maps) are computed again."""

_IN_MEMORY_BYTES = 2**30
"""Weights up to this size go to ONNX Runtime without a file between."""


def store_data(folder: Path, batches: Iterable[Batch]) -> Path:
    """Write the samples to compare on once, named by content, where every worker finds them.

    Raises:
        ModelError: There is no batch, or the folder cannot be written.
    """
    arrays = {
        f"{number}/{name}": np.asarray(array)
        for number, batch in enumerate(batches)
        for name, array in batch.items()
    }
    if not arrays:
        raise ModelError("there is no sample to compare outputs on; give data.")
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    file = folder / f"data-{digest.hexdigest()[:32]}.npz"
    if not file.is_file():
        write_arrays(file, arrays)
    return file


def run_outputs(workload: Workload, plan: Plan, data: str, threads: int) -> dict[str, np.ndarray]:
    """Outputs [N, ...] by name with the plan's Q/DQ inserted; the float model's for an empty plan.

    Args:
        workload: The model and its ranges.
        plan: What is quantized.
        data: File of :func:`store_data`.
        threads: Threads of one operator.
    """
    rounding = "" if workload.options.rounding == "nearest" else f"-{workload.options.rounding}"
    name = f"{plan_key(workload.digest, plan)}-{Path(data).stem[5:21]}{rounding}"
    file = Path(workload.cache) / f"outputs-{name}.npz"
    kept = read_arrays(file)
    if kept is not None:
        return kept
    job, weights = open_workload(workload)
    model = job.model.clone()
    set_constants(model, rounded_values(workload, plan))
    insert_qdq(model, plan, scales_of(plan, job, workload.ranges, weights))
    source = _in_memory(model)
    parts = list(run_batches(source, load_data(Path(data)), optimized=False, threads=threads))
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if sum(array.nbytes for array in outputs.values()) <= _KEPT_BYTES:
        write_arrays(file, outputs)
    return outputs


def _in_memory(model: ir.Model) -> ir.Model | bytes:
    """The model as bytes where they fit into a message: no copy and no file for each of many runs."""
    weights = (value.const_value for value in model.graph.initializers.values())
    if sum(tensor.nbytes for tensor in weights if tensor is not None) > _IN_MEMORY_BYTES:
        return model
    return bytes(ir.to_proto(ir.external_data.load_to_model(model)).SerializeToString())


def load_data(file: Path) -> list[Batch]:
    """Batches of :func:`store_data`, in order.

    Raises:
        ModelError: The file is gone or damaged.
    """
    arrays = read_arrays(file)
    if arrays is None:
        raise ModelError(f"{file}: the samples of this search are gone or damaged; start again.")
    batches: dict[int, Batch] = {}
    for name, array in arrays.items():
        number, _, key = name.partition("/")
        batches.setdefault(int(number), {})[key] = array
    return [batches[number] for number in sorted(batches)]


def noise_ratio(exact: Mapping[str, np.ndarray], near: Mapping[str, np.ndarray]) -> float:
    """Noise power over signal power, the mean over float outputs; 0 where all are equal.

    ``sum((a - b)^2) / sum(a^2)`` of each output. Errors that are independent add up in it, which
    cosines and decibels do not. Infinite where an output is not finite.
    """
    ratios = []
    for name, array in exact.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        left, right = array.astype(np.float64), near[name].astype(np.float64)
        if not np.isfinite(right).all():
            return float("inf")
        signal, noise = float(np.square(left).sum()), float(np.square(left - right).sum())
        ratios.append(noise / signal if signal else (0.0 if noise == 0 else float("inf")))
    return sum(ratios) / len(ratios) if ratios else 0.0


def outputs_of(
    workload: Workload, plans: Sequence[Plan], file: str, session: Session, report: Report
) -> list[dict[str, np.ndarray]]:
    """Outputs of every plan, a few at a time so that progress can be told."""
    threads = _threads_of(session.executor)
    step = max(2 * session.width, 2)
    found: list[dict[str, np.ndarray]] = []
    for first in range(0, len(plans), step):
        tasks = [(workload, plan, file, threads) for plan in plans[first : first + step]]
        found += session.map(run_outputs, tasks)
        report("compare", len(found), len(plans))
    return found


def least_cosine(exact: Mapping[str, np.ndarray], near: Mapping[str, np.ndarray]) -> float:
    """Mean cosine over samples of the float output that is worst; 1 where there is none."""
    means = [
        float(cosine(array, near[name]).mean())
        for name, array in exact.items()
        if np.issubdtype(array.dtype, np.floating) and array.ndim
    ]
    return min(means, default=1.0)


def _threads_of(executor: Executor) -> int:
    """Threads of one model run, so that all runs together fill this machine once."""
    return max(usable_processors() // max(executor.jobs, 1), 1)
