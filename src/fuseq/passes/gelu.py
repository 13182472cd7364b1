"""GELU written out with Erf becomes the operator of opset 20."""

from __future__ import annotations

import math

import onnx_ir as ir

from fuseq.passes.matching import made_by, only_reader, scalar, split_constant
from fuseq.passes.splice import replace

_TOLERANCE = 1e-3
"""Exporters write 1.4142, 1.41421354 or 0.70710677 for the root of two and its inverse."""


def fuse_gelus(model: ir.Model) -> list[str]:
    """Rewrite ``x * 0.5 * (1 + erf(x / sqrt(2)))``, in any order of its products, into Gelu.

    TensorRT-RTX 1.7.1 makes the same kernels of both, Erf in FP32 inside; as one operator a plan has
    one node to decide about. (HardSwish, HardSigmoid * x and its Add-Clip-Mul-Div spelling cost
    the same there too.)
    """
    for node in list(model.graph):
        found = _gelu(node)
        if found is None:
            continue
        source, inner = found
        fused = ir.node("Gelu", [source], {"approximate": "none"}, name=node.name)
        fused.metadata_props.update(inner.metadata_props)
        replace(model.graph, [node], [fused], node.outputs, fused.outputs)
    return []


def _gelu(node: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return (x, the Erf node) when ``node`` is the last product of a GELU."""
    if node.domain != "" or node.op_type not in ("Mul", "Div"):
        return None
    number, factors = _product(node)
    if abs(number / 0.5 - 1) > _TOLERANCE or len(factors) != 2:
        return None
    for source, other in (factors, factors[::-1]):
        erf = _one_plus_erf(other)
        if erf is not None and _argument(erf) is source:
            return source, erf
    return None


def _product(node: ir.Node) -> tuple[float, list[ir.Value]]:
    """Flatten Mul and division by constants: (product of the numbers, the computed factors)."""
    parts = split_constant(node)
    if parts is not None:
        number = scalar(parts[1])
        if number is None or not number or (node.op_type == "Div" and parts[1] is node.inputs[0]):
            return 0.0, []
        number = 1 / number if node.op_type == "Div" else number
        inner = made_by(parts[0], "Mul", "Div")
        if inner is None or only_reader(parts[0]) is not node:
            return number, [parts[0]]
        more, factors = _product(inner)
        return number * more, factors
    if node.op_type != "Mul":
        return 1.0, [node.outputs[0]]
    number, factors = 1.0, []
    for value in node.inputs:
        inner = made_by(value, "Mul", "Div")
        scaled = inner is not None and split_constant(inner) is not None
        if value is not None and inner is not None and scaled and only_reader(value) is node:
            more, found = _product(inner)
            number, factors = number * more, [*factors, *found]
        elif value is not None:
            factors.append(value)
    return number, factors


def _one_plus_erf(value: ir.Value) -> ir.Node | None:
    add = made_by(value, "Add")
    parts = split_constant(add) if add is not None else None
    return made_by(parts[0], "Erf") if parts is not None and scalar(parts[1]) == 1 else None


def _argument(erf: ir.Node) -> ir.Value | None:
    """Return x of ``erf(x / sqrt(2))``."""
    inner = made_by(erf.inputs[0], "Div", "Mul")
    parts = split_constant(inner) if inner is not None else None
    number = scalar(parts[1]) if parts is not None else None
    if inner is None or parts is None or not number:
        return None
    if inner.op_type == "Div" and parts[1] is inner.inputs[0]:
        return None
    factor = 1 / number if inner.op_type == "Div" else number
    return parts[0] if abs(factor * math.sqrt(2) - 1) <= _TOLERANCE else None
