"""The order of steps towards float."""

from __future__ import annotations

import math

from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use
from fuseq.trials.downgrades import Option, apply, downgrades


def _region(name: str) -> Region:
    return Region(name, "linear", (name,), True, "quantized")


def _entry(region: str, fmt: str) -> tuple[QuantizedTensor, ...]:
    use = (Use(region, 0),)
    return (QuantizedTensor(f"t_{region}", "activation", fmt, None, "g", use, region, "why"),)


def _int8(region: str, error: float, gain: float) -> Option:
    return Option("int8", error, gain, _entry(region, "int8"))


def test_the_most_error_for_the_least_gain_goes_first() -> None:
    a, b, c = _region("a"), _region("b"), _region("c")
    steps = downgrades(
        [(a, [_int8("a", 0.1, 10)]), (b, [_int8("b", 0.1, 1)]), (c, [_int8("c", 1e-4, -1)])]
    )
    assert [step.region.name for step in steps] == ["c", "b", "a"]
    assert [step.rate for step in steps] == [math.inf, 0.1, 0.01]


def test_another_format_is_a_step_where_it_is_on_the_hull() -> None:
    fp8 = Option("fp8", 0.01, 9.0, _entry("a", "fp8"))
    steps = downgrades([(_region("a"), [_int8("a", 0.1, 10), fp8])])
    assert [(step.option.format, round(step.rate, 6)) for step in steps] == [
        ("fp8", 0.09),
        ("float", round(0.01 / 9, 6)),
    ]


def test_a_format_that_is_worse_in_both_is_no_step() -> None:
    fp8 = Option("fp8", 0.2, 9.0, _entry("a", "fp8"))
    steps = downgrades([(_region("a"), [_int8("a", 0.1, 10), fp8])])
    assert [step.option.format for step in steps] == ["float"]


def test_a_region_without_error_goes_last() -> None:
    a, b = _region("a"), _region("b")
    steps = downgrades([(a, [_int8("a", 0.0, 5)]), (b, [_int8("b", 1e-9, 100)])])
    assert [step.region.name for step in steps] == ["b", "a"]


def test_of_a_regions_steps_the_last_counts() -> None:
    fp8 = Option("fp8", 0.01, 9.0, _entry("a", "fp8"))
    a = _region("a")
    plan = Plan("t:x", "int8", "fp16", "pays", "0", _entry("a", "int8"), (a,))
    steps = downgrades([(a, [_int8("a", 0.1, 10), fp8])])
    first = apply(plan, steps[:1])
    assert [entry.format for entry in first.tensors] == ["fp8"]
    assert first.regions[0].quantized
    both = apply(plan, steps)
    assert both.tensors == ()
    assert not both.regions[0].quantized
