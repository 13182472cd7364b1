"""Moves change a plan as they say, equal blocks are one problem, and problems that lie apart share a plan."""

from __future__ import annotations

import dataclasses
import random

import onnx_ir as ir
import pytest

from fuseq.options import QuantizeOptions
from fuseq.passes.canonical import canonicalize
from fuseq.placement.plan import Plan
from fuseq.planning import Job, everything, open_job
from fuseq.trials.moves import Move, moves_from, together
from fuseq.trials.packing import Problem, pack
from fuseq.trials.points import Points, points_of
from fuseq.trials.problems import Problems
from fuseq.trials.surroundings import labels, surroundings_of, zone
from tests.graphs import attention_net, from_text, named, normal
from tests.trials.test_searching import tower


def _job(model: ir.Model, target: str = "tensorrt-rtx:sm89", fmt: str = "fp8") -> Job:
    return open_job(model, QuantizeOptions(format=fmt, target=target, batch=8))


def _points(job: Job) -> Points:
    return points_of(job, everything(job))


def _moves(plan: Plan, points: Points, kind: str) -> list[Move]:
    return [move for move in moves_from(plan, points) if move.kind == kind]


def _decision(plan: Plan) -> tuple[frozenset[object], frozenset[str]]:
    return frozenset(plan.tensors), frozenset(r.name for r in plan.regions if r.quantized)


def test_leaving_and_quantizing_again_is_where_it_began() -> None:
    points = _points(_job(tower(2)))
    plan = points.usual
    for leave in _moves(plan, points, "leave"):
        left = leave.apply(plan)
        assert leave.subject not in {entry.region for entry in left.tensors}
        back = next(m for m in _moves(left, points, "quantize") if m.subject == leave.subject)
        again = back.apply(left)
        usual = {e for e in plan.tensors if e in points.entries(leave.subject)}
        assert usual.issubset(again.tensors)
        assert _decision(again)[1] == _decision(plan)[1]


def test_every_move_fits_and_does_not_fit_twice() -> None:
    points = _points(_job(tower(2)))
    moves = moves_from(points.usual, points)
    assert {"leave", "granularity", "store"} <= {move.kind for move in moves}
    for move in moves:
        assert move.fits(points.usual)
        assert not move.fits(move.apply(points.usual))


def test_a_weight_changes_between_one_scale_and_one_a_channel() -> None:
    points = _points(_job(tower(1)))
    move = next(m for m in _moves(points.usual, points, "granularity") if "n_a0" in m.nodes)
    before = next(e for e in points.usual.tensors if e.tensor == "wa0")
    after = next(e for e in move.apply(points.usual).tensors if e.tensor == "wa0")
    assert {before.axis, after.axis} == {None, 0}


def test_weights_with_one_scale_get_their_own_and_share_it_again() -> None:
    points = _points(_job(tower(1)))
    shared = tuple(
        dataclasses.replace(e, group="m") if e.tensor in ("wa0", "wb0") else e
        for e in points.usual.tensors
    )
    points = dataclasses.replace(points, usual=dataclasses.replace(points.usual, tensors=shared))
    (move,) = _moves(points.usual, points, "own scales")
    apart = move.apply(points.usual)
    groups = {e.tensor: e.group for e in apart.tensors if e.kind == "weight"}
    assert (groups["wa0"], groups["wb0"]) == ("wa0", "wb0")
    (joined,) = _moves(apart, points, "one scale")
    assert set(joined.apply(apart).tensors) == set(shared)


def test_an_attention_may_lose_its_softmax_pair() -> None:
    points = _points(_job(attention_net()))
    unpair = [m for m in _moves(points.usual, points, "unpair") if m.removed[0].known_amax == 1.0]
    assert len(unpair) == 1
    assert len(unpair[0].apply(points.usual).tensors) == len(points.usual.tensors) - 1


