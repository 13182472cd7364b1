"""How much of a model is quantized: layers and multiply-adds, with the layers that stayed float."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from fuseq.checks.reading import Layer, layers_of
from fuseq.passes.float_only import is_integer_operator
from fuseq.passes.quantizers import is_dequantize, is_quantize


@dataclasses.dataclass(frozen=True)
class LayerCoverage:
    """One layer with weights: its node, multiply-adds of one inference, and whether it is quantized."""

    node: str
    op_type: str
    macs: int
    quantized: bool


@dataclasses.dataclass(frozen=True)
class Coverage:
    """All float layers with weights in graph order, the number of Q/DQ nodes, and of integer operators
    (QLinearConv ...), which stand outside of ``layers``."""

    layers: tuple[LayerCoverage, ...]
    quantize_nodes: int
    dequantize_nodes: int
    integer_operators: int = 0

    @property
    def quantized(self) -> int:
        """Number of quantized layers."""
        return sum(layer.quantized for layer in self.layers)

    @property
    def quantized_macs(self) -> float:
        """Part of the multiply-adds that is quantized, 0 to 1."""
        total = sum(layer.macs for layer in self.layers)
        return sum(layer.macs for layer in self.layers if layer.quantized) / total if total else 0.0


def coverage_of(model: ir.Model, batch: int = 1) -> Coverage:
    """Count layers; reads only."""
    nodes = list(model.graph)
    return Coverage(
        layers=tuple(
            LayerCoverage(
                layer.node.name or "", layer.node.op_type, macs_of(layer, batch), layer.is_quantized
            )
            for layer in layers_of(model.graph)
        ),
        quantize_nodes=sum(is_quantize(node) for node in nodes),
        dequantize_nodes=sum(is_dequantize(node) for node in nodes),
        integer_operators=sum(is_integer_operator(node) for node in nodes),
    )


def macs_of(layer: Layer, batch: int = 1) -> int:
    """Multiply-adds: every output element is a dot product over weight elements / output channels.

    Weight [O, I/g, ...] or [K, N]; ConvTranspose [I, O/g, ...] visits every input element instead.
    A size that is not known counts as ``batch`` on axis 0, else as 1.
    """
    shape = layer.read_shape
    out = layer.node.outputs[0] if layer.node.op_type != "ConvTranspose" else layer.data
    dims = list(out.shape) if out.shape is not None else []
    sizes = [
        dim if isinstance(dim, int) else (batch if axis == 0 else 1)
        for axis, dim in enumerate(dims)
    ]
    channels = shape[0] if layer.node.op_type == "ConvTranspose" else shape[layer.channel_axis]
    return math.prod(sizes) * math.prod(shape) // max(channels, 1)
