"""The layers of any ONNX file with Q/DQ, whoever wrote it: which are quantized, and what the engine runs.

A plan says why a layer is float. A file of another tool has no plan; what can be seen is which pair is
missing, and whether the engine runs in the format what the file quantizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from fuseq.checks.reading import Layer, dequantizer, is_dequantized, layer_at, quantizer
from fuseq.passes.matching import constant, is_op
from fuseq.passes.quantizers import read_quantizer
from fuseq.report.document import EngineRow, LayerRow
from fuseq.report.graph_rows import dtype_word
from fuseq.report.layer_rows import precisions
from fuseq.source_lines import source_line


def file_layer_rows(
    model: ir.Model, engine: EngineRow | None, modules: Mapping[str, str]
) -> tuple[LayerRow, ...]:
    """Layers with weights and products of two activations, in graph order.

    Args:
        model: Types known, read only.
        engine: What was compiled from it, None where nothing was.
        modules: Module path by node name.
    """
    running = {} if engine is None else precisions(engine)
    rows = []
    for node in model.graph:
        layer = layer_at(node)
        if layer is None and not _is_product(node):
            continue
        done, reason = _weighted(layer) if layer is not None else _product(node)
        inside = running.get(node.name or "", "")
        planned = _format(node) if done else dtype_word(node.outputs[0].dtype)
        if done and inside and inside != planned:
            reason = f"the file quantizes it, the engine runs it in {inside}"
        rows.append(
            LayerRow(
                name=node.name or "",
                pattern=_pattern(node, layer),
                op_type=node.op_type,
                module=modules.get(node.name or "", ""),
                source=source_line(node) or "",
                quantized=done,
                planned_precision=planned,
                engine_precision=inside,
                reason=reason,
            )
        )
    return tuple(rows)


def _weighted(layer: Layer) -> tuple[bool, str]:
    data, weight = is_dequantized(layer.data), layer.weight_dequantize is not None
    if data and weight:
        return True, "quantized: a pair on its input, a scale on its weight"
    if data:
        return False, "float: its weight has no scale"
    return False, "float: its input has no pair" if weight else "float: no pair, no scale"


def _product(node: ir.Node) -> tuple[bool, str]:
    pairs = [is_dequantized(value) for value in node.inputs[:2]]
    if all(pairs):
        return True, "quantized: pairs on both inputs"
    missing = (
        "its inputs have no pair" if not any(pairs) else f"input {pairs.index(False)} has no pair"
    )
    return False, f"float: {missing}"


def _is_product(node: ir.Node) -> bool:
    """A MatMul of two activations, in attention mostly."""
    return is_op(node, "MatMul") and all(
        value is not None and constant(value) is None for value in node.inputs[:2]
    )


def _pattern(node: ir.Node, layer: Layer | None) -> str:
    if layer is None:
        return "product of activations"
    if layer.is_depthwise:
        return "depthwise convolution"
    return "convolution" if layer.is_conv else "linear"


def _format(node: ir.Node) -> str:
    """The format of the first pair before the node."""
    value = node.inputs[0]
    for _ in range(8):
        found = dequantizer(value)
        if found is not None:
            by = read_quantizer(quantizer(found) or found)
            return "" if isinstance(by, str) else by.format
        producer = value.producer() if value is not None else None
        value = producer.inputs[0] if producer is not None and producer.inputs else None
    return ""
