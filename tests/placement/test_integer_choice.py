"""The chosen units are the cheapest of all subsets, by trying every subset."""

from __future__ import annotations

import itertools

import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.placement.integer_choice import MARGIN, choose_units, estimate, why_float
from fuseq.placement.integer_costs import Tensor
from fuseq.placement.min_cut import Network
from fuseq.targets.fusion import Cost

UNITS = 5
NANOSECONDS = st.integers(0, 40).map(float)


def _tensor(
    writer: int | None, readers: list[int], extra: float, outside: int, q: float, d: float
) -> Tensor:
    unique = tuple(dict.fromkeys(reader for reader in readers if reader != writer))
    return Tensor(ir.Value(name="t"), writer, unique, (extra,) * len(unique), outside, q, d)


TENSORS = st.lists(
    st.builds(
        _tensor,
        writer=st.none() | st.integers(0, UNITS - 1),
        readers=st.lists(st.integers(0, UNITS - 1), max_size=3),
        extra=NANOSECONDS,
        outside=st.integers(0, 2),
        q=NANOSECONDS,
        d=NANOSECONDS,
    ),
    max_size=7,
)
COSTS = st.lists(st.builds(Cost, NANOSECONDS, NANOSECONDS), min_size=UNITS, max_size=UNITS)


def _price(costs: list[Cost], tensors: list[Tensor], chosen: frozenset[int]) -> float:
    kernels = sum(
        cost.integer_ns * (1 + MARGIN) if number in chosen else cost.float_ns
        for number, cost in enumerate(costs)
    )
    return kernels + sum(tensor.conversion_ns(chosen.__contains__) for tensor in tensors)


@given(COSTS, TENSORS)
@settings(max_examples=150, deadline=None)
def test_no_other_subset_is_cheaper(costs: list[Cost], tensors: list[Tensor]) -> None:
    chosen = choose_units(costs, tensors)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(UNITS), size) for size in range(UNITS + 1)
    )
    prices = {frozenset(subset): _price(costs, tensors, frozenset(subset)) for subset in subsets}
    least = min(prices.values())
    assert abs(prices[chosen] - least) < 1e-6
    ties = [subset for subset, price in prices.items() if price - least < 1e-6]
    assert len(chosen) == min(map(len, ties))  # a tie stays float


@given(COSTS, TENSORS, st.sets(st.integers(0, UNITS - 1)))
@settings(max_examples=50, deadline=None)
def test_forced_units_are_chosen(
    costs: list[Cost], tensors: list[Tensor], forced: set[int]
) -> None:
    assert forced <= choose_units(costs, tensors, forced)


def test_an_island_pays_as_a_whole_or_not_at_all() -> None:
    """Ten units that each save 3 ns pay for conversions of 10 + 10 ns; six do not."""
    for count, pays in ((10, True), (6, False)):
        costs = [Cost(10.0, 7.0 / (1 + MARGIN))] * count
        inner = [_tensor(n, [n + 1], 0, 0, 10, 10) for n in range(count - 1)]
        tensors = [_tensor(None, [0], 0, 0, 10, 10), *inner, _tensor(count - 1, [], 0, 1, 10, 10)]
        assert len(choose_units(costs, tensors)) == (count if pays else 0)


def test_the_estimate_adds_conversions_to_kernels() -> None:
    costs = [Cost(100.0, 40.0), Cost(100.0, 400.0)]
    tensors = [_tensor(None, [0], 0, 0, 5, 7), _tensor(0, [1], 2, 1, 5, 7)]
    chosen = choose_units(costs, tensors)
    assert chosen == {0}
    total = estimate(costs, tensors, chosen)
    assert (total.float_ns, total.planned_ns) == (200.0, 40 + 100 + 5 + 7 + 7 + 2)
    assert why_float(1, costs, tensors, chosen) == (
        "its integer kernel is estimated at 0.4 us a sample, the float one at 0.1 us"
    )


def test_a_reason_never_contradicts_the_choice() -> None:
    costs = [Cost(5000.0, 4900.0)]
    tensors = [_tensor(None, [0], 0, 1, 30, 30)]
    assert why_float(0, costs, tensors, choose_units(costs, tensors)) == (
        "integers would save 0.1 of 5.0 us a sample, less than the error of the estimate"
    )


def test_minimum_cut_of_a_textbook_network() -> None:
    """Cormen et al., Introduction to Algorithms, figure 26.6: maximum flow 23."""
    network = Network()
    v1, v2, v3, v4 = (network.add_node() for _ in range(4))
    edges = [
        (Network.SOURCE, v1, 16), (Network.SOURCE, v2, 13), (v1, v3, 12), (v2, v1, 4), (v3, v2, 9),
        (v2, v4, 14), (v4, v3, 7), (v3, Network.SINK, 20), (v4, Network.SINK, 4),
    ]  # fmt: skip
    for start, end, capacity in edges:
        network.add_edge(start, end, capacity)
    side = network.source_side()
    assert side == {Network.SOURCE, v1, v2, v4}
    assert sum(c for start, end, c in edges if start in side and end not in side) == 23
