"""Rewrite rules of onnxscript that unify spellings, each run only where its operators occur."""

from __future__ import annotations

import onnx_ir as ir


def apply_library_rules(model: ir.Model) -> list[str]:
    """Apply, in this order:

    1. ``fuse_hardswish``: Add-Clip-Mul-Div spellings become HardSigmoid and HardSwish.
    2. ``fuse_pad_into_conv``: Pad with zeros in front of Conv becomes the Conv's pads, and
       ``auto_pad`` explicit ones.
    """
    from onnxscript.rewriter.rules.common import (  # noqa: PLC0415 (imports onnx)
        _fuse_hardswish,
        _fuse_pad_into_conv,
    )

    present = {node.op_type for node in model.graph}
    if present & {"Clip", "HardSigmoid"} and present & {"Mul", "Div"}:
        _fuse_hardswish.fuse_hardswish_rules().apply_to_model(model)
    conv_auto = any("auto_pad" in node.attributes for node in model.graph if node.op_type == "Conv")
    if present >= {"Pad", "Conv"} or conv_auto:
        _fuse_pad_into_conv.rules.apply_to_model(model)
    return []
