"""Remove the NaN guard behind softmax, which keeps compilers from fusing attention."""

from __future__ import annotations

import onnx_ir as ir


def remove_attention_guards(model: ir.Model) -> list[str]:
    """Thin slice: Where(IsNaN(softmax), 0, softmax) -> softmax."""
    for node in list(model.graph):
        if node.op_type != "Where" or node.domain != "":
            continue
        test, _, softmax = node.inputs
        guard = test.producer() if test is not None else None
        if guard is None or guard.op_type != "IsNaN" or guard.inputs[0] is not softmax:
            continue
        maker = softmax.producer() if softmax is not None else None
        if maker is None or maker.op_type != "Softmax" or softmax is None:
            continue
        if node.outputs[0].is_graph_output():
            continue
        node.outputs[0].replace_all_uses_with(softmax)
        model.graph.remove(node, safe=True)
        if not guard.outputs[0].uses():
            model.graph.remove(guard, safe=True)
    return []
