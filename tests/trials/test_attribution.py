"""One compile, several moves: each gets the difference of the kernels around it."""

from __future__ import annotations

import pytest

from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo
from fuseq.trials.attribution import attribute


def _kernel(us: float, *nodes: str, dtype: str = "fp16", reads: str = "") -> Kernel:
    data = (TensorInfo(reads or "x", (4,), dtype, 8),)
    out = (TensorInfo("copy" if not nodes else f"{nodes[-1]}.out", (4,), dtype, 8),)
    return Kernel("k", KernelType.GEMM, "gemm", data, out, nodes=nodes, predicted_us=us)


BASE = Engine("t:x", (_kernel(10, "a"), _kernel(10, "b"), _kernel(10, "c"), _kernel(10, "d")))
ZONES = [frozenset("a"), frozenset("c")]


def test_each_move_gets_the_kernels_around_it() -> None:
    tried = Engine(
        "t:x",
        (
            _kernel(4, "a", dtype="int8"),
            _kernel(1, "q"),
            _kernel(10, "b"),
            _kernel(12, "c", dtype="int8"),
            _kernel(10, "d"),
        ),
    )
    found = attribute(BASE, tried, ZONES, {"q": frozenset("a")}, "latency")
    assert found.gains == (pytest.approx(5.0), pytest.approx(-2.0))
    assert not found.entangled
    assert found.rest == 0.0


def test_moves_whose_kernels_join_are_entangled() -> None:
    tried = Engine("t:x", (_kernel(15, "a", "b", "c"), _kernel(10, "d")))
    found = attribute(BASE, tried, ZONES, {}, "latency")
    assert found.entangled == {0, 1}
    assert sum(found.gains) == pytest.approx(15.0)


def test_what_no_move_touches_is_the_rest() -> None:
    tried = Engine("t:x", (*BASE.kernels[:3], _kernel(9, "d")))
    found = attribute(BASE, tried, ZONES, {}, "latency")
    assert found.gains == (0.0, 0.0)
    assert found.rest == pytest.approx(1.0)


def test_a_copy_without_nodes_counts_for_the_kernel_that_reads_it() -> None:
    reader = _kernel(10, "a", reads="copy")
    tried = Engine("t:x", (_kernel(3), reader, *BASE.kernels[1:]))
    found = attribute(BASE, tried, ZONES, {}, "latency")
    assert found.gains == (pytest.approx(-3.0), 0.0)


def test_bytes_are_split_like_time() -> None:
    tried = Engine("t:x", (_kernel(4, "a", dtype="int8"), *BASE.kernels[1:]))
    small = Engine(
        "t:x",
        (
            Kernel("k", KernelType.GEMM, "gemm", (TensorInfo("a", (4,), "int8", 4),), (),
                   nodes=("a",), predicted_us=50.0),
            *BASE.kernels[1:],
        ),
    )  # fmt: skip
    assert attribute(BASE, tried, ZONES, {}, "bytes").gains == (0.0, 0.0)
    assert attribute(BASE, small, ZONES, {}, "bytes").gains == (12.0, 0.0)
