"""FQ302: a scale that FP16 cannot hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Fixable, Rule
from fuseq.checks.scale_mends import raise_to_half
from fuseq.passes.matching import constant
from fuseq.passes.quantizers import is_dequantize, is_quantize


def _check(context: Context) -> Iterator[Finding]:
    """A positive float32 scale that becomes 0 or infinite in FP16, the GPU targets' type."""
    if context.target is None or context.target.precision != "fp16":
        return
    seen = set()
    for node in context.graph:
        if not (is_quantize(node) or is_dequantize(node)) or len(node.inputs) < 2:
            continue
        source, value = node.inputs[0], node.inputs[1]
        tensor = constant(value)
        if value is None or tensor is None or value in seen:
            continue
        if source is not None and source.dtype is not None and source.dtype.name == "INT32":
            continue  # a bias: its scale is a product of two and never stored in FP16
        seen.add(value)
        scale = tensor.numpy().astype(np.float32).reshape(-1)
        good = scale[np.isfinite(scale) & (scale > 0)]
        with np.errstate(over="ignore", under="ignore"):
            half = good.astype(np.float16)
        bad = good[(half == 0) | np.isinf(half)]
        if bad.size:
            what = "0" if bad[0] < 1 else "infinite"
            yield RULE.finding(
                context,
                node,
                f"{bad.size} of {scale.size} scales become {what} in FP16 (the first is {bad[0]:g}), "
                f"the type that {context.target_name} wants around its kernels",
                "keep scales at 6e-8 or more (a channel of zeros takes any scale), or leave the tensor "
                "in float",
                tensor=value,
            )


RULE = Rule(
    code="FQ302",
    name="vanishing-scale",
    severity="warning",
    summary="A scale becomes 0 or infinite in FP16.",
    fixable=Fixable("safe", "a floor under the scale changes only values that FP16 cannot hold"),
    check=_check,
    mend=raise_to_half,
)
