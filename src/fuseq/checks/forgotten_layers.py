"""FQ401: layers that look meant for quantization and stayed float."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.coverage import macs_of
from fuseq.checks.finding import Finding
from fuseq.checks.reading import Layer
from fuseq.checks.rule import Fixable, Rule
from fuseq.placement.planner import convolution_refusal
from fuseq.source_lines import module_path

_FORGOTTEN_SHARE = 0.25
"""Below a quarter of the multiply-adds it is a choice: first and last layers are often left out."""
_SHOWN = 3
_DECIDED_BY = "fuseq"


def _check(context: Context) -> Iterator[Finding]:
    """The file has Q/DQ, the target runs a layer in the format, its multiply-adds are more than a quarter
    of all such, and neither data nor weight is quantized. Decided layers do not count:

    1. ``keep-float`` in the settings names them.
    2. fuseq wrote the file: its plan says of each layer why it stays float.
    """
    model, rules = context.model, context.rules
    if model is None or rules is None or model.producer_name == _DECIDED_BY:
        return
    able = [layer for layer in context.layers if _is_able(layer, context)]
    left = [x for x in able if x.data_dequantize is None and x.weight_dequantize is None]
    total = sum(macs_of(layer, context.batch) for layer in able)
    forgotten = sum(macs_of(layer, context.batch) for layer in left)
    if not total or forgotten < _FORGOTTEN_SHARE * total:
        return
    names = ", ".join(_name(layer) for layer in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    yield RULE.finding(
        context,
        left[0].node,
        f"{len(left)} of {len(able)} layers that {context.target_name} runs in {context.format} have "
        f"no Q/DQ ({100 * forgotten / total:.0f} % of their multiply-adds): {names}{more}",
        "look for a layer class that the tool does not know, or a name that its recipe excludes; "
        "layers that are meant to stay float belong into keep-float of the settings",
        tensor=left[0].data,
    )


def _is_able(layer: Layer, context: Context) -> bool:
    rules = context.rules
    if rules is None or layer.node.op_type in rules.refused:
        return False
    if layer.is_depthwise and (rules.depthwise or rules.depthwise_activations is not None):
        return False
    if layer.is_conv and convolution_refusal(
        layer.node.op_type, layer.read_shape, layer.groups, rules
    ):
        return False
    name, module = layer.node.name or "", module_path(layer.node)
    return not any(
        fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(module, glob)
        for glob in context.keep_float
    )


def _name(layer: Layer) -> str:
    return module_path(layer.node) or layer.node.name or ""


RULE = Rule(
    code="FQ401",
    name="forgotten-layers",
    severity="warning",
    summary="Layers that the target runs in the format have no Q/DQ.",
    fixable=Fixable("unsafe", "their scales have to be calibrated"),
    check=_check,
)
