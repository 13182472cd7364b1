"""Shape arithmetic over sizes that the file knows becomes constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import is_op
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant
from fuseq.passes.symbolic_dims import shape_elements


def fold_known_sizes(model: ir.Model) -> list[str]:
    """Replace Shape, Gather, Slice, Concat, Squeeze, Unsqueeze whose elements are all static.

    ``x.shape[2]`` is a number in most files even where the batch is open; what is computed from it
    (a head size, the scale of attention) is then folded by the library.
    """
    taken = value_names(model)
    for node in list(model.graph):
        if not is_op(node, "Shape", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze"):
            continue
        output = node.outputs[0]
        if output.dtype != ir.DataType.INT64 or output.shape is None or output.is_graph_output():
            continue
        rank = len(output.shape)
        found = shape_elements(output) if rank < 2 else None
        known = [dim for dim in found or [] if isinstance(dim, int)]
        if found is None or len(known) != len(found) or (rank == 0 and len(known) != 1):
            continue
        array = np.asarray(known if rank else known[0], dtype=np.int64)
        constant = new_constant(model.graph, f"{output.name}_known", array, taken)
        output.replace_all_uses_with(constant)
        model.graph.remove(node, safe=True)
    return []
