"""FQ501: the quantized engine is predicted slower than the float engine of the same model."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Cost, Finding
from fuseq.checks.rule import Fixable, Rule


def _check(context: Context) -> Iterator[Finding]:
    """Both engines are there, and the file has Q/DQ."""
    engine, other, target = context.engine, context.float_engine, context.target
    if engine is None or other is None or target is None:
        return
    loss_us = engine.predicted_us - other.predicted_us
    if loss_us <= 0:
        return
    moved = engine.activation_bytes - other.activation_bytes
    yield RULE.finding(
        context,
        "",
        f"with its Q/DQ the model is predicted to take {engine.predicted_us:.1f} us, without them "
        f"{other.predicted_us:.1f} us in {target.precision} ({len(engine.kernels)} kernels against "
        f"{len(other.kernels)}, {len(engine.alone)} of them only Q/DQ)",
        "`fuseq fix` keeps the scales and quantizes only what pays; the other findings say what costs",
        cost=Cost(us=loss_us, nbytes=max(moved, 0)),
        confirmed=not context.simulated,
    )


RULE = Rule(
    code="FQ501",
    name="slower-than-float",
    severity="warning",
    summary="The quantized engine is predicted slower than the float one.",
    fixable=Fixable("unsafe", "planning anew changes which layers are quantized"),
    check=_check,
    reads="engine",
)
