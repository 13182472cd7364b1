"""Run the rules over a model for one or several targets, or over an engine that trtexec described."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from fuseq.checks.all_rules import RULES
from fuseq.checks.context import Context
from fuseq.checks.coverage import Coverage, coverage_of
from fuseq.checks.finding import Finding
from fuseq.checks.float_twin import float_twin, shape_of_graph
from fuseq.checks.opening import open_model
from fuseq.checks.reading import quantized_formats
from fuseq.checks.rule import Rule
from fuseq.errors import OptionError, TargetError
from fuseq.library_logs import quiet_libraries
from fuseq.model import profile_for
from fuseq.targets import parse_target
from fuseq.targets.base import Engine, ShapeProfile, Target
from fuseq.targets.layer_info import read_engine

MAX_COMPILED_NODES = 20_000
"""Compilers take minutes for more; larger graphs are checked without."""

_SIMULATED = "tensorrt:"

ENGINE_TARGET = "tensorrt:sm89"
"""Whose fusion rules are asked about an engine from files when the user names no TensorRT target."""


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """What a user decides about a check.

    Attributes:
        targets: ``compiler:device``, one or more.
        gpu: GPU that predictions assume.
        batch: Size of a dynamic first axis.
        shapes: Static shape by input name, where more is dynamic.
        compiles: Ask the compiler where it is installed.
        select: Codes or their beginnings that run; empty runs all.
        ignore: Codes or their beginnings that do not.
        keep_float: Globs of layers that are meant to stay float.
    """

    targets: tuple[str, ...] = ("tensorrt-rtx:sm89",)
    gpu: str | None = None
    batch: int = 8
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    compiles: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    keep_float: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TargetResult:
    """One row of the matrix.

    Attributes:
        target: As users write it; "" for an engine from files.
        builds: True or False where a compiler or fusion model was asked, else None.
        words: The compiler's refusal, or why it was not asked; "" when it built.
        engine: What was built or read.
        float_engine: The same without Q/DQ.
        simulated: A fusion model built it, not a compiler.
    """

    target: str
    builds: bool | None
    words: str
    engine: Engine | None
    float_engine: Engine | None
    simulated: bool


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """Everything that a check says."""

    file: str
    findings: tuple[Finding, ...]
    targets: tuple[TargetResult, ...]
    coverage: Coverage | None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 when a finding is worse than a note or a target does not build, else 0."""
        bad = any(finding.severity != "note" for finding in self.findings)
        return 1 if bad or any(row.builds is False for row in self.targets) else 0


