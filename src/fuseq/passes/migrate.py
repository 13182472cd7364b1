"""Move the range of single channels from activations into the weights that read them.

Xiao, Lin, Seznec, Wu, Demouth, Han, "SmoothQuant: Accurate and Efficient Post-Training Quantization for
Large Language Models", ICML 2023, equations 3 and 4: ``Y = (X diag(s)^-1) (diag(s) W)`` with
``s_j = max|X_j|^a / max|W_j|^(1-a)``; the normalization before takes ``1 / s`` into its scale and bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute
from fuseq.passes.names import value_names
from fuseq.passes.notes import Note
from fuseq.passes.set_constants import set_constants
from fuseq.passes.splice import new_constant
from fuseq.placement.patterns import Weighted, weighted

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


@dataclasses.dataclass(frozen=True)
class Migration:
    """A normalization over the last axis, and the linear layers that alone read it."""

    norm: ir.Node
    affine: tuple[ir.Value, ...]
    readers: tuple[Weighted, ...]


def migratable(graph: ir.Graph) -> Iterator[Migration]:
    """Normalizations whose output only linear layers read, in graph order.

    1. Scale and bias are constants [channels]; where others read them too, they get copies. Weights
       are constants that nobody else reads.
    2. A reader is a MatMul or Gemm without ``transA``, with a weight of two axes, and reads its data.
       Behind a residual branch (post-norm transformers) nothing can be moved.
    """
    for node in graph:
        if node.op_type not in _NORMS or node.outputs[0].is_graph_output():
            continue
        shape = node.outputs[0].shape
        affine = tuple(value for value in node.inputs[1:3] if value is not None)
        last = -1 if shape is None else len(shape) - 1
        if integer_attribute(node, "axis", -1) not in (-1, last):
            continue
        if any(constant(value) is None for value in affine):
            continue
        uses = list(node.outputs[0].uses())
        readers = [_linear(use.node) for use in uses if use.idx == 0]
        found = tuple(reader for reader in readers if reader is not None)
        if found and len(found) == len(uses) and affine:
            yield Migration(node, affine, found)


def migrate(model: ir.Model, maxima: Mapping[str, np.ndarray], strength: float) -> list[Note]:
    """Migrate in place; the outputs of the float model stay, to rounding.

    Args:
        model: Canonical float model.
        maxima: Largest magnitude by channel, [channels], of normalizations' outputs by name.
        strength: ``a`` of the paper, 0 to 1: 0 evens the weights, 1 the activations.

    Returns:
        One note with the names of the normalizations.
    """
    done = []
    taken = value_names(model)
    for found in migratable(model.graph):
        activations = maxima.get(found.norm.outputs[0].name or "")
        if activations is None:
            continue
        rows = [np.abs(_rows(reader)).max(axis=1) for reader in found.readers]
        weights = np.maximum.reduce(rows)
        factor = np.ones_like(weights)
        usable = (activations > 0) & (weights > 0) & np.isfinite(activations)
        factor[usable] = activations[usable] ** strength / weights[usable] ** (1 - strength)
        for index, value in enumerate(found.affine, start=1):
            dtype = (value.dtype or ir.DataType.FLOAT).numpy()
            made = (_array(value) / factor).astype(dtype)
            name = f"{value.name}_smoothed"
            found.norm.replace_input_with(index, new_constant(model.graph, name, made, taken))
        values = {}
        for reader in found.readers:
            scaled = _rows(reader) * factor[:, None]
            values[reader.weight.name or ""] = scaled if reader.channel_axis == 1 else scaled.T
        set_constants(model, values)
        for value in found.affine:
            if not value.uses() and value.is_initializer():
                del model.graph.initializers[value.name or ""]
        done.append(found.norm.name or "")
    if not done:
        return []
    return [Note(f"smoothed the channels behind {len(done)} normalizations.", tuple(done))]


def _linear(node: ir.Node) -> Weighted | None:
    """Case 2."""
    match = weighted(node)
    if match is None or match.is_conv or not _is_own(match.weight):
        return None
    is_matrix = match.weight.const_value is not None and len(match.weight.const_value.shape) == 2
    return match if is_matrix and not node.attributes.get_int("transA", 0) else None


def _is_own(value: ir.Value) -> bool:
    is_constant = value.is_initializer() and constant(value) is not None
    return is_constant and len(value.uses()) == 1 and not value.is_graph_output()


def _rows(layer: Weighted) -> np.ndarray:
    """The weight by input channel, [K, N]."""
    array = _array(layer.weight)
    return array if layer.channel_axis == 1 else array.T


def _array(value: ir.Value) -> np.ndarray:
    tensor = constant(value)
    assert tensor is not None  # a migration has constants only
    return np.asarray(tensor.numpy(), dtype=np.float64)
