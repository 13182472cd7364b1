"""Linear layers that read one tensor and feed attention become one product with a Split behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fuseq.passes.convert_weights import LAZY_BYTES
from fuseq.passes.matching import constant, is_op, only_reader, split_constant
from fuseq.passes.names import value_names
from fuseq.passes.splice import new_constant, typed
from fuseq.source_lines import MERGED_KEY, module_path


@dataclasses.dataclass(frozen=True)
class _Linear:
    """``x @ weight [K, N] (+ bias [N])`` whose result is cut into heads."""

    product: ir.Node
    weight: ir.TensorProtocol
    add: ir.Node | None
    bias: ir.TensorProtocol | None

    @property
    def output(self) -> ir.Value:
        return (self.add or self.product).outputs[0]

    @property
    def width(self) -> int:
        return self.weight.shape.numpy()[1]


def merge_sibling_linears(model: ir.Model) -> list[str]:
    """Rewrite the Q, K and V layers of an attention into MatMul [K, 3N] -> Add -> Split.

    1. Siblings read the same value, have constant weights of the same depth and type, and each
       result is only reshaped and transposed, as heads are.
    2. A sibling without bias gets zeros when another has one.
    3. The outputs of the Split keep the names of the siblings' outputs.

    One tensor then holds q, k and v, so that one pair of Q/DQ serves all three: TensorRT-RTX 1.7.1,
    SM89, 8x197x384, FP8: bias and Q fuse into the product, 5 kernels and 14.5 MB against 7 and 18.2.
    """
    groups: dict[ir.Value, list[_Linear]] = {}
    for node in model.graph:
        linear = _linear(node)
        if linear is not None and node.inputs[0] is not None:
            groups.setdefault(node.inputs[0], []).append(linear)
    taken = value_names(model)
    for siblings in groups.values():
        alike = [each for each in siblings if _alike(each, siblings[0])]
        if len(alike) > 1:
            _merge(model.graph, alike, taken)
    return []


def _linear(product: ir.Node) -> _Linear | None:
    if not is_op(product, "MatMul"):
        return None
    weight = constant(product.inputs[1])
    if weight is None or len(weight.shape) != 2:
        return None
    add, bias = only_reader(product.outputs[0]), None
    if add is not None and is_op(add, "Add"):
        parts = split_constant(add)
        bias = constant(parts[1]) if parts is not None else None
        if bias is None or tuple(bias.shape.numpy()) != weight.shape.numpy()[1:]:
            return None
    else:
        add = None
    linear = _Linear(product, weight, add, bias)
    cut = only_reader(linear.output)
    heads = only_reader(cut.outputs[0]) if cut is not None and is_op(cut, "Reshape") else None
    return linear if heads is not None and is_op(heads, "Transpose") else None


def _alike(one: _Linear, other: _Linear) -> bool:
    return (
        one.weight.shape[0] == other.weight.shape[0]
        and one.weight.dtype == other.weight.dtype
        and one.product.graph is other.product.graph
    )


def _merge(graph: ir.Graph, siblings: Sequence[_Linear], taken: set[str]) -> None:
    first = siblings[0]
    names = [each.output.name or "linear" for each in siblings]
    weight = new_constant(graph, f"{names[0]}_qkv_weight", _beside(siblings), taken)
    product = ir.node("MatMul", [first.product.inputs[0], weight], name=first.product.name)
    typed(product, first.output.dtype)
    made, result = [product], product.outputs[0]
    if any(each.bias is not None for each in siblings):  # case 2
        bias = new_constant(graph, f"{names[0]}_qkv_bias", _biases(siblings), taken)
        name = next(each.add.name for each in siblings if each.add is not None)
        add = typed(ir.node("Add", [result, bias], name=name), first.output.dtype)
        made, result = [*made, add], add.outputs[0]
    sizes = np.asarray([each.width for each in siblings], dtype=np.int64)
    split = ir.node(
        "Split",
        [result, new_constant(graph, f"{names[0]}_qkv_sizes", sizes, taken)],
        {"axis": -1},
        num_outputs=len(siblings),
        name=f"Split_{names[0]}",
    )
    _place(graph, siblings, [*made, split])


def _place(graph: ir.Graph, siblings: Sequence[_Linear], made: Sequence[ir.Node]) -> None:
    modules = [module_path(each.product) for each in siblings]
    for node in made:
        node.metadata_props.update(siblings[0].product.metadata_props)
        if any(modules):
            node.metadata_props[MERGED_KEY] = "\n".join(modules)
    graph.insert_before(siblings[0].product, made)
    for linear, part in zip(siblings, made[-1].outputs, strict=True):  # case 3
        old = linear.output
        part.type, part.shape = old.type, old.shape
        old.replace_all_uses_with(part)
        gone = [linear.product] if linear.add is None else [linear.add, linear.product]
        graph.remove(gone, safe=True)
        part.name, old.name = old.name, None


def _beside(siblings: Sequence[_Linear]) -> ir.TensorProtocol:
    """The weights beside each other [K, sum of N], read when they are needed where they are big."""
    weights = [each.weight for each in siblings]

    def read() -> ir.TensorProtocol:
        joined = np.concatenate([weight.numpy() for weight in weights], axis=1)
        return ir.Tensor(joined, dtype=weights[0].dtype, shape=ir.Shape(joined.shape))

    lazy = any(isinstance(weight, (ir.ExternalTensor, ir.LazyTensor)) for weight in weights)
    if not lazy or sum(weight.nbytes for weight in weights) <= LAZY_BYTES:
        return read()
    shape = ir.Shape([weights[0].shape.numpy()[0], sum(each.width for each in siblings)])
    return ir.LazyTensor(read, dtype=weights[0].dtype, shape=shape, cache=False)


def _biases(siblings: Sequence[_Linear]) -> np.ndarray:
    kind = next(each.bias for each in siblings if each.bias is not None).numpy().dtype
    return np.concatenate(
        [
            each.bias.numpy() if each.bias is not None else np.zeros(each.width, kind)
            for each in siblings
        ]
    )
