"""The fastest of measured candidates is kept, and the plan holds the numbers that say so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.errors import PlanError
from fuseq.measuring import choose_measured
from fuseq.options import QuantizeOptions
from fuseq.placement.integer_units import units_of
from fuseq.placement.measured_choice import fastest, sentence
from fuseq.placement.measured_costs import measured_costs, samples_in
from fuseq.placement.plan import Candidate, Measurement, Plan
from fuseq.planning import compile_float, compile_quantized, everything, open_job, plan
from fuseq.quantizing import Quantized, quantize
from fuseq.targets.base import Race, ShapeProfile, Timing
from fuseq.targets.onnxruntime.costs import NARROW
from tests.graphs import from_text, named, normal


def _net() -> ir.Model:
    """Two convolutions with a residual on x [n, 8, 16, 16], and a Softmax that stays float."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 8, 16, 16] x) => (float[n, 8, 16, 16] y) {
      c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
      r1 = Relu(c1)
      c2 = Conv (r1, w2)
      s = Add(c2, r1)
      y = Softmax <axis = 1> (s) }"""
    weights = {"w1": normal(8, 8, 3, 3, seed=1, scale=0.3), "b1": normal(8, seed=2)}
    return named(from_text(text, **weights, w2=normal(8, 8, 1, 1, seed=3, scale=0.3)))


OPTIONS = QuantizeOptions(target="onnxruntime:cpu", batch=2)


def _quantized(policy: str = "pays", given: Plan | None = None) -> Quantized:
    batches = [{"x": normal(2, 8, 16, 16, seed=seed)} for seed in range(2)]
    options = dataclasses.replace(OPTIONS, policy=policy)  # type: ignore[arg-type]
    return quantize(_net(), calib=batches, options=options, plan=given)


def _candidate(name: str, speedup: float) -> Candidate:
    return Candidate(name, 3, 1.0, 1.0, speedup)


def test_float_is_kept_unless_a_candidate_is_two_per_cent_faster() -> None:
    floating = _candidate("float", 1.0)
    assert fastest([floating, _candidate("a", 1.019)]) is floating
    assert fastest([floating, _candidate("a", 1.02), _candidate("b", 1.3)]).name == "b"
    assert fastest([floating]) is floating


@pytest.mark.parametrize("policy", ["pays", "full"])
def test_the_plan_is_the_fastest_that_was_measured(policy: str) -> None:
    result = _quantized(policy)
    measured = result.plan.measurement
    assert measured is not None
    names = [each.name for each in measured.candidates]
    assert names[:2] == ["float", "everything"] and measured.rounds >= 3
    assert measured.candidates[0].operators == 0 and measured.candidates[1].operators == 3
    wanted = "everything" if policy == "full" else fastest(measured.candidates).name
    assert measured.chosen == wanted
    assert bool(result.plan.tensors) == (wanted != "float")
    assert sentence(measured) in result.notes
    assert result.float_engine is not None and result.engine is not None
    assert result.float_engine.measured_us and result.engine.measured_us


def test_a_plan_file_is_applied_without_measuring_again() -> None:
    full = _quantized("full").plan
    slower = Measurement(
        "another machine", 9, (_candidate("float", 1.0), _candidate("x", 0.5)), "x"
    )
    given = Plan.from_json(dataclasses.replace(full, policy="pays", measurement=slower).to_json())
    assert given.measurement == slower
    result = _quantized("pays", given)
    assert result.plan == given
    stored = [n.op_type for n in result.model.graph if n.op_type == "QuantizeLinear"]
    assert len(stored) == 4  # x, r1, c2, s


def test_a_damaged_measurement_is_refused() -> None:
    data = json.loads(_quantized("full").plan.to_json())
    data["measurement"]["chosen"] = "none of them"
    with pytest.raises(PlanError, match="'none of them' is not one of"):
        Plan.from_json(json.dumps(data))


class _Stopwatch:
    """Says what it is told; the rest of the target is real."""

    machine = "a stopwatch"

    def __init__(self, speedups: Mapping[str, float]) -> None:
        self.speedups = speedups

    def measure(self, models: Mapping[str, ir.Model], profile: ShapeProfile) -> Race:
        times = []
        for name in models:
            ms = 10.0 / self.speedups.get(name, 1.0)
            times.append(Timing(name, ms, ms, (ms,) * 3, self.speedups.get(name, 1.0)))
        return Race(tuple(times), "by hand")


@pytest.mark.parametrize(
    ("speedups", "chosen"),
    [({"everything": 2.0}, "everything"), ({"everything": 0.5}, "float")],
)
def test_what_is_kept_follows_from_the_times(speedups: dict[str, float], chosen: str) -> None:
    job = open_job(_net(), OPTIONS)
    complete = everything(job)
    scales = _quantized("full").scales
    planned = choose_measured(
        job, complete, lambda _: scales, _Stopwatch(speedups), lambda *_: None
    )
    assert planned.plan.measurement is not None
    assert planned.plan.measurement.chosen == chosen
    assert planned.plan.measurement.machine == "a stopwatch, by hand"
    assert (planned.trial is None) == (chosen == "float")
    if chosen == "float":
        assert not planned.plan.tensors
        assert {region.quantized for region in planned.plan.regions} == {False}


def test_a_plan_without_data_is_measured_too() -> None:
    planned = plan(_net(), dataclasses.replace(OPTIONS, policy="full"))
    assert planned.plan.measurement is not None and planned.trial is not None
    assert planned.plan.measurement.chosen == "everything"


def test_measured_costs_are_the_kernels_times_for_one_sample() -> None:
    job = open_job(_net(), OPTIONS)
    rules = job.target.rules("int8")
    complete, scales = everything(job), _quantized("full").scales
    trial = compile_quantized(job, complete, scales)
    engine = compile_float(job)
    units = [unit for unit in units_of(job.model.graph, rules) if unit.name != "n_y"]
    samples = samples_in(job.model.graph, job.profile)
    assert samples == 2
    costs = measured_costs(units, engine, trial, NARROW, samples)
    assert set(costs.measured) == {"n_c1", "n_c2", "n_s"}
    for name in ("n_c1", "n_c2"):
        (kernel,) = (k for k in trial.engine.kernels if name in k.nodes)
        assert kernel.measured_us is not None
        np.testing.assert_allclose(costs.measured[name].integer_ns, kernel.measured_us * 500)
    in_float = sum(cost.float_ns for cost in costs.measured.values()) * samples
    kernels = [k for k in engine.kernels if k.nodes and "n_y" not in k.nodes]
    np.testing.assert_allclose(in_float, sum((k.measured_us or 0) * 1e3 for k in kernels))


def test_plan_files_keep_what_was_measured(tmp_path: Path) -> None:
    chosen = _quantized("full").plan
    chosen.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == chosen
