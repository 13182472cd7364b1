"""Products of tensors that are quantized at run time become float products with stored weights."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from fuseq.passes.matching import constant, is_op, made_by, only_reader
from fuseq.passes.names import fresh, value_names
from fuseq.passes.repairs import Repair

_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_MICROSOFT = "com.microsoft"


@dataclasses.dataclass(frozen=True)
class _Dynamic:
    """``(quantize(x) @ weight) * (x_scale * weight_scale)``, and its nodes from first to last."""

    op_type: str
    data: ir.Value
    weight: tuple[ir.Value, ir.Value, ir.Value | None]
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]


def dynamic_to_float(model: ir.Model) -> list[Repair]:
    """Rewrite in place; the activation's scale is computed at run time, so none is found for it.

    1. DynamicQuantizeLinear -> MatMulInteger or ConvInteger -> Cast -> Mul(x_scale * w_scale),
       which ``onnxruntime.quantization.quantize_dynamic`` writes: MatMul or Conv with the weight
       behind DequantizeLinear.
    2. ONNX Runtime's fused DynamicQuantizeMatMul and MatMulIntegerToFloat (behind
       DynamicQuantizeLinear) likewise (ContribOperators.md).
    """
    graph, taken = model.graph, value_names(model)
    changed: list[str] = []
    for node in list(graph):
        found = _match(node) if node.graph is graph else None
        if found is not None:
            _rewrite(graph, found, taken)
            changed.append(node.name or node.op_type)
    if not changed:
        return []
    text = (
        f"{len(changed)} products quantize their input at run time, which leaves no scale in the "
        "file; they are float products with stored weights"
    )
    return [Repair("dynamic", "", tuple(changed), text)]


def _match(node: ir.Node) -> _Dynamic | None:
    if node.domain == _MICROSOFT and node.op_type == "DynamicQuantizeMatMul":
        weight = (node.inputs[1], node.inputs[2], _given(node, 3))
        return _checked("MatMul", node.inputs[0], weight, _given(node, 4), (node,))
    if node.domain == _MICROSOFT and node.op_type == "MatMulIntegerToFloat":
        source = _dynamic_source(node.inputs[0])
        weight = (node.inputs[1], node.inputs[3], _given(node, 5))
        return _checked("MatMul", source, weight, _given(node, 6), (node,))
    if not is_op(node, *_PRODUCTS):
        return None
    source = _dynamic_source(node.inputs[0])
    cast = only_reader(node.outputs[0])
    scaled = only_reader(cast.outputs[0]) if cast is not None and is_op(cast, "Cast") else None
    if source is None or cast is None or scaled is None or not is_op(scaled, "Mul"):
        return None
    factor = scaled.inputs[1] if scaled.inputs[0] is cast.outputs[0] else scaled.inputs[0]
    product = made_by(factor, "Mul")
    dynamic = made_by(node.inputs[0], "DynamicQuantizeLinear")
    if product is None or dynamic is None or dynamic.outputs[1] not in product.inputs:
        return None
    own = [value for value in product.inputs if value is not dynamic.outputs[1]]
    if len(own) != 1:
        return None
    weight = (node.inputs[1], own[0], _given(node, 3))
    return _checked(_PRODUCTS[node.op_type], source, weight, None, (node, cast, scaled))


def _checked(
    op_type: str,
    data: ir.Value | None,
    weight: tuple[ir.Value | None, ir.Value | None, ir.Value | None],
    bias: ir.Value | None,
    nodes: tuple[ir.Node, ...],
) -> _Dynamic | None:
    stored, scale, zero = weight
    if data is None or stored is None or scale is None:
        return None
    if constant(stored) is None or constant(scale) is None:
        return None
    return _Dynamic(op_type, data, (stored, scale, zero), bias, nodes)


def _dynamic_source(value: ir.Value | None) -> ir.Value | None:
    node = made_by(value, "DynamicQuantizeLinear")
    return node.inputs[0] if node is not None and value is node.outputs[0] else None


def _given(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _rewrite(graph: ir.Graph, found: _Dynamic, taken: set[str]) -> None:
    first, last = found.nodes[0], found.nodes[-1]
    stored, scale, zero = found.weight
    axis = 0 if found.op_type == "Conv" else len(stored.shape or ()) - 1
    dequantize = ir.node(
        "DequantizeLinear", [stored, scale, zero], {"axis": axis}, name=f"{first.name}_weight"
    )
    weight = dequantize.outputs[0]
    weight.name = fresh(f"{stored.name}_dequantized", taken)
    weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), stored.shape
    attributes = list(first.attributes.values()) if found.op_type == "Conv" else []
    made = [
        dequantize,
        ir.Node("", found.op_type, [found.data, weight], attributes, name=first.name),
    ]
    if found.bias is not None:
        made[1].outputs[0].name = fresh(f"{first.name}_product", taken)
        made.append(ir.node("Add", [made[1].outputs[0], found.bias], name=f"{first.name}_bias"))
    for node in made:
        node.metadata_props.update(first.metadata_props)
    old, new = last.outputs[0], made[-1].outputs[0]
    new.type, new.shape = ir.TensorType(ir.DataType.FLOAT), old.shape
    graph.insert_before(last, made)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(list(reversed(found.nodes)), safe=True)
    new.name, old.name = old.name, None
