"""Times several models in one run, as trtexec measures; where nothing can run, predicts and says so.

A row's times are measured here, or ``None``; what is predicted stands in ``predicted_us`` and is
never called measured. :class:`BenchResult` lists in ``missing`` what could not be done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from fuseq.errors import OptionError
from fuseq.evaluate.bench_engines import on_gpu
from fuseq.evaluate.bench_rows import (
    BenchOptions,
    BenchResult,
    BenchRow,
    findings_of,
    measured_rows,
)
from fuseq.model import input_specs, load, profile_for
from fuseq.planning import Report, silent
from fuseq.targets import parse_target
from fuseq.targets.base import ShapeProfile, Target
from fuseq.targets.engine_files import engine_kind
from fuseq.targets.onnxruntime.timing import pinned_runs
from fuseq.targets.onnxruntime_cpu import OnnxRuntimeCpu, example_feeds
from fuseq.targets.trtexec import trtexec_command
from fuseq.targets.turns import take_turns

__all__ = ("BenchOptions", "BenchResult", "BenchRow", "bench", "findings_of", "measured_rows")


Models = Mapping[str, str | Path | ir.Model]


def bench(
    models: Models, options: BenchOptions | None = None, report: Report | None = None
) -> BenchResult:
    """Time ``models`` on one target, taking turns.

    1. On ``onnxruntime:cpu``: ONNX files and models, threads pinned.
    2. Engine files, and models on a TensorRT target: on this machine's GPU, with device buffers.
    3. On ``torch:cuda``: models, through the target's own kernels.
    4. Without the GPU: models are compiled and their times predicted, engines are only named; each
       row has the command that times it elsewhere, and ``missing`` says what was not measured.

    Args:
        models: ONNX file, engine file, or model, by name; the first is what ratios refer to.
        options: See :class:`BenchOptions`.
        report: Called with stage, done, total.

    Raises:
        ModelError: A file cannot be used.
        OptionError: The target, GPU or a shape is not allowed.
        TargetError: The compiler refused a model, or it could not run.
    """
    if not models:
        raise OptionError("no model to time; give at least one ONNX file.")
    options, report = options or BenchOptions(), report or silent
    engines = {name: kind for name, model in models.items() if (kind := _kind(model)) is not None}
    if len(engines) == len(models):
        rows = [_engine_row(name, str(models[name]), engines[name], options) for name in models]
        return on_gpu(next(iter(engines.values())), rows, {}, options, report)
    target = parse_target(options.target, options.gpu)
    if target.name.startswith("tensorrt"):
        return _on_tensorrt(models, engines, target, options, report)
    if engines:
        raise OptionError(
            f"{next(iter(engines))} is an engine of {next(iter(engines.values()))}, which "
            f"{target.name} does not run; time engines apart, or give --target tensorrt:smNN."
        )
    if isinstance(target, OnnxRuntimeCpu):
        return _on_cpu(models, options, report)
    return _on_torch(models, target, options, report)


def _on_cpu(models: Models, options: BenchOptions, report: Report) -> BenchResult:
    if options.timed.streams > 1:
        raise OptionError(
            f"--streams {options.timed.streams}: onnxruntime:cpu runs one inference at a time here; "
            "use --threads, or a GPU target."
        )
    rows, sources, feeds = [], {}, {}
    for number, (name, model) in enumerate(models.items()):
        report("open", number, len(models))
        loaded = model if isinstance(model, ir.Model) else load(model)
        profile = profile_for(loaded, options.batch, options.shapes)
        sources[name] = loaded if isinstance(model, ir.Model) else str(model)
        feeds[name] = example_feeds(loaded, profile)
        rows.append(_row(name, model, profile))
    report("time", 0, None)
    timed = options.timed
    with pinned_runs(sources, feeds, options.threads) as runs:
        rounds = take_turns(
            list(runs.values()),
            seconds=timed.seconds * len(runs),
            iterations=timed.iterations,
            warmup_ms=timed.warmup_ms,
        )
    measured = measured_rows(rows, rounds)
    how = f"measured here in {len(rounds)} rounds, the models taking turns"
    if measured[0].device is not None:
        how += "; device time is the one thread's processor time, and ratios are its"
    return BenchResult(options.target, measured, findings=findings_of(measured), notes=(how,))


def _on_torch(models: Models, target: Target, options: BenchOptions, report: Report) -> BenchResult:
    from fuseq.evaluate.bench_torch import on_torch  # noqa: PLC0415  (it needs torch)

    rows, loaded = [], {}
    for number, (name, model) in enumerate(models.items()):
        report("open", number, len(models))
        loaded[name] = model if isinstance(model, ir.Model) else load(model)
        profile = profile_for(loaded[name], options.batch, options.shapes)
        rows.append(_row(name, model, profile))
    return on_torch(target, rows, loaded, options, report)


def _on_tensorrt(
    models: Models,
    engines: Mapping[str, str],
    target: Target,
    options: BenchOptions,
    report: Report,
) -> BenchResult:
    """Compile what is not an engine yet; then time everything on the GPU, if there is one."""
    rows, loaded = [], {}
    for number, (name, model) in enumerate(models.items()):
        report("compile", number, len(models))
        if name in engines:
            rows.append(_engine_row(name, str(model), engines[name], options))
            continue
        loaded[name] = model if isinstance(model, ir.Model) else load(model)
        rows.append(_compiled(name, model, loaded[name], target, options))
    return on_gpu(target.name, _with_ratios(rows), loaded, options, report)


def _compiled(
    name: str, model: str | Path | ir.Model, loaded: ir.Model, target: Target, options: BenchOptions
) -> BenchRow:
    profile = profile_for(loaded, options.batch, options.shapes)
    engine = target.compile(loaded, profile, keep_plan=True)
    dynamic = any(not isinstance(d, int) for spec in input_specs(loaded) for d in spec.shape or ())
    command = trtexec_command(
        "model.onnx" if isinstance(model, ir.Model) else str(model),
        rtx=target.name.startswith("tensorrt-rtx"),
        profile=profile if dynamic else None,
        timed=options.timed,
    )
    return dataclasses.replace(
        _row(name, model, profile),
        engine=engine,
        predicted_us=engine.predicted_us,
        trtexec=command,
        notes=engine.notes,
    )


def _with_ratios(rows: list[BenchRow]) -> list[BenchRow]:
    first = rows[0].predicted_us
    return [
        dataclasses.replace(row, predicted_ratio=first / row.predicted_us)
        if first and row.predicted_us
        else row
        for row in rows
    ]


def _engine_row(name: str, file: str, kind: str, options: BenchOptions) -> BenchRow:
    profile = ShapeProfile(dict(options.shapes)) if options.shapes else None
    batches = {shape[0] for shape in options.shapes.values() if shape}
    return BenchRow(
        name,
        file,
        batches.pop() if len(batches) == 1 else None,
        trtexec=trtexec_command(
            file, rtx=kind == "tensorrt-rtx", is_engine=True, profile=profile, timed=options.timed
        ),
    )


def _kind(model: str | Path | ir.Model) -> str | None:
    return None if isinstance(model, ir.Model) else engine_kind(Path(model))


def _row(name: str, model: str | Path | ir.Model, profile: ShapeProfile) -> BenchRow:
    first = next(iter(profile.optimum.values()), ())
    source = "" if isinstance(model, ir.Model) else str(model)
    return BenchRow(name, source, first[0] if first else None)