def chosen_rules(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Rules whose code begins with one of ``select`` and with none of ``ignore``."""
    return tuple(
        rule
        for rule in RULES
        if (not select or rule.code.startswith(tuple(select)))
        and not (ignore and rule.code.startswith(tuple(ignore)))
    )


def check_model(path: str | os.PathLike[str], options: CheckOptions | None = None) -> CheckResult:
    """Check an ONNX file for each target.

    Raises:
        ModelError: The file cannot be used.
        OptionError: A target, GPU or shape is not allowed.
    """
    with quiet_libraries():
        return check_opened(open_model(path), path, options or CheckOptions())


FloatEngines = dict[tuple[str, str], tuple[Engine | None, str]]
"""What became of float graphs, by target and :func:`shape_of_graph`: an engine, or why there is none."""


def check_opened(
    model: ir.Model,
    path: str | os.PathLike[str],
    options: CheckOptions,
    floats: FloatEngines | None = None,
) -> CheckResult:
    """Check a model that :func:`fuseq.checks.opening.open_model` opened; it is only read.

    Args:
        model: The opened model.
        path: Where it came from.
        options: What the user decided.
        floats: Float engines of checks before with the same options; new ones are added.

    Raises:
        OptionError: A target, GPU or shape is not allowed.
    """
    targets = [parse_target(text, options.gpu) for text in options.targets]
    rules = chosen_rules(options.select, options.ignore)
    findings: list[Finding] = []
    rows: list[TargetResult] = []
    twins = _Twins(model, floats if floats is not None else {})
    for target in targets:
        context, row = _context(Path(path).name, model, target, options, twins)
        rows.append(row)
        findings += _run(rules, context)
    coverage = coverage_of(model, options.batch)
    return CheckResult(str(path), tuple(findings), tuple(rows), coverage)


def check_engine(
    layers_file: str | os.PathLike[str],
    profile_file: str | os.PathLike[str] | None = None,
    model_file: str | os.PathLike[str] | None = None,
    options: CheckOptions | None = None,
) -> CheckResult:
    """Check an engine that trtexec described; a model adds source lines and the rules that read models.

    Rules that ask what a target fuses ask the ``tensorrt:smNN`` of the options, because trtexec is
    TensorRT's; its files do not name the GPU, so without one :data:`ENGINE_TARGET` is assumed.

    Raises:
        TargetError: A file is not what trtexec writes.
        ModelError: The model cannot be used.
    """
    options = options or CheckOptions()
    engine = read_engine(
        Path(layers_file), Path(profile_file) if profile_file is not None else None
    )
    with quiet_libraries():
        model = open_model(model_file) if model_file is not None else None
    fmt = _format_of(model) if model is not None else ""
    context = Context(
        file=Path(layers_file).name, model=model, engine=engine, batch=options.batch,
        format=fmt, keep_float=options.keep_float,
    )  # fmt: skip
    notes = engine.notes
    if fmt:
        named = next((t for t in options.targets if t.startswith(_SIMULATED)), None)
        if named is None:
            notes = (*notes, f"fusion rules of {ENGINE_TARGET} are assumed; --target names another")
        with contextlib.suppress(TargetError):  # a GPU without the format: the engine proves it has
            rules = parse_target(named or ENGINE_TARGET, options.gpu if named else None).rules(fmt)
            context = dataclasses.replace(context, rules=rules)
    findings = _run(chosen_rules(options.select, options.ignore), context)
    row = TargetResult("", True, "", engine, None, False)
    coverage = coverage_of(model, options.batch) if model is not None else None
    return CheckResult(str(layers_file), tuple(findings), (row,), coverage, notes)


@dataclasses.dataclass
class _Twins:
    """Float twins of one model by precision, made when first asked for."""

    model: ir.Model
    engines: FloatEngines
    made: dict[str, ir.Model | None] = dataclasses.field(default_factory=dict)

    def of(self, precision: str) -> ir.Model | None:
        if precision not in self.made:
            self.made[precision] = float_twin(self.model, precision)
        return self.made[precision]


def _context(
    file: str, model: ir.Model, target: Target, options: CheckOptions, twins: _Twins
) -> tuple[Context, TargetResult]:
    fmt = _format_of(model)
    context = Context(
        file=file, model=model, target=target, format=fmt, batch=options.batch,
        simulated=target.name.startswith(_SIMULATED), keep_float=options.keep_float,
    )  # fmt: skip
    if fmt:
        with contextlib.suppress(TargetError):  # a GPU without the format: FQ206 names the nodes
            context = dataclasses.replace(context, rules=target.rules(fmt))
    why = _not_compiled(model, target, options)
    if why:
        return context, TargetResult(target.name, None, why, None, None, context.simulated)
    try:
        profile = profile_for(model, options.batch, options.shapes)
    except OptionError as error:
        if options.shapes:
            raise  # a shape that the user gave does not fit; one that is missing only costs the engine
        words = f"not compiled: {error}"
        return context, TargetResult(target.name, None, words, None, None, context.simulated)
    try:
        engine = target.compile(model, profile)
    except TargetError as error:
        context = dataclasses.replace(context, refusal=str(error))
        return context, TargetResult(target.name, False, str(error), None, None, context.simulated)
    float_engine, words = _float_engine(target, profile, twins) if fmt else (None, "")
    context = dataclasses.replace(context, engine=engine, float_engine=float_engine)
    return context, TargetResult(target.name, True, words, engine, float_engine, context.simulated)


def _float_engine(
    target: Target, profile: ShapeProfile, twins: _Twins
) -> tuple[Engine | None, str]:
    """The engine of the model without Q/DQ, or why there is none to compare with."""
    twin = twins.of(target.precision)
    if twin is None:
        return None, "not compared with float: a scale cannot be read"
    key = (target.name, shape_of_graph(twin))
    if key not in twins.engines:
        try:
            twins.engines[key] = target.compile(twin, profile), ""
        except TargetError as error:
            twins.engines[key] = None, f"not compared with float: without Q/DQ {error}"
    return twins.engines[key]


def _not_compiled(model: ir.Model, target: Target, options: CheckOptions) -> str:
    if not options.compiles:
        return "not compiled: --no-compile"
    if not target.predicts:
        return "not compiled: this target measures, and `fuseq compile` does so"
    if len(model.graph) > MAX_COMPILED_NODES:
        return f"not compiled: {len(model.graph)} nodes, the limit is {MAX_COMPILED_NODES}"
    return target.missing() or ""


def _format_of(model: ir.Model) -> str:
    """The one format that most of the Q/DQ store: fp8 wins over int8, which the stem may keep."""
    found = quantized_formats(model.graph)
    return "fp8" if "fp8" in found else "int8" if "int8" in found else ""


def _run(rules: Sequence[Rule], context: Context) -> list[Finding]:
    findings: list[Finding] = []
    for rule in rules:
        if (context.model if rule.reads == "model" else context.engine) is not None:
            findings += rule.check(context)
    return findings
