"""Where ModelOpt's quantizers stand in an exported graph.

ModelOpt names a quantizer after the module that it sits in; the exporter writes the module's path
into the nodes that it made. So a quantizer belongs to the tensor that its module's node reads:

| quantizer | tensor in the canonical graph |
| --- | --- |
| ``<module>.input_quantizer`` | input 0 of the module's Conv, MatMul, Gemm, normalization or pool |
| ``<module>.weight_quantizer`` | its weight; a part of it where layers were merged (Q, K, V) |
| ``<module>.output_quantizer`` | what the last node of the module makes |
| ``<attention>.{q,k,v}_bmm_quantizer`` | Q, K (both before the scale 1/sqrt(d)) and V |
| ``<attention>.{p_bmm,softmax}_quantizer`` | the softmax output |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from fuseq.placement.patterns import (
    NORMALIZATIONS,
    Weighted,
    attention_at,
    constant_of,
    is_float_activation,
    weighted,
)
from fuseq.placement.plan import Kind, Use
from fuseq.source_lines import module_class, module_path, module_paths

_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"})
_HEAD_STEPS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
_MAX_STEPS = 6
_TORCH_MODULES = "torch.nn.modules."

QUANTIZED_CLASSES = frozenset(
    {
        "nn.Linear", "nn.Conv1d", "nn.Conv2d", "nn.Conv3d", "nn.ConvTranspose1d",
        "nn.ConvTranspose2d", "nn.ConvTranspose3d", "nn.LayerNorm", "nn.BatchNorm1d",
        "nn.BatchNorm2d", "nn.BatchNorm3d", "nn.InstanceNorm1d", "nn.InstanceNorm2d",
        "nn.InstanceNorm3d", "nn.MaxPool1d", "nn.MaxPool2d", "nn.MaxPool3d", "nn.AvgPool1d",
        "nn.AvgPool2d", "nn.AvgPool3d", "nn.AdaptiveAvgPool1d", "nn.AdaptiveAvgPool2d",
        "nn.AdaptiveAvgPool3d", "nn.LeakyReLU", "nn.Embedding",
    }
)  # fmt: skip
"""Classes of torch that ModelOpt 0.47 puts quantizers into, as its registry prints them."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One quantizer and one tensor that it quantizes; a module that is called twice gives two.

    Attributes:
        quantizer: Path of the quantizer.
        module_class: ``nn.Linear`` for torch's own classes, else the bare name; "" if unknown.
        kind: activation or weight.
        tensor: Name of the value.
        uses: Readers that see it quantized.
        region: Node that does the module's work.
        match: The node with its weight, for a layer's inputs and weights.
        part: Which part of a merged weight, counted from 0.
        parts: Module paths of all parts.
    """

    quantizer: str
    module_class: str
    kind: Kind
    tensor: str
    uses: tuple[Use, ...]
    region: str
    match: Weighted | None = None
    part: int = 0
    parts: tuple[str, ...] = ()

    @property
    def exists_in_modelopt(self) -> bool:
        """ModelOpt puts a quantizer there, as far as the class tells (attentions: by plugins)."""
        is_attention = self.quantizer.endswith(("_bmm_quantizer", "softmax_quantizer"))
        return is_attention or not self.module_class or self.module_class in QUANTIZED_CLASSES


def quantizer_places(model: ir.Model) -> tuple[Place, ...]:
    """Every quantizer that ModelOpt could have in the modules of ``model``, in graph order.

    Args:
        model: Canonical float model that an exporter wrote with module paths.
    """
    return tuple(place for node in model.graph for place in _places_at(node))


def _places_at(node: ir.Node) -> Iterator[Place]:
    match = weighted(node)
    if match is not None:
        yield from _weighted_places(match)
    elif node.op_type == "Softmax":
        yield from _attention_places(node)
    elif node.op_type in NORMALIZATIONS or node.op_type in _POOLS:
        yield from _plain_places(node)


def class_of(node: ir.Node) -> str:
    """Class of the node's module as ModelOpt spells it."""
    name = module_class(node)
    short = name.rpartition(".")[2]
    return f"nn.{short}" if name.startswith(_TORCH_MODULES) else short


