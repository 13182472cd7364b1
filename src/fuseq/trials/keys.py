"""Keys of trials: a hash of everything that decides an engine and its predicted times."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

import fuseq
from fuseq.placement.plan import Plan, fingerprint
from fuseq.planning import Job

_COMPILERS = ("tensorrt-rtx-cu13-libs", "tensorrt-rtx-cu12-libs", "onnxruntime")
"""Distributions whose versions change what is compiled."""

_JUDGES = ("targets", "passes", "calibration")
"""Rooms whose code decides how a plan becomes an engine and what time is predicted for it."""


def job_digest(job: Job, ranges: Iterable[tuple[str, float, float]]) -> str:
    """Hash of the model with its weights, the target, the options that typing and scales read, the
    calibrated ranges, and the code and compilers that judge."""
    digest = hashlib.sha256()
    options = job.options
    facts = {
        "graph": fingerprint(job.model),
        "target": job.target.name,
        "gpu": options.gpu,
        "precision": job.precision,
        "profile": sorted((k, list(v)) for k, v in job.profile.optimum.items()),
        "io_types": options.io_types,
        "keep_fp32": sorted(job.keep_fp32),
        "magnitudes": sorted(job.magnitudes.items()),
        "ranges": sorted(ranges),
        "code": code_digest(),
        "compilers": compiler_versions(),
    }
    digest.update(json.dumps(facts).encode())
    for name in sorted(job.model.graph.initializers):
        digest.update(name.encode())
        digest.update(_weights_digest(job.model.graph.initializers[name]))
    return digest.hexdigest()


def plan_key(job_key: str, plan: Plan) -> str:
    """Hash of a job and of what a plan decides; names, reasons and order do not count."""
    decisions = sorted(
        [
            entry.tensor,
            entry.kind,
            entry.format,
            -1 if entry.axis is None else entry.axis,
            entry.group,
            sorted([use.node, use.index] for use in entry.uses),
            entry.region,
            entry.known_amax or 0.0,
            str(entry.limits),
        ]
        for entry in plan.tensors
    )
    return hashlib.sha256(f"{job_key}\n{json.dumps(decisions)}".encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """Hash of the sources that judge a plan: another cost model must not read old predictions."""
    root = Path(fuseq.__file__).parent
    digest = hashlib.sha256()
    for room in _JUDGES:
        for file in sorted((root / room).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.cache
def compiler_versions() -> tuple[str, ...]:
    """Versions of the compilers that are installed here."""
    found = []
    for name in _COMPILERS:
        try:
            found.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _weights_digest(value: ir.Value) -> bytes:
    tensor = value.const_value
    if tensor is None:
        return b""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tensor.dtype}{tuple(tensor.shape.numpy())}".encode())
    digest.update(tensor.tobytes())
    return digest.digest()
