"""Runs trials for a search: counts them, keeps a clock that a resumed search repeats, and the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fuseq.errors import TargetError
from fuseq.placement.cells import Trial
from fuseq.placement.plan import Plan
from fuseq.planning import Job
from fuseq.trials.executor import Session
from fuseq.trials.keys import plan_key
from fuseq.trials.objective import Objective, score
from fuseq.trials.outcome import Outcome
from fuseq.trials.workload import Workload, run_trial


@dataclasses.dataclass(frozen=True)
class Budget:
    """When a search ends; None is no limit.

    Attributes:
        seconds: Of trials, on the search's own clock: each trial counts what it took where it ran
            first, so that a search that is killed and run again decides the same.
        trials: Distinct plans compiled or read from the cache.
    """

    seconds: float | None
    trials: int | None


@dataclasses.dataclass
class Judge:
    """Compiles plans and remembers them.

    Attributes:
        job: The model.
        workload: What trials share.
        session: Where they run.
        objective: What is made small.
        budget: When to stop.
        spent_s: Seconds on the search's clock.
        trials: Distinct plans so far.
    """

    job: Job
    workload: Workload
    session: Session
    objective: Objective
    budget: Budget
    report: Callable[[int, float], None]
    spent_s: float = 0.0
    known: dict[str, Outcome] = dataclasses.field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Distinct plans so far."""
        return len(self.known)

    @property
    def is_spent(self) -> bool:
        """No trial is left in the budget."""
        seconds, trials = self.budget.seconds, self.budget.trials
        return (seconds is not None and self.spent_s >= seconds) or (
            trials is not None and self.trials >= trials
        )

    def outcomes(self, plans: Sequence[Plan]) -> list[Outcome]:
        """One outcome a plan, in order; equal plans run once."""
        keys = [plan_key(self.workload.digest, plan) for plan in plans]
        fresh = {k: p for k, p in zip(keys, plans, strict=True) if k not in self.known}
        found = self.session.map(run_trial, [(self.workload, plan) for plan in fresh.values()])
        self.known.update(zip(fresh, found, strict=True))
        if found:
            together = sum(outcome.seconds for outcome in found) / self.session.width
            self.spent_s += max(together, *(outcome.seconds for outcome in found))
            best = min((self.value(o) for o in self.known.values() if o.engine), default=0.0)
            self.report(self.trials, best)
        return [self.known[key] for key in keys]

    def trial(self, plan: Plan) -> Trial:
        """Compile one plan for the planner's own rules.

        Raises:
            TargetError: The compiler refused it.
        """
        outcome = self.outcomes([plan])[0]
        if outcome.engine is None:
            raise TargetError(outcome.refusal)
        return Trial(plan, outcome.engine, outcome.served, self.job.model)

    def value(self, outcome: Outcome) -> float:
        """What the objective makes of an outcome; infinite where the compiler refused the plan."""
        if outcome.engine is None:
            return float("inf")
        return score(outcome.engine, self.objective).value
