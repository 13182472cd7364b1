"""Operators on quantized tensors (QLinearConv, QGemm ...) become float ones between Q/DQ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute
from fuseq.passes.names import fresh, value_names
from fuseq.passes.repairs import Repair
from fuseq.passes.splice import new_constant

Triple = tuple[int, int, int]
"""Indices of a quantized input, its scale and its zero point."""


@dataclasses.dataclass(frozen=True)
class _Form:
    """How one operator is spelled.

    Attributes:
        op_type: The float operator.
        data: Quantized inputs, in the float operator's order.
        result: Indices of the output's scale and zero point.
        bias: Index of an INT32 bias, whose scale is that of the first two inputs multiplied.
        condition: Index of an input that is not quantized and comes first (Where).
        dropped: Attributes that the float operator does not have.
    """

    op_type: str
    data: tuple[Triple, ...]
    result: tuple[int, int]
    bias: int | None = None
    condition: int | None = None
    dropped: tuple[str, ...] = ()


_ONE: tuple[Triple, ...] = ((0, 1, 2),)
_TWO: tuple[Triple, ...] = ((0, 1, 2), (3, 4, 5))
FORMS: dict[str, _Form] = {
    "QLinearConv": _Form("Conv", _TWO, (6, 7), bias=8, dropped=("channels_last",)),
    "QLinearMatMul": _Form("MatMul", _TWO, (6, 7)),
    "QGemm": _Form("Gemm", _TWO, (7, 8), bias=6),
    "QLinearAdd": _Form("Add", _TWO, (6, 7)),
    "QLinearMul": _Form("Mul", _TWO, (6, 7)),
    "QLinearSigmoid": _Form("Sigmoid", _ONE, (3, 4)),
    "QLinearLeakyRelu": _Form("LeakyRelu", _ONE, (3, 4)),
    "QLinearSoftmax": _Form("Softmax", _ONE, (3, 4), dropped=("opset",)),
    "QLinearAveragePool": _Form("AveragePool", _ONE, (3, 4), dropped=("channels_last",)),
    "QLinearGlobalAveragePool": _Form(
        "GlobalAveragePool", _ONE, (3, 4), dropped=("channels_last",)
    ),
    "QLinearReduceMean": _Form("ReduceMean", _ONE, (3, 4)),
    "QLinearWhere": _Form("Where", ((1, 2, 3), (4, 5, 6)), (7, 8), condition=0),
}
"""Order of inputs: ONNX QLinearConv-10 and QLinearMatMul-21, and ONNX Runtime's ContribOperators.md.
QLinearConcat has any number of inputs and is read apart."""


def qoperators_to_pairs(model: ir.Model) -> list[Repair]:
    """Rewrite the operators of :data:`FORMS` and QLinearConcat, in place:

    1. Each quantized input gets a DequantizeLinear, the output a QuantizeLinear, and the float
       operator keeps the node's name and attributes. A QGemm without an output scale writes float.
    2. An INT32 bias gets a DequantizeLinear of scale input x weight (ONNX QLinearConv, input ``B``).
    3. Per-channel scales lie on the weight's output channels: axis 0 of Conv (and Gemm with transB),
       the last of MatMul and Gemm.
    4. ``channels_last`` layouts, which only ONNX Runtime's own optimizer writes, stay, with a note.
    """
    write = _Writer(model.graph, value_names(model))
    changed: list[str] = []
    left: list[Repair] = []
    for node in list(model.graph):
        form = _form_of(node)
        if form is None:
            continue
        if integer_attribute(node, "channels_last", 0):  # case 4
            text = f"{node.op_type} {node.name!r} is laid out channels last and stays as it is"
            left.append(Repair("left", node.outputs[0].name or "", (node.name or "",), text))
            continue
        write.rewrite(node, form)
        changed.append(node.name or node.op_type)
    if changed:
        text = f"{len(changed)} operators on integers are float operators between Q/DQ"
        left.insert(0, Repair("qoperator", "", tuple(changed), text))
    return left


def _form_of(node: ir.Node) -> _Form | None:
    if node.domain not in ("", "com.microsoft"):
        return None
    if node.op_type == "QLinearConcat":
        data = tuple((i, i + 1, i + 2) for i in range(2, len(node.inputs) - 2, 3))
        return _Form("Concat", data, (0, 1))
    form = FORMS.get(node.op_type)
    if form is not None and form.op_type == "Softmax" and integer_attribute(node, "opset", 13) < 13:
        return None  # it flattens to two axes, which no Softmax of today does
    return form


@dataclasses.dataclass
class _Writer:
    graph: ir.Graph
    taken: set[str]

    def rewrite(self, node: ir.Node, form: _Form) -> None:
        inputs = [self._dequantized(node, form, position) for position in range(len(form.data))]
        if form.condition is not None:
            inputs.insert(0, node.inputs[form.condition])
        if form.bias is not None and _given(node, form.bias) is not None:  # case 2
            inputs.append(self._bias(node, form))
        inputs += self._reduced_axes(node, form)
        kept = [a for name, a in node.attributes.items() if name not in form.dropped]
        made = ir.Node(
            "", form.op_type, inputs, kept, name=node.name,
            metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        old, new = node.outputs[0], made.outputs[0]
        new.type, new.shape = ir.TensorType(ir.DataType.FLOAT), old.shape
        self.graph.insert_before(node, made)
        scale, zero = (_given(node, index) for index in form.result)
        if scale is not None:
            new.name = fresh(f"{old.name}_float", self.taken)
            quantize = self._pair("QuantizeLinear", [new, scale, zero], made, None)
            quantize.outputs[0].type, quantize.outputs[0].shape = old.type, old.shape
            new = quantize.outputs[0]
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        new.name, old.name = old.name, None

    def _dequantized(self, node: ir.Node, form: _Form, position: int) -> ir.Value | None:
        data, scale, zero = (_given(node, index) for index in form.data[position])
        axis = _channel_axis(node, form, data) if position == 1 else None
        dequantize = self._pair("DequantizeLinear", [data, scale, zero], node, axis)
        out = dequantize.outputs[0]
        out.type = ir.TensorType(ir.DataType.FLOAT)
        out.shape = data.shape if data is not None else None
        out.name = fresh(f"{data.name if data else 'value'}_dequantized", self.taken)
        return out

    def _bias(self, node: ir.Node, form: _Form) -> ir.Value:
        bias = _given(node, form.bias or 0)
        scales = [constant(_given(node, scale)) for _, scale, _ in form.data[:2]]
        arrays = [t.numpy().astype(np.float32).reshape(-1) for t in scales if t is not None]
        product = arrays[0] * arrays[1] if len(arrays) == 2 else np.ones(1, np.float32)
        name = f"{bias.name if bias else 'bias'}_scale"
        shape = () if product.size == 1 else (-1,)
        scale = new_constant(self.graph, name, product.reshape(shape), self.taken)
        dequantize = self._pair("DequantizeLinear", [bias, scale], node, 0 if shape else None)
        out = dequantize.outputs[0]
        out.type = ir.TensorType(ir.DataType.FLOAT)
        out.shape = bias.shape if bias is not None else None
        out.name = fresh(f"{bias.name if bias else 'bias'}_dequantized", self.taken)
        return out

    def _reduced_axes(self, node: ir.Node, form: _Form) -> list[ir.Value | None]:
        """ReduceMean-18 takes its axes as an input."""
        axes = node.attributes.pop("axes", None) if form.op_type == "ReduceMean" else None
        if axes is None:
            return []
        array = np.asarray(axes.as_ints(), np.int64)
        return [new_constant(self.graph, f"{node.name}_axes", array, self.taken)]

    def _pair(
        self, op_type: str, inputs: Sequence[ir.Value | None], beside: ir.Node, axis: int | None
    ) -> ir.Node:
        attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
        data = inputs[0].name if inputs[0] is not None else beside.name
        made = ir.Node("", op_type, inputs, attributes, name=f"{beside.name}_{data}_{op_type}")
        place: Callable[[ir.Node, ir.Node], None] = (
            self.graph.insert_after if op_type == "QuantizeLinear" else self.graph.insert_before
        )
        place(beside, made)
        return made


def _given(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _channel_axis(node: ir.Node, form: _Form, weight: ir.Value | None) -> int | None:
    """Case 3."""
    if form.op_type == "Conv" or (form.op_type == "Gemm" and integer_attribute(node, "transB", 0)):
        return 0
    if form.op_type in ("MatMul", "Gemm") and weight is not None and weight.shape is not None:
        return len(weight.shape) - 1
    return None
