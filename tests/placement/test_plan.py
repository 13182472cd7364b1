"""Plans are data: JSON round trips, damage is named, another architecture is refused."""

from __future__ import annotations

import dataclasses
import json

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.errors import PlanError
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use, check_fits, fingerprint
from tests.graphs import conv_net

NAMES = st.text(min_size=1, max_size=12)
TENSORS = st.builds(
    QuantizedTensor,
    tensor=NAMES,
    kind=st.sampled_from(["activation", "weight", "bias"]),
    format=st.sampled_from(["int8", "uint8", "int7", "fp8", "int32"]),
    axis=st.none() | st.integers(0, 5),
    group=NAMES,
    uses=st.lists(st.builds(Use, NAMES, st.integers(0, 9)), max_size=3).map(tuple),
    region=NAMES,
    reason=st.text(max_size=20),
    known_amax=st.none() | st.floats(1e-3, 1e3),
)
REGIONS = st.builds(
    Region, NAMES, NAMES, st.lists(NAMES, max_size=3).map(tuple), st.booleans(), st.text(max_size=9)
)
PLANS = st.builds(
    Plan,
    target=NAMES,
    format=st.sampled_from(["int8", "fp8"]),
    precision=st.sampled_from(["fp16", "fp32"]),
    policy=st.sampled_from(["pays", "full"]),
    fingerprint=NAMES,
    tensors=st.lists(TENSORS, max_size=4).map(tuple),
    regions=st.lists(REGIONS, max_size=4).map(tuple),
    notes=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_json_round_trip_gives_the_same_plan(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def _plan() -> Plan:
    entry = QuantizedTensor(
        "r0", "activation", "int8", None, "r0", (Use("n_c1", 0),), "n_c1", "because"
    )
    weight = dataclasses.replace(entry, tensor="w2", kind="weight", region="n_c2", group="w2")
    regions = (
        Region("n_c1", "conv block", ("n_c1",), True, "quantized"),
        Region("n_c2", "conv block", ("n_c2",), True, "quantized"),
    )
    return Plan("t:x", "int8", "fp16", "pays", "0", (entry, weight), regions)


def test_without_drops_a_region_and_keeps_the_others() -> None:
    left = _plan().without(["n_c2"], "float: slower")
    assert [entry.tensor for entry in left.tensors] == ["r0"]
    assert [(r.name, r.quantized, r.reason) for r in left.regions] == [
        ("n_c1", True, "quantized"),
        ("n_c2", False, "float: slower"),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("tensors"), "tensors"),
        (lambda data: data.update(version=99), "version 99"),
        (lambda data: data["tensors"][0].update(axis="x"), "axis 'x'"),
        (lambda data: data["tensors"][0].update(kind="thing"), "kind 'thing'"),
        (lambda data: data["tensors"][0].update(known_amax=-1), "known_amax -1"),
        (lambda data: data["regions"][0].update(quantized="yes"), "quantized"),
        (lambda data: data.update(policy="all"), "policy 'all'"),
    ],
)
def test_a_damaged_plan_is_refused_by_name(change, said) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(_plan().to_json())
    change(data)
    with pytest.raises(PlanError, match=said):
        Plan.from_json(json.dumps(data), "p.json")


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(PlanError, match="p.json: not JSON"):
        Plan.from_json("{", "p.json")


def test_a_plan_of_another_architecture_is_refused() -> None:
    plan = _plan()
    check_fits(plan, conv_net())
    stranger = dataclasses.replace(
        plan, tensors=(dataclasses.replace(plan.tensors[0], tensor="elsewhere"),)
    )
    with pytest.raises(PlanError, match="'elsewhere'.*another architecture"):
        check_fits(stranger, conv_net())


def test_fingerprint_sees_structure_and_not_weights() -> None:
    first, second = conv_net(), conv_net()
    weight = second.graph.initializers["w1"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * 2, name="w1")
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(conv_net(residual=False))
