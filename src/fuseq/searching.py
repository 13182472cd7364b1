"""From a float model and data to the best plan that compiled trials find."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from fuseq.calibration.scales import Scales
from fuseq.errors import OptionError, TargetError
from fuseq.model import save
from fuseq.options import QuantizeOptions
from fuseq.placement.cells import Trial
from fuseq.placement.pays import keep_what_pays, prediction_of
from fuseq.placement.plan import Plan
from fuseq.planning import Job, Report, silent
from fuseq.quantizing import check_output
from fuseq.targets import parse_target
from fuseq.targets.base import Engine, Target
from fuseq.trials.accuracy import outputs_of, store_data
from fuseq.trials.cache import default_folder
from fuseq.trials.climb import Found, Step, climb
from fuseq.trials.constraint import Constraint
from fuseq.trials.executor import Session, parse_executor
from fuseq.trials.finishing import Guard, finished
from fuseq.trials.judge import Budget, Judge
from fuseq.trials.objective import Objective, check_objective
from fuseq.trials.outcome import Outcome
from fuseq.trials.prepare import Prepared, prepare, source_for
from fuseq.trials.surroundings import surroundings_of
from fuseq.trials.tradeoff import Point, Tradeoff, trade_off

DEFAULT_SECONDS = 150.0
"""Of trials, on the search's clock, where neither seconds nor trials are given."""


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """What a user decides about a search.

    Attributes:
        objective: ``latency``, ``bytes`` (moved) or ``size`` (of the engine).
        seconds: Of trials; None with ``trials`` given: no limit.
        trials: Distinct plans; None: no limit.
        seed: Orders what promises the same.
        executor: Where trials run (:mod:`fuseq.trials.executor`).
        cache: Folder of trials; None: ``.fuseq-cache`` beside the output, else the user's cache.
        constraint: What accuracy must be kept; None: none.
    """

    objective: Objective = "latency"
    seconds: float | None = None
    trials: int | None = None
    seed: int = 0
    executor: str = "processes"
    cache: str | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        """Refuse values that no search accepts.

        Raises:
            OptionError: Names the option, what was found, and what is allowed.
        """
        check_objective(self.objective)
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise OptionError(f"--budget {self.seconds} is no time; give seconds, more than 0.")
        if self.trials is not None and self.trials < 1:
            raise OptionError(f"--trials {self.trials} leaves nothing to try; give 1 or more.")

    @property
    def budget(self) -> Budget:
        """The limits, or the usual one."""
        if self.seconds is None and self.trials is None:
            return Budget(DEFAULT_SECONDS, None)
        return Budget(self.seconds, self.trials)


@dataclasses.dataclass(frozen=True)
class Searched:
    """What a search gave.

    Attributes:
        model: Strongly typed, with Q/DQ and low-precision weights.
        plan: The best plan.
        scales: Its scales by group.
        float_engine: Engine of the float model.
        rule_engine: Engine of the planner's plan, where the search began.
        engine: Engine of the best plan.
        steps: Accepted moves in order.
        curve: (seconds on the search's clock, best value) whenever trials ended.
        trials: Distinct plans that were compiled or read from the cache.
        seconds: Search clock at the end.
        tradeoff: The curve of accuracy against the objective, where a constraint was given.
        notes: What the user should know.
    """

    model: ir.Model
    plan: Plan
    scales: Scales
    float_engine: Engine
    rule_engine: Engine
    engine: Engine
    steps: tuple[Step, ...]
    curve: tuple[tuple[float, float], ...]
    trials: int
    seconds: float
    notes: tuple[str, ...]
    tradeoff: Tradeoff | None = None


def search(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    calib: object,
    data: object = None,
    options: QuantizeOptions | None = None,
    how: SearchOptions | None = None,
    report: Report = silent,
) -> Searched:
    """Search the best plan for ``model`` and write the quantized model to ``output``.

    The search begins with the planner's plan and never ends with a worse one.

    Args:
        model: Float ONNX file; workers open it too.
        output: Where the quantized ONNX file goes; None writes nothing.
        calib: Calibration data, as in :func:`fuseq.quantize`.
        data: Samples to judge accuracy on, where a constraint is given; the calibration data by
            default.
        options: Format, target and the rest.
        how: Objective, budget, seed, executor, cache.
        report: Called with (stage, done, total).

    Raises:
        FuseqError: The model, data, target or output cannot be used; nothing is written.
    """
    options, how = options or QuantizeOptions(), how or SearchOptions()
    check_output(model, output)
    executor = parse_executor(how.executor)
    folder = Path(how.cache) if how.cache else default_folder(output)
    check_judges(parse_target(options.target, options.gpu))
    prepared = prepare(model, calib, options, folder, report)
    samples = ""
    if how.constraint is not None:
        source = prepared.source if data is None else source_for(prepared.job, data)
        samples = str(store_data(folder.resolve(), source))
    with executor.opened() as session:
        result = _search(prepared, session, how, samples, report)
    if output is not None:
        save(result.model, output)
    return result