def _weighted_places(match: Weighted) -> Iterator[Place]:
    node = match.node
    name, kind, parts = node.name or "", class_of(node), module_paths(node)
    folded = _folded_norm(match)
    if folded is not None:
        kind, parts = folded
        yield from _output_place(node, module_path(node), class_of(node), 0)
    for part, path in enumerate(parts):
        yield Place(
            f"{path}.input_quantizer", kind, "activation", match.data.name or "",
            (Use(name, 0),), name, match, part, parts,
        )  # fmt: skip
        yield Place(
            f"{path}.weight_quantizer", kind, "weight", match.weight.name or "",
            (Use(name, 1),), name, match, part, parts,
        )  # fmt: skip
        if folded is None:
            yield from _output_place(node, path, kind, part)


def _folded_norm(match: Weighted) -> tuple[str, tuple[str, ...]] | None:
    """Class and path of the layer whose node a BatchNorm's stands for: torch's exporter folds the
    norm into the weight, keeps the norm's metadata and the weight's name."""
    name, rank = match.weight.name or "", len(match.weight.shape or ())
    if not class_of(match.node).startswith("nn.BatchNorm") or not name.endswith(".weight"):
        return None
    layer = {"Conv": f"nn.Conv{rank - 2}d", "ConvTranspose": f"nn.ConvTranspose{rank - 2}d"}
    return layer.get(match.node.op_type, "nn.Linear"), (name.removesuffix(".weight"),)


def _output_place(node: ir.Node, path: str, kind: str, part: int) -> Iterator[Place]:
    output = _module_output(node, part)
    if output is not None and path:
        yield Place(
            f"{path}.output_quantizer", kind, "activation", output.name or "", _readers(output),
            node.name or "", None, part,
        )  # fmt: skip


def _plain_places(node: ir.Node) -> Iterator[Place]:
    path, name = module_path(node), node.name or ""
    value = node.inputs[0]
    if path and value is not None and is_float_activation(value):
        tensor, kind = value.name or "", class_of(node)
        yield Place(
            f"{path}.input_quantizer", kind, "activation", tensor, (Use(name, 0),), name
        )  # fmt: skip
        yield from _output_place(node, path, kind, 0)


def _attention_places(softmax: ir.Node) -> Iterator[Place]:
    found = attention_at(softmax)
    path = module_path(softmax)
    if isinstance(found, str) or not path:
        return
    query = _before_scale(found.scores.inputs[0])
    sides = (
        ("q_bmm_quantizer", query, found.scores, 0),
        ("k_bmm_quantizer", found.scores.inputs[1], found.scores, 1),
        ("v_bmm_quantizer", found.product.inputs[1], found.product, 1),
        ("p_bmm_quantizer", softmax.outputs[0], found.product, 0),
        ("softmax_quantizer", softmax.outputs[0], found.product, 0),
    )
    for leaf, value, reader, index in sides:
        if value is None:
            continue
        is_scaled = leaf == "q_bmm_quantizer" and value is not reader.inputs[index]
        uses = _readers(value) if is_scaled else (Use(reader.name or "", index),)
        yield Place(
            f"{path}.{leaf}", class_of(softmax), "activation", value.name or "", uses,
            softmax.name or "",
        )  # fmt: skip


def _before_scale(query: ir.Value | None) -> ir.Value | None:
    """Q before its multiplication by a constant; Q itself where there is none."""
    value = query
    for _ in range(_MAX_STEPS):
        maker = value.producer() if value is not None else None
        if maker is None:
            return query
        data = [each for each in maker.inputs if each is not None and is_float_activation(each)]
        scales = maker.op_type in ("Mul", "Div") and len(data) == 1
        if scales and any(constant_of(each) is not None for each in maker.inputs):
            return data[0]
        if maker.op_type not in _HEAD_STEPS or not data:
            return query
        value = data[0]
    return query


def _module_output(node: ir.Node, part: int) -> ir.Value | None:
    """What the module's last node makes, reached through single readers of the same module."""
    paths = module_paths(node)
    for _ in range(_MAX_STEPS):
        readers = {use.node for use in node.outputs[0].uses()}
        following = next(iter(readers)) if len(readers) == 1 else None
        if following is None or module_paths(following) != paths:
            break
        node = following
    return node.outputs[part] if len(node.outputs) > part else None


def _readers(value: ir.Value) -> tuple[Use, ...]:
    return tuple(Use(use.node.name or "", use.idx) for use in value.uses())
