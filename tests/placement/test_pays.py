"""What does not pay is taken out, judged by engines; engines here are made of hand-written kernels,
and one test asks the real compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir
import pytest

import fuseq
from fuseq.placement.cells import Trial, cells_of
from fuseq.placement.pays import keep_what_pays
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use
from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo
from tests.graphs import conv_net, normal


def _kernel(us: float, *nodes: str, alone: bool = False) -> Kernel:
    kind = KernelType.QUANTIZE if alone else KernelType.CONVOLUTION
    data = (TensorInfo(nodes[0], (ord(nodes[0][-1]),), "fp16", 2),)
    return Kernel(nodes[0], kind, "k", data, (), nodes=nodes, predicted_us=us)


def _plan(*regions: str) -> Plan:
    tensors = tuple(
        QuantizedTensor(f"t_{r}", "activation", "int8", None, f"t_{r}", (Use(r, 0),), r, "why")
        for r in regions
    )
    made = tuple(Region(r, "conv block", (r,), True, "quantized: why") for r in regions)
    return Plan("t:x", "int8", "fp16", "pays", "0", tensors, made)


FLOAT = Engine("t:x", (_kernel(10, "a"), _kernel(10, "b"), _kernel(10, "c")))
QUANTIZED_US = {"a": 4.0, "b": 9.0, "c": 8.0}
Q_US = {"a": 2.0, "b": 3.0, "c": 1.0}


def _compile(plan: Plan) -> Trial:
    """Each quantized region runs its kernel and a Q alone; the others as in float."""
    quantized = {region.name for region in plan.regions if region.quantized}
    kernels, served = [], {}
    for name in "abc":
        if name in quantized:
            kernels += [_kernel(Q_US[name], f"q_{name}", alone=True)]
            kernels += [_kernel(QUANTIZED_US[name], name)]
            served[f"q_{name}"] = (name,)
        else:
            kernels.append(_kernel(10, name))
    return Trial(plan, Engine("t:x", tuple(kernels)), served, conv_net())


def test_the_region_that_loses_is_left_in_float_with_both_times() -> None:
    best = keep_what_pays(_plan("a", "b", "c"), FLOAT, _compile)
    assert isinstance(best, Trial)
    assert [t.region for t in best.plan.tensors] == ["a", "c"]
    reasons = {region.name: region.reason for region in best.plan.regions}
    assert reasons["b"] == (
        "float: quantized it would take 12.0 us against 10.0 us in float (predicted)"
    )
    assert reasons["a"] == "quantized: why; 6.0 us against 10.0 us in float (predicted)"
    assert best.engine.predicted_us == pytest.approx(25.0)
    assert best.plan.prediction is not None
    assert best.plan.prediction.float_us == 30.0
    assert best.plan.prediction.quantized_us == 25.0


def test_regions_that_share_a_kernel_are_judged_together() -> None:
    trial = _compile(_plan("a", "b", "c"))
    shared = Engine("t:x", (_kernel(20, "a", "b"), _kernel(10, "c")))
    cells = {cell.regions: cell.gain_us for cell in cells_of(trial, shared)}
    assert cells == {("a", "b"): pytest.approx(2.0), ("c",): pytest.approx(1.0)}


def test_a_q_that_strands_in_a_cell_of_several_regions_is_taken_out() -> None:
    """a and b share a float kernel and gain together; b alone loses."""
    shared = Engine("t:x", (_kernel(20, "a", "b"), _kernel(10, "c")))
    best = keep_what_pays(_plan("a", "b", "c"), shared, _compile)
    assert isinstance(best, Trial)
    assert [t.region for t in best.plan.tensors] == ["a", "c"]
    reason = next(r.reason for r in best.plan.regions if r.name == "b")
    assert reason.startswith("float: its Q or DQ would run as a kernel of its own")


def test_nothing_is_returned_when_nothing_pays() -> None:
    fast = Engine("t:x", (_kernel(1, "a"), _kernel(1, "b"), _kernel(1, "c")))
    nothing = keep_what_pays(_plan("a", "b", "c"), fast, _compile)
    assert isinstance(nothing, Plan)
    assert not nothing.tensors
    assert [region.reason for region in nothing.regions] == [
        "float: quantized it would take 6.0 us against 1.0 us in float (predicted)",
        "float: quantized it would take 12.0 us against 1.0 us in float (predicted)",
        "float: quantized it would take 9.0 us against 1.0 us in float (predicted)",
    ]


def _thin(us: float) -> Callable[[Plan], Trial]:
    """Compiles as :func:`_compile`, where what is not the region a takes ``us`` longer in all."""

    def compile_plan(plan: Plan) -> Trial:
        trial = _compile(plan)
        kernels = (*trial.engine.kernels, _kernel(us, "rest"))
        return dataclasses.replace(trial, engine=Engine("t:x", kernels))

    return compile_plan


@pytest.mark.parametrize(("min_gain", "kept"), [(2.0, False), (1.5, True), (0.0, True)])
def test_a_gain_that_is_not_worth_its_rounding_stays_float(min_gain: float, kept: bool) -> None:
    """a saves 4 of 10 us, which is 1.6 % of the engine."""
    floats = Engine("t:x", (*FLOAT.kernels, _kernel(220, "rest")))
    best = keep_what_pays(_plan("a"), floats, _thin(220.0), min_gain)
    assert isinstance(best, Trial) is kept
    if isinstance(best, Plan):
        (region,) = best.regions
        assert not best.tensors and not region.quantized
        assert region.reason == (
            "float: all that gains would gain the engine 246.0 us against 250.0 us, 1.60 % "
            "(predicted), less than --min-gain 2"
        )
        assert best.notes == (
            "the best placement is predicted at 246.0 us against 250.0 us, 1.60 % less; "
            "--min-gain 0 takes it.",
        )
        assert best.prediction is not None and best.prediction.quantized_us == 250.0


def test_a_cell_of_several_regions_that_gains_too_little_is_left_in_float() -> None:
    """b and c share their kernels and save 0.1 us of 21.1 together; a saves 4 of 10."""

    def compile_plan(plan: Plan) -> Trial:
        quantized = {region.name for region in plan.regions if region.quantized}
        both = _kernel(21.0 if {"b", "c"} <= quantized else 21.1, "b", "c")
        engine = Engine("t:x", (_kernel(6.0 if "a" in quantized else 10.0, "a"), both))
        return Trial(plan, engine, {}, conv_net())

    floats = compile_plan(_plan()).engine
    best = keep_what_pays(_plan("a", "b", "c"), floats, compile_plan, 2.0)
    assert isinstance(best, Trial)
    assert [t.region for t in best.plan.tensors] == ["a"]
    assert best.engine.predicted_us == pytest.approx(27.1)
    assert {region.name: region.reason for region in best.plan.regions}["c"] == (
        "float: quantized it would take 21.0 us against 21.1 us in float together with 1 regions "
        "that share its kernels (predicted)"
    )
    every = keep_what_pays(_plan("a", "b", "c"), floats, compile_plan, 0.0)
    assert isinstance(every, Trial)
    assert [t.region for t in every.plan.tensors] == ["a", "b", "c"]


@pytest.mark.parametrize("channels", [16, 256])
def test_the_real_compiler_judges(channels: int) -> None:
    model = conv_net(channels=channels)
    data = [{"x": normal(1, channels, 8, 8, scale=1.0)}]
    result = fuseq.quantize(model, calib=data, options=fuseq.QuantizeOptions(batch=1))
    assert result.engine is not None and result.float_engine is not None
    assert result.engine.predicted_us <= result.float_engine.predicted_us
    quantized = any(region.quantized for region in result.plan.regions)
    assert quantized == any(node.op_type == "QuantizeLinear" for node in result.model.graph)
    assert isinstance(result.model, ir.Model)