def check_judges(target: Target) -> None:
    """Refuse a target whose engines cannot be compared here.

    Raises:
        TargetError: Its compiler is missing, or its times are measured.
    """
    gap = target.missing()
    if gap is not None:
        raise TargetError(f"search needs the target's compiler: {gap}")
    if not target.predicts:
        raise TargetError(
            f"search on {target.name} is not supported: its times are measured, which move by more "
            "from run to run than most moves gain, and trials side by side would disturb each "
            f"other. fuseq quantize --target {target.name} times its candidates in turns and keeps "
            "the fastest; to search, use a tensorrt-rtx or tensorrt target."
        )


def _search(
    prepared: Prepared, session: Session, how: SearchOptions, samples: str, report: Report
) -> Searched:
    job, points, workload = prepared.job, prepared.points, prepared.workload
    curve: list[tuple[float, float]] = []
    judge = Judge(job, workload, session, how.objective, how.budget, _no_news)
    judge.report = _reporter(judge, curve, report)
    nothing = points.usual.without([r.name for r in points.usual.regions], "float: no data yet")
    float_trial = judge.trial(nothing)
    rules = _rule_trial(points.usual, float_trial, judge)
    start = Found(rules.plan, Outcome(rules.engine, rules.served, "", 0.0), _value(rules, judge))
    curve.append((judge.spent_s, start.value))
    around = surroundings_of(job.model.graph)
    best, steps = climb(start, points, around, judge, float_trial.engine, how.seed)
    notes = [_summary(start, best, steps, judge)]
    tradeoff = None
    if how.constraint is not None:
        tradeoff = trade_off(
            _as_trial(best, job), float_trial, prepared, judge, how.constraint, samples, report
        )
        notes.append(_kept(tradeoff))
        best = _found(tradeoff.chosen, judge)
    engine = best.outcome.engine or float_trial.engine
    prediction = prediction_of(float_trial.engine, engine)
    plan = dataclasses.replace(best.plan, prediction=prediction, notes=(*best.plan.notes, *notes))
    guard = _guard(how.constraint, tradeoff, prepared, judge, samples, report)
    final, scales, final_notes = finished(prepared, plan, guard, report)
    return Searched(
        model=final, plan=plan, scales=scales, float_engine=float_trial.engine,
        rule_engine=rules.engine, engine=engine, steps=tuple(steps), curve=tuple(curve),
        trials=judge.trials, seconds=judge.spent_s,
        notes=tuple(dict.fromkeys((*prepared.notes, *final_notes, *plan.notes))),
        tradeoff=tradeoff,
    )  # fmt: skip


def _guard(
    constraint: Constraint | None,
    tradeoff: Tradeoff | None,
    prepared: Prepared,
    judge: Judge,
    samples: str,
    report: Report,
) -> Guard | None:
    """What refining the chosen plan must not break; None where nothing was kept before."""
    if constraint is None or tradeoff is None or tradeoff.chosen.score < tradeoff.bar:
        return None
    nothing = prepared.points.usual.without(
        [region.name for region in prepared.points.usual.regions], "float: to compare with"
    )
    exact = outputs_of(judge.workload, [nothing], samples, judge.session, report)[0]
    return Guard(constraint, tradeoff.bar, exact, samples)


def _as_trial(found: Found, job: Job) -> Trial:
    engine = found.outcome.engine
    if engine is None:
        raise TargetError(found.outcome.refusal)
    return Trial(found.plan, engine, found.outcome.served, job.model)


def _found(point: Point, judge: Judge) -> Found:
    return Found(point.plan, judge.outcomes([point.plan])[0], point.value)


def _kept(tradeoff: Tradeoff) -> str:
    chosen, fastest = tradeoff.chosen, tradeoff.unconstrained
    met = "kept" if chosen.score >= tradeoff.bar else "missed even by the float plan"
    return (
        f"constraint {met}: {tradeoff.measure} {chosen.score:.5f}, at least {tradeoff.bar:.5f}; "
        f"{chosen.value:.1f} against {fastest.value:.1f} without it ({fastest.score:.5f})."
    )


def _rule_trial(usual: Plan, float_trial: Trial, judge: Judge) -> Trial:
    """The planner's own answer under ``pays``; the float model where it finds nothing that pays."""
    chosen = keep_what_pays(usual, float_trial.engine, judge.trial, min_gain_percent=0.0)
    if isinstance(chosen, Plan):
        return dataclasses.replace(float_trial, plan=chosen)
    return chosen


def _value(trial: Trial, judge: Judge) -> float:
    return judge.value(Outcome(trial.engine, trial.served, "", 0.0))


def _no_news(trials: int, best: float) -> None:
    del trials, best


def _reporter(
    judge: Judge, curve: list[tuple[float, float]], report: Report
) -> Callable[[int, float], None]:
    def news(trials: int, best: float) -> None:
        curve.append((judge.spent_s, best))
        report("search", trials, judge.budget.trials)

    return news


def _summary(start: Found, best: Found, steps: list[Step], judge: Judge) -> str:
    unit = "us (predicted)" if judge.objective == "latency" else "bytes"
    return (
        f"search: {len(steps)} moves accepted in {judge.trials} trials, from {start.value:.1f} to "
        f"{best.value:.1f} {unit}."
    )
