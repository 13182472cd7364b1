"""Rich tables of plans and engines. Model text is untrusted: control characters and markup are escaped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fuseq.placement.plan import Plan
from fuseq.targets.base import Engine, Kernel, TensorInfo

_MB = 1e6
_NODES_SHOWN = 4
"""ONNX nodes of a kernel that a table names; --json has all."""


def safe(text: str, limit: int = 200) -> str:
    """Text from a model, without control characters and with rich markup escaped."""
    printable = "".join(char if char.isprintable() else "�" for char in text[:limit])
    return escape(printable)


def engine_table(engines: Sequence[tuple[str, Engine]], title: str) -> Table:
    """One row an engine: kernels, alone, activation MB, weights MB, engine MB, predicted us.

    Where kernels were measured, the sum of their times stands instead of a prediction.
    """
    measured = any(engine.measured_us is not None for _, engine in engines)
    table = Table(title=safe(title), title_justify="left")
    table.add_column("engine")
    for heading in ("kernels", "only Q/DQ", "activation MB", "weights MB", "engine MB"):
        table.add_column(heading, justify="right")
    table.add_column("measured us" if measured else "predicted us", justify="right")
    for name, engine in engines:
        table.add_row(
            safe(name),
            str(len(engine.kernels)),
            str(len(engine.alone)),
            f"{engine.activation_bytes / _MB:.1f}",
            f"{engine.weights_bytes / _MB:.1f}",
            f"{engine.engine_bytes / _MB:.1f}",
            f"{(engine.measured_us or 0.0) if measured else engine.predicted_us:.1f}",
        )
    return table


def kernel_table(engine: Engine, limit: int | None = None) -> Table:
    """The kernels in launch order, or the ``limit`` that are predicted slowest."""
    kernels: Sequence[Kernel] = engine.kernels
    if limit is not None:
        kernels = sorted(kernels, key=lambda kernel: -(_time_us(kernel) or 0))[:limit]
    table = Table(title=f"kernels of {safe(engine.target)}", title_justify="left")
    table.add_column("kernel")
    table.add_column("type", no_wrap=True)
    table.add_column("reads", overflow="fold")
    table.add_column("writes", overflow="fold")
    measured = engine.measured_us is not None
    table.add_column("measured us" if measured else "predicted us", justify="right", no_wrap=True)
    table.add_column("ONNX nodes")
    for kernel in kernels:
        table.add_row(
            _one_line(kernel.name, 200),
            kernel.type.value,
            _tensors(kernel.inputs),
            _tensors(kernel.outputs),
            f"{_time_us(kernel) or 0.0:.1f}",
            _one_line(_first_nodes(kernel.nodes), 400),
        )
    return table


def _one_line(text: str, limit: int) -> Text:
    """Cut where the terminal ends: a kernel is one line, whatever its name."""
    cell = Text.from_markup(safe(text, limit), overflow="ellipsis")
    cell.no_wrap = True
    return cell


def _first_nodes(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NODES_SHOWN} more" if len(nodes) > _NODES_SHOWN else ""
    return ", ".join(nodes[:_NODES_SHOWN]) + more


def _time_us(kernel: Kernel) -> float | None:
    return kernel.predicted_us if kernel.measured_us is None else kernel.measured_us


def plan_table(plan: Plan, every: bool = False) -> Table:
    """Decisions of a plan by pattern and reason; with ``every``, one row a region."""
    table = Table(
        title=f"{plan.format} plan for {safe(plan.target)} ({plan.policy})", title_justify="left"
    )
    if every:
        for heading in ("region", "pattern", "decision"):
            table.add_column(heading, overflow="fold")
        for region in plan.regions:
            table.add_row(safe(region.name), region.pattern, safe(region.reason, 400))
        return table
    table.add_column("pattern")
    table.add_column("regions", justify="right")
    table.add_column("decision", overflow="fold")
    counts = Counter(
        (region.pattern, region.quantized, gist(region.reason)) for region in plan.regions
    )
    for (pattern, _, told), count in counts.most_common():
        table.add_row(pattern, str(count), safe(told, 300))
    if not counts:
        table.add_row("none", "0", "the model has no layer that could be quantized")
    return table


def gist(reason: str) -> str:
    """A reason without what differs from region to region, so that equal ones are counted."""
    if "less than --min-gain" in reason:
        return reason
    if "(predicted)" in reason or "estimated" in reason or "measured at" in reason:
        kept = reason.startswith("quantized")
        return "quantized: predicted faster" if kept else "float: predicted slower when quantized"
    if reason.endswith(" in calibration"):
        return re.sub(r"^float: \S+ is ", "float: its tensor is ", reason)
    return "quantized" if reason.startswith("quantized") else reason


def _tensors(tensors: Sequence[TensorInfo]) -> str:
    parts = []
    for tensor in tensors[:3]:
        shape = "x".join(map(str, tensor.shape))
        parts.append(f"{tensor.dtype} {shape}")
    if len(tensors) > 3:
        parts.append(f"and {len(tensors) - 3} more")
    return safe(", ".join(parts))
