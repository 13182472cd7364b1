"""Seeded damage to files: bytes, JSON trees, ONNX graphs. The same seed gives the same damage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import onnx

Damage = Callable[[random.Random, bytes], bytes]

ODD_NUMBERS = (0, -1, 1 << 31, 1 << 62, -(1 << 63), 3.5, float("inf"), float("nan"))
ODD_TEXTS = (
    "",
    "\x00",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "\x1b[31m",
    "a" * 5000,
    "é",
)


def damaged_bytes(chance: random.Random, data: bytes) -> bytes:
    """Flip, cut, repeat or insert bytes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        where = chance.randrange(len(changed) + 1)
        how = chance.choice(("flip", "cut", "drop", "insert", "repeat"))
        if how == "flip" and where < len(changed):
            changed[where] ^= 1 << chance.randrange(8)
        elif how == "cut":
            del changed[where:]
        elif how == "drop":
            del changed[where : where + chance.randrange(1, 40)]
        elif how == "insert":
            changed[where:where] = chance.randbytes(chance.randrange(1, 20))
        else:
            changed[where:where] = changed[max(0, where - 30) : where]
    return bytes(changed)


def damaged_json(chance: random.Random, data: bytes) -> bytes:
    """Replace, remove, retype or repeat a value somewhere in a JSON tree; sometimes damage the text."""
    if chance.random() < 0.15:
        return damaged_bytes(chance, data)
    tree = json.loads(data)
    for _ in range(chance.choice((1, 1, 3))):
        tree = _changed(chance, tree)
    return json.dumps(tree).encode()


def _changed(chance: random.Random, tree: Any) -> Any:
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(sorted(tree))
        if chance.random() < 0.15:
            return {name: value for name, value in tree.items() if name != key}
        if chance.random() < 0.1:
            return {**tree, "unknown": 1}
        return {**tree, key: _changed(chance, tree[key])}
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        index = chance.randrange(len(tree))
        if chance.random() < 0.1:
            return tree[:index] + tree[index + 1 :]
        if chance.random() < 0.1:
            return [*tree, tree[index]]
        return [*tree[:index], _changed(chance, tree[index]), *tree[index + 1 :]]
    return chance.choice((None, True, [], {}, [[]], *ODD_NUMBERS[:6], *ODD_TEXTS, "int8", 7))


def damaged_graph(chance: random.Random, data: bytes) -> bytes:
    """Change what an ONNX graph says while it stays a protobuf message."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        chance.choice(_GRAPH)(chance, model)
    return model.SerializeToString()


def _drop_initializer(chance: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.initializer:
        del model.graph.initializer[chance.randrange(len(model.graph.initializer))]


def _drop_node(chance: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.node:
        del model.graph.node[chance.randrange(len(model.graph.node))]


def _rewire(chance: random.Random, model: onnx.ModelProto) -> None:
    """Read another tensor: cycles, missing and doubled names."""
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    node = chance.choice(model.graph.node) if model.graph.node else None
    if node is None or not names:
        return
    slots = node.input if node.input and chance.random() < 0.7 else node.output
    if slots:
        slots[chance.randrange(len(slots))] = chance.choice([*names, "", "nowhere", *ODD_TEXTS])


def _odd_dims(chance: random.Random, model: onnx.ModelProto) -> None:
    """Declare other sizes, terabytes among them, over the same bytes."""
    if model.graph.initializer and chance.random() < 0.6:
        dims = chance.choice(model.graph.initializer).dims
    else:
        value = chance.choice(model.graph.input)
        shape = value.type.tensor_type.shape
        if shape.dim:
            chance.choice(shape.dim).dim_value = chance.choice((0, -1, 7, 1 << 40))
        return
    if dims and chance.random() < 0.7:
        dims[chance.randrange(len(dims))] = chance.choice((0, -1, 3, 1 << 40, 1 << 62))
    else:
        dims.append(chance.choice((1, 2, 1 << 40)))


def _odd_types(chance: random.Random, model: onnx.ModelProto) -> None:
    kind = chance.choice((0, 1, 2, 7, 8, 9, 10, 16, 17, 99))
    if model.graph.initializer and chance.random() < 0.5:
        chance.choice(model.graph.initializer).data_type = kind
    else:
        chance.choice(model.graph.input).type.tensor_type.elem_type = kind


def _odd_operator(chance: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.node:
        node = chance.choice(model.graph.node)
        node.op_type = chance.choice(
            ("If", "Loop", "QuantizeLinear", "Conv", "Nothing", "", "\x1b[0m")
        )
        if chance.random() < 0.3:
            node.domain = chance.choice(("com.evil", "trt", "ai.onnx.ml"))


def _odd_attribute(chance: random.Random, model: onnx.ModelProto) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    attribute = chance.choice(chance.choice(nodes).attribute)
    if attribute.ints:
        attribute.ints[0] = chance.choice((0, -1, 1 << 40))
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = chance.choice((0, -1, 99, 1 << 40))
    else:
        attribute.name = chance.choice(ODD_TEXTS)


def _odd_values(chance: random.Random, model: onnx.ModelProto) -> None:
    """NaN, infinities, zeros in stored floats."""
    floats = [t for t in model.graph.initializer if t.data_type == 1 and t.raw_data]
    if floats:
        tensor = chance.choice(floats)
        raw = bytearray(tensor.raw_data)
        word = chance.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x00\x00"))
        where = chance.randrange(max(1, len(raw) // 4)) * 4
        raw[where : where + 4] = word
        tensor.raw_data = bytes(raw)


def _outside(chance: random.Random, model: onnx.ModelProto) -> None:
    """Point external data out of the model's folder."""
    if not model.graph.initializer:
        return
    tensor = chance.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    places = ("../../etc/passwd", "/etc/passwd", "nothing.bin", "", "a/../../b", "\x00")
    for key, value in (
        ("location", chance.choice(places)),
        ("length", str(chance.choice((0, -4, 1 << 50)))),
    ):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _odd_names(chance: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.node:
        chance.choice(model.graph.node).name = chance.choice(ODD_TEXTS)
    if model.opset_import and chance.random() < 0.3:
        model.opset_import[0].version = chance.choice((0, 1, 6, 99, -5))


_GRAPH = (
    _drop_initializer, _drop_node, _rewire, _rewire, _odd_dims, _odd_dims, _odd_types, _odd_operator,
    _odd_attribute, _odd_values, _outside, _odd_names,
)  # fmt: skip
