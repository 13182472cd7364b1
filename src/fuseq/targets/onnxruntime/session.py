"""ONNX Runtime sessions on the CPU provider: open, run, profile, save what the optimizer made."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from fuseq.errors import TargetError
from fuseq.model import save

ModelLike: TypeAlias = ir.Model | bytes | str | os.PathLike[str]
"""A model in memory, its serialized bytes, or the path of its file."""

Feeds: TypeAlias = Mapping[str, np.ndarray]

_ERRORS_ONLY = 3
_EMBEDDED_BYTES = 2**30
"""Weights up to here stay inside the optimized file; a protobuf message ends at 2 GiB."""

_PROFILE_SECONDS = 1.0

_KERNEL_EVENT = "_kernel_time"


@dataclasses.dataclass(frozen=True)
class NodeRun:
    """One node of the optimized graph as the profiler saw it.

    Attributes:
        op_type: ONNX Runtime's operator.
        inputs: Type word and shape of every input that is present, in order.
        outputs: The same of the outputs.
        us: Its shortest time over the profiled runs, in microseconds.
    """

    op_type: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    us: float


@dataclasses.dataclass(frozen=True)
class Profile:
    """What the optimizer made of a model.

    Attributes:
        graph: The optimized model.
        runs: Its nodes' runs by node name; a node that never ran is missing.
        file_bytes: The optimized ONNX file; weights over 1 GiB in all are not in it.
        total_bytes: Size of the file with all weights.
        seconds: Time to load and optimize.
    """

    graph: ir.Model
    runs: Mapping[str, NodeRun]
    file_bytes: bytes
    total_bytes: int
    seconds: float


def refusals() -> tuple[type[Exception], ...]:
    """The exceptions with which ONNX Runtime refuses a model or an input; they share no base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NoSuchFile,
        state.NotImplemented,
        state.RuntimeException,
    )


def usable_cpus() -> tuple[int, ...]:
    """The processors that this process may run on, counted from 0."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def session_options(threads: int, cpus: Sequence[int] = ()) -> Any:
    """Options for full optimization on ``threads`` threads.

    Args:
        threads: Threads of one operator, the caller's own included.
        cpus: If given, one processor (from 0) for each thread; the first is the caller's, who
            pins itself. ONNX Runtime counts processors from 1.
    """
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads of one session would spin on the processors that the next session needs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if len(cpus) > 1:
        workers = ";".join(str(cpu + 1) for cpu in cpus[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", workers)
    return options


def open_session(
    model: ModelLike, options: Any, what: str = "the model", without: Sequence[str] = ()
) -> Any:
    """Open a session on the CPU provider.

    Args:
        model: What to open.
        options: As :func:`session_options` makes them.
        what: How errors call the model.
        without: Graph optimizers to leave out, by ONNX Runtime's names.

    Raises:
        TargetError: ONNX Runtime refused the model, with its own words.
    """
    import onnxruntime  # noqa: PLC0415

    with _as_source(model) as source:
        try:
            return onnxruntime.InferenceSession(
                source,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(without),
            )
        except refusals() as error:
            raise TargetError(
                f"onnxruntime:cpu refused {what}: {_words(error)} Check the model with "
                "`onnx.checker`, or leave the node that it names in float."
            ) from error


def run_session(session: Any, feeds: Feeds) -> dict[str, np.ndarray]:
    """Run once; outputs by name.

    Raises:
        TargetError: An input is missing, unknown, or of the wrong type or shape.
    """
    wanted = [value.name for value in session.get_inputs()]
    if set(wanted) != set(feeds):
        raise TargetError(
            f"onnxruntime:cpu: the model's inputs are {sorted(wanted)}, the feeds name "
            f"{sorted(feeds)}; give exactly the model's inputs."
        )
    try:
        outputs = session.run(None, dict(feeds))
    except refusals() as error:
        raise TargetError(f"onnxruntime:cpu could not run the model: {_words(error)}") from error
    return {value.name: array for value, array in zip(session.get_outputs(), outputs, strict=True)}


def profile_model(
    model: ir.Model, feeds: Feeds, *, threads: int, runs: int, warmup: int = 1
) -> Profile:
    """Optimize, run under ONNX Runtime's profiler, read both files back.

    ``runs`` times after ``warmup``; large models fewer, once :data:`_PROFILE_SECONDS` are over.

    Raises:
        TargetError: ONNX Runtime refused the model or could not run it.
    """
    with tempfile.TemporaryDirectory(prefix="fuseq-ort-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        options = session_options(threads)
        options.optimized_model_filepath = str(optimized)
        if _weights_bytes(model) > _EMBEDDED_BYTES:
            name = "session.optimized_model_external_initializers_file_name"
            options.add_session_config_entry(name, "optimized.data")
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        started = time.perf_counter()
        session = open_session(model, options)
        seconds = time.perf_counter() - started
        for _ in range(warmup):
            run_session(session, feeds)
        end = time.perf_counter() + _PROFILE_SECONDS
        for done in range(runs):
            if done and time.perf_counter() > end:
                break
            run_session(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        data = optimized.with_suffix(".data")
        file_bytes = optimized.read_bytes()
        return Profile(
            graph=ir.from_proto(onnx.load_from_string(file_bytes)),
            runs=_node_runs(events),
            file_bytes=file_bytes,
            total_bytes=len(file_bytes) + (data.stat().st_size if data.exists() else 0),
            seconds=seconds,
        )


def _weights_bytes(model: ir.Model) -> int:
    return sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )


def _node_runs(events: Sequence[Mapping[str, Any]]) -> dict[str, NodeRun]:
    found: dict[str, NodeRun] = {}
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith(_KERNEL_EVENT):
            continue
        name = event["name"].removesuffix(_KERNEL_EVENT)
        args, us = event["args"], float(event["dur"])
        known = found.get(name)
        if known is None:
            found[name] = NodeRun(
                args["op_name"],
                _typed_shapes(args["input_type_shape"]),
                _typed_shapes(args["output_type_shape"]),
                us,
            )
        elif us < known.us:
            found[name] = dataclasses.replace(known, us=us)
    return found


def _typed_shapes(
    entries: Sequence[Mapping[str, Sequence[int]]],
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(
        (word, tuple(int(dim) for dim in shape))
        for entry in entries
        for word, shape in entry.items()
    )


@contextlib.contextmanager
def _as_source(model: ModelLike) -> Iterator[str | bytes]:
    """What InferenceSession takes; a model in memory goes through a file, weights may be large."""
    if isinstance(model, bytes):
        yield model
    elif isinstance(model, ir.Model):
        with tempfile.TemporaryDirectory(prefix="fuseq-ort-") as folder:
            file = Path(folder) / "model.onnx"
            save(model.clone(), file)  # saving loads external weights: not into the caller's model
            yield str(file)
    else:
        yield os.fspath(model)


def _words(error: Exception) -> str:
    """ONNX Runtime's message without its error number, at most three lines of it."""
    text = str(error).strip()
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return " ".join(line.strip() for line in text.splitlines()[:3])[:600]
