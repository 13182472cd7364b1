"""What ``fuseq check --fix`` does to single findings. Each mend edits through a pass and says what it did.

Nothing here decides: a rule names its mend, the finding the node. A mend that cannot be made without
more than the file tells returns "" and changes nothing; `fuseq fix`, which plans anew, can often do it.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from fuseq.checks.finding import Finding
from fuseq.checks.reading import Layer, layer_at, layers_of
from fuseq.passes.drop_pair import drop_pair, drop_pairs_of
from fuseq.passes.dynamic_quantize import dynamic_to_float
from fuseq.passes.fake_quantize import fake_quantize_to_pairs
from fuseq.passes.private_qdq import standard_qdq
from fuseq.passes.qoperators import qoperators_to_pairs
from fuseq.passes.quantizers import Quantizer, is_dequantize, is_quantize, read_quantizer
from fuseq.passes.repairs import Repair
from fuseq.passes.rescale import store_weight
from fuseq.passes.strip_qdq import raise_opset_with_axes
from fuseq.passes.typing import set_precision

_HALVES = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}


def node_of(model: ir.Model, finding: Finding) -> ir.Node | None:
    """The node that the finding names, if it is still there."""
    return next((node for node in model.graph if node.name == finding.node), None)


def layer_of(model: ir.Model, finding: Finding) -> Layer | None:
    """The layer that the finding names, itself or by the DequantizeLinear of its weight."""
    for layer in layers_of(model.graph):
        weight = layer.weight_dequantize
        names = {layer.node.name, weight.name if weight is not None else None}
        if finding.node in names:
            return layer
    return None


def drop_the_pair(model: ir.Model, finding: Finding) -> str:
    """FQ105, FQ112: the readers read the float tensor; FQ203: the bias is stored in float."""
    node = node_of(model, finding)
    if node is None or not is_dequantize(node):
        return ""
    stored = node.inputs[0]
    is_constant = stored is not None and stored.producer() is None
    readers = ", ".join(use.node.name or use.node.op_type for use in node.outputs[0].uses())
    if not drop_pair(model.graph, node):
        return ""
    if is_constant:
        return f"{finding.tensor} is stored in float for {readers}"
    return f"the pair of {finding.tensor} is gone; {readers} reads it in float"


def float_layer(model: ir.Model, finding: Finding) -> str:
    """FQ102, FQ109, FQ110: the layer reads data and weight in float."""
    node = node_of(model, finding)
    dropped = drop_pairs_of(model.graph, node) if node is not None else []
    return f"it reads {' and '.join(dropped)} in float" if dropped else ""


def pair_of_another_reader(model: ir.Model, finding: Finding) -> str:
    """FQ103: the Add reads its branch from the pair that another reader of the branch has."""
    node = node_of(model, finding)
    for index, value in enumerate(node.inputs if node is not None else ()):
        if node is None or value is None or value.name != finding.tensor:
            continue
        pairs = [use.node for use in value.uses() if is_quantize(use.node) and use.idx == 0]
        behind = [use.node for pair in pairs for use in pair.outputs[0].uses()]
        dequantize = next((each for each in behind if is_dequantize(each)), None)
        if dequantize is not None:
            node.replace_input_with(index, dequantize.outputs[0])
            return f"the Add reads {finding.tensor} from the pair {dequantize.name}"
    return ""


def store_all_weights(model: ir.Model, finding: Finding) -> str:
    """FQ305: every Q of a constant is computed now; the integers and what they stand for are the same."""
    count = 0
    for node in list(model.graph):
        layer = layer_at(node)
        quantize = layer.weight_quantize if layer is not None else None
        dequantize = layer.weight_dequantize if layer is not None else None
        if quantize is None or dequantize is None:
            continue
        by, behind = read_quantizer(quantize), read_quantizer(dequantize)
        if isinstance(by, Quantizer) and isinstance(behind, Quantizer) and by.equals(behind):
            count += not by.problem and store_weight(model.graph, dequantize, by)
    return f"{count} weights are stored in 8 bits behind DequantizeLinear alone" if count else ""


def raise_the_opset(model: ir.Model, finding: Finding) -> str:
    """FQ205."""
    before = model.opset_imports.get("", 0)
    raise_opset_with_axes(model)
    after = model.opset_imports.get("", 0)
    return f"the file is opset {after} instead of {before}" if after != before else ""


def one_float_type(model: ir.Model, finding: Finding) -> str:
    """FQ201: the type of most float tensors becomes that of all; inputs and outputs keep theirs."""
    counts: dict[str, int] = {}
    for node in model.graph:
        if not (is_quantize(node) or is_dequantize(node)):
            for value in node.outputs:
                if value.dtype in _HALVES or value.dtype == ir.DataType.FLOAT:
                    name = _HALVES.get(value.dtype, "fp32")
                    counts[name] = counts.get(name, 0) + 1
    precision = max(counts, key=lambda name: counts[name], default="fp32")
    set_precision(model, precision)
    return f"every operator computes in {precision}, scales included"


def by_pass(*passes: Callable[[ir.Model], list[Repair]]) -> Callable[[ir.Model, Finding], str]:
    """A mend that runs passes over the whole file, and repeats their words."""

    def mend(model: ir.Model, finding: Finding) -> str:
        repairs = [repair for each in passes for repair in each(model)]
        return "; ".join(repair.text for repair in repairs if repair.fault != "left")

    return mend


qoperators = by_pass(qoperators_to_pairs, dynamic_to_float)
"""FQ204."""
private_operators = by_pass(standard_qdq)
"""FQ207."""
written_out = by_pass(fake_quantize_to_pairs)
"""FQ208."""

WHOLE_FILE = frozenset(
    {store_all_weights, raise_the_opset, one_float_type, qoperators, private_operators, written_out}
)
"""Mends that serve every finding of their rule at once."""
