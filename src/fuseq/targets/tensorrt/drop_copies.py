"""Step 8: Concat and Slice without a copy.

TensorRT lets the producers write into the joined tensor and the readers read a part of the sliced one
("Eliminating concatenation ... by retargeting", "Eliminating slice" in its verbose log). A copy stays
for an input of Concat that is the model's own input, that another Concat holds already, or that has
another type than the rest ("Generating copy ... because of stomping hazard").
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.targets.tensorrt.layers import NO_KERNEL, Network


def drop_copies(network: Network) -> dict[ir.Value, ir.Value]:
    """Free what needs no copy.

    Returns:
        The joined tensor that each retargeted value lies in.
    """
    homes: dict[ir.Value, ir.Value] = {}
    for node in network.graph:
        if not network.is_single(node):
            continue
        is_free = node.op_type == "Slice"
        if node.op_type == "Concat":
            is_free = _retarget(network, node, homes)
        if is_free:
            network.owner[node].word = NO_KERNEL
    return homes


def _retarget(network: Network, node: ir.Node, homes: dict[ir.Value, ir.Value]) -> bool:
    roots = [network.root(value) for value in node.inputs if value is not None]
    free = all(
        root.producer() in network.owner
        and root not in homes
        and not root.is_graph_output()
        and root.dtype == node.outputs[0].dtype
        for root in roots
    )
    if not free or len(set(roots)) != len(roots):
        return False
    homes.update(dict.fromkeys(roots, node.outputs[0]))
    return True
