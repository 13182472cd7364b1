"""A residual Add that LayerNormalization alone reads becomes Sum, which keeps both kernels fast on a CPU."""

from __future__ import annotations

import onnx_ir as ir

from fuseq.passes.matching import constant, is_op, only_reader
from fuseq.passes.splice import replace


def sums_before_norms(model: ir.Model) -> list[str]:
    """Rewrite ``LayerNormalization(Add(a, b))`` into ``LayerNormalization(Sum(a, b))``, in place.

    ONNX Runtime fuses the Add into SkipLayerNormalization, whose CPU kernel is the slower one: 8x128x384,
    one thread of a Sapphire Rapids, ONNX Runtime 1.32: 2.6 ms against 0.20 for the sum and 0.26 for the
    LayerNormalization. It does not know Sum, which computes the same. Both operands must be computed: a bias
    is left for the product before it.
    """
    for node in list(model.graph):
        if not is_op(node, "Add") or any(constant(value) is not None for value in node.inputs):
            continue
        norm = only_reader(node.outputs[0])
        if norm is not None and is_op(norm, "LayerNormalization") and norm.graph is model.graph:
            total = ir.node("Sum", list(node.inputs), name=node.name)
            replace(model.graph, [node], [total], [node.outputs[0]], [total.outputs[0]])
    return []