def test_what_rules_refuse_can_be_tried_and_what_the_user_refuses_cannot() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[8, 32, 56, 56] x) => (float[8, 32, 56, 56] y) {
      y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 32> (x, w) }"""
    model = named(from_text(text, w=normal(32, 1, 3, 3)))
    job = _job(model, fmt="int8")
    points = _points(job)
    assert not points.usual.tensors
    assert [m.subject for m in _moves(points.usual, points, "quantize")] == ["n_y"]
    options = dataclasses.replace(job.options, exclude=("n_y",))
    kept = _points(open_job(model, options))
    assert _moves(kept.usual, kept, "quantize") == []


def test_moves_together_do_what_each_does() -> None:
    points = _points(_job(tower(3)))
    moves = _moves(points.usual, points, "leave")[1:3]
    both = together(moves).apply(points.usual)
    one_by_one = moves[1].apply(moves[0].apply(points.usual))
    assert _decision(both) == _decision(one_by_one)


def test_equal_blocks_have_equal_labels_until_one_is_decided_otherwise() -> None:
    model = tower(9)
    canonicalize(model)
    points = _points(_job(tower(9)))
    around = surroundings_of(model.graph)
    words = labels(around, points.usual)
    assert words["n_a4"] == words["n_a5"]
    assert words["n_a4"] != words["n_b4"]
    leave = next(m for m in _moves(points.usual, points, "leave") if m.subject == "n_a4")
    words = labels(around, leave.apply(points.usual))
    assert words["n_a4"] != words["n_a5"]


def test_a_zone_grows_by_steps() -> None:
    around = surroundings_of(tower(2).graph)
    assert zone(around, ["n_r0"], 0) == {"n_r0"}
    assert zone(around, ["n_r0"], 1) == {"n_a0", "n_r0", "n_b0"}
    assert "n_h0" in zone(around, ["n_r0"], 2)


def test_equal_blocks_are_one_problem_and_problems_share_a_plan() -> None:
    job = _job(tower(9))
    points = _points(job)
    around = surroundings_of(job.model.graph)
    problems = Problems(points, around, random.Random(0)).open(points.usual, {}, {})
    leave = [p for p in problems if p.moves[0].kind == "leave"]
    assert sum(len(p.moves) for p in leave) == len(_moves(points.usual, points, "leave"))
    assert max(len(p.moves) for p in leave) >= 4
    packed = pack(problems, around, points.usual, 4)
    assert len(packed) == 4
    for _, probes in packed:
        seen = [node for probe in probes for node in probe.zone]
        assert len(seen) == len(set(seen))
    assert max(len(probes) for _, probes in packed) >= 2


def test_a_problem_that_stays_tangled_gets_a_plan_of_its_own() -> None:
    job = _job(tower(4))
    points = _points(job)
    around = surroundings_of(job.model.graph)
    moves = _moves(points.usual, points, "leave")
    problems = [Problem(str(n), (move,), 2 if n == 0 else 0) for n, move in enumerate(moves)]
    packed = pack(problems, around, points.usual, 4)
    assert len(packed[0][1]) == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_answered_problems_are_not_asked_again(seed: int) -> None:
    job = _job(tower(3))
    points = _points(job)
    asked = Problems(points, surroundings_of(job.model.graph), random.Random(seed))
    first = asked.open(points.usual, {}, {})
    for problem in first:
        asked.close(problem, -1.0)
    second = asked.open(points.usual, {}, {})
    assert second  # moves together
    assert not {p.key for p in first} & {p.key for p in second}


def test_a_region_that_saves_little_is_left_before_one_that_saves_much() -> None:
    job = _job(tower(2))
    points = _points(job)
    problems = Problems(points, surroundings_of(job.model.graph), random.Random(0))
    weight = dict.fromkeys(("n_a0", "n_b0", "n_a1", "n_b1"), 4.0)
    opened = problems.open(points.usual, weight, {"n_a0": -3.0, "n_a1": 3.0})
    order = [p.moves[0].subject for p in opened if p.moves[0].kind == "leave"]
    assert order.index("n_a0") < order.index("n_b0") < order.index("n_a1")
