"""A plan that gains little says how close its outputs are, in the notes and in the plan."""

from __future__ import annotations

import dataclasses

import pytest

from fuseq.calibration.sources import open_source
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Candidate, Measurement
from fuseq.planning import Planned, compile_quantized, everything, open_job
from fuseq.quantizing import quantize
from fuseq.small_gain import told_where_small
from tests.graphs import from_text, named, normal

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[n, 8, 8, 8] x) => (float[n, 8, 8, 8] y) { r = Relu(x) y = Conv (r, w) }"""


def _planned(speedup: float, chosen: str, policy: str) -> Planned:
    model = named(from_text(TEXT, w=normal(8, 8, 1, 1, seed=1)))
    options = QuantizeOptions(target="onnxruntime:cpu", batch=2, policy=policy)  # type: ignore[arg-type]
    batches = [{"x": normal(2, 8, 8, 8, seed=2, scale=1.0)}]
    scales = quantize(
        model, calib=batches, options=dataclasses.replace(options, policy="full")
    ).scales
    job = open_job(model, options)
    full = everything(open_job(model, dataclasses.replace(options, policy="full")))
    candidates = tuple(
        Candidate(name, 1, 1.0, 1.0, speed)
        for name, speed in (("float", 1.0), ("everything", speedup))
    )
    plan = dataclasses.replace(full, measurement=Measurement("here", 3, candidates, chosen))
    trial = compile_quantized(job, plan, scales)
    planned = Planned(plan, trial.engine, trial, ())
    return told_where_small(job, planned, open_source(batches, job.model))


def test_a_small_gain_is_told_with_its_closeness() -> None:
    planned = _planned(1.04, "everything", "pays")
    (note,) = planned.notes
    assert note.startswith("a small gain: 1.04 times as fast as float")
    shown = float(note.split("to float's is ")[1].split(". ")[0])
    assert 0.999 < shown < 1
    assert planned.plan.notes[-1] == note
    assert planned.trial is not None and planned.trial.plan is planned.plan


@pytest.mark.parametrize(
    ("speedup", "chosen", "policy"),
    [(1.1, "everything", "pays"), (1.04, "float", "pays"), (1.04, "everything", "full")],
)
def test_nothing_is_told_otherwise(speedup: float, chosen: str, policy: str) -> None:
    assert not _planned(speedup, chosen, policy).notes
