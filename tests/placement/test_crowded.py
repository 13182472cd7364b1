"""Which trials are spared in crowded cells; engines are made of hand-written kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fuseq.placement.cells import Trial
from fuseq.placement.crowded import improve_crowded_cells
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use
from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo
from tests.graphs import conv_net


def _kernel(us: float, *nodes: str, alone: bool = False) -> Kernel:
    kind = KernelType.QUANTIZE if alone else KernelType.CONVOLUTION
    data = (TensorInfo(nodes[0], (ord(nodes[0][-1]),), "fp16", 2),)
    return Kernel(nodes[0], kind, "k", data, (), nodes=nodes, predicted_us=us)


def _plan(names: str) -> Plan:
    tensors = tuple(
        QuantizedTensor(f"t_{r}", "activation", "int8", None, f"t_{r}", (Use(r, 0),), r, "why")
        for r in names
    )
    made = tuple(Region(r, "conv block", (r,), True, "quantized: why") for r in names)
    return Plan("t:x", "int8", "fp16", "pays", "0", tensors, made)


FLOAT = Engine("t:x", (*(_kernel(10, name) for name in "abcd"), _kernel(0, "a", "b", "c", "d")))
"""The kernel that all share makes one cell of them."""


@dataclasses.dataclass
class _Compiler:
    """A product and a Q alone (d has none) for each quantized region; keeps what it tried.

    ``product_us`` is of a, b and c; what is not quantized takes 10 us.
    """

    product_us: float
    q_us: Mapping[str, float]
    d_us: float = 10
    tried: list[str] = dataclasses.field(default_factory=list)

    def compile(self, plan: Plan) -> Trial:
        quantized = [region.name for region in plan.regions if region.quantized]
        self.tried.append("".join(quantized))
        product_us = {**dict.fromkeys("abc", self.product_us), "d": self.d_us}
        kernels = [_kernel(product_us[n] if n in quantized else 10, n) for n in "abcd"]
        served = {f"q_{name}": (name,) for name in quantized if name in self.q_us}
        kernels += [
            _kernel(self.q_us[name], f"q_{name}", alone=True) for (name,) in served.values()
        ]
        return Trial(plan, Engine("t:x", tuple(kernels)), served, conv_net())

    def improve(self) -> str:
        """What stays quantized of a, b, c and d."""
        first = self.compile(_plan("abcd"))
        self.tried.clear()
        best = improve_crowded_cells(first, FLOAT, self.compile)
        return "".join(region.name for region in best.plan.regions if region.quantized)


def test_regions_that_gain_more_than_twice_what_their_q_costs_are_not_tried_without() -> None:
    """Products gain 6 us each; b's Q takes 4."""
    compiler = _Compiler(4, {"a": 3, "b": 4, "c": 2})
    assert compiler.improve() == "abcd"
    assert compiler.tried == ["acd"]


def test_regions_that_lose_are_left_out_one_group_after_another() -> None:
    """Products gain 2 us; the Qs of a and b take more."""
    compiler = _Compiler(8, {"a": 2.5, "b": 3, "c": 0.5})
    assert compiler.improve() == "cd"
    assert compiler.tried == ["acd", "cd"]


def test_products_that_lose_are_hope() -> None:
    """66 us behind float; the Qs take 6, but leaving out their products saves 60."""
    compiler = _Compiler(30, {"a": 2, "b": 3, "c": 1})
    assert compiler.improve() == "d"
    assert compiler.tried == ["acd", "cd", "d"]


def test_an_engine_too_far_behind_float_is_not_tried_further() -> None:
    """d, whose Q fuses, takes 40 us more than in float; the Qs of the others take 6."""
    compiler = _Compiler(10, {"a": 2, "b": 3, "c": 1}, d_us=50)
    assert compiler.improve() == "abcd"
    assert compiler.tried == []
