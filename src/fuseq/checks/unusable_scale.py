"""FQ301: a scale that is zero, negative, NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import drop_or_recompute
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import is_dequantize, is_quantize


def _check(context: Context) -> Iterator[Finding]:
    """One finding a scale tensor, at the first node that reads it."""
    seen = set()
    for node in context.graph:
        if not (is_quantize(node) or is_dequantize(node)) or len(node.inputs) < 2:
            continue
        value = node.inputs[1]
        tensor = constant(value)
        if value is None or tensor is None or value in seen:
            continue
        seen.add(value)
        scale = tensor.numpy().astype(np.float32).reshape(-1)
        bad = ~np.isfinite(scale) | (scale <= 0)
        if bad.any():
            first = int(bad.nonzero()[0][0])
            where = f"scale {first} of {scale.size}" if scale.size > 1 else "its scale"
            yield RULE.finding(
                context,
                node,
                f"{where} of {node.op_type} is {scale[first]:g}; a scale is a finite number above 0",
                "calibrate again with data that reaches this tensor, or leave it in float; a tensor "
                "that is always 0 takes any positive scale",
                tensor=value,
            )


RULE = Rule(
    code="FQ301",
    name="unusable-scale",
    severity="error",
    summary="A scale is zero, negative, NaN or infinite.",
    fixable=Fixable("unsafe", "the right scale is not in the file; the tensor is left in float"),
    check=_check,
    mend=drop_or_recompute,
)
