"""Multiply a layer's weight by a factor, whether it is float or stored behind DequantizeLinear."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from fuseq.passes.matching import constant, integer_attribute, made_by
from fuseq.passes.splice import new_constant


@dataclasses.dataclass(frozen=True)
class ScaledWeight:
    """The weight of ``node``: float data, and the Q/DQ nodes between it and the layer."""

    node: ir.Node
    tensor: ir.TensorProtocol
    dequantize: ir.Node | None = None
    quantize: ir.Node | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight as the layer sees it."""
        return tuple(self.tensor.shape.numpy())

    def multiply(self, graph: ir.Graph, factor: np.ndarray, taken: set[str]) -> bool:
        """Multiply by ``factor``, which has the weight's rank and broadcasts against it.

        1. Float weight: multiplied in float64, stored in its own type under a fresh name.
        2. Q and DQ behind a float weight: the weight takes ``factor``, the scale its magnitude, so
           that the stored integers are the same but for sign.
        3. DQ alone: the scale takes the magnitude and the integers the sign; refused where the
           most negative integer has no opposite.
        """
        if self.dequantize is None:
            self._store(graph, self.node, 1, self._times(factor), taken)
            return True
        axis = _varying_axis(factor)
        scales = self._scales(factor, axis) if axis is not None or factor.size == 1 else None
        if scales is None:
            return False
        source = self.quantize or self.dequantize
        if self.quantize is not None:
            self._store(graph, source, 0, self._times(factor), taken)
        else:
            signed = self._signed(factor)
            if signed is None:
                return False
            self._store(graph, source, 0, signed, taken)
        for node in (self.quantize, self.dequantize):
            if node is not None:
                self._rescale(graph, node, scales, axis, taken)
        return True

    def _times(self, factor: np.ndarray) -> np.ndarray:
        array = self.tensor.numpy()
        product: np.ndarray = (array.astype(np.float64) * factor).astype(array.dtype)
        return product

    def _signed(self, factor: np.ndarray) -> np.ndarray | None:
        array = self.tensor.numpy()
        if (factor >= 0).all():
            return array
        wide = array.astype(np.float64) * np.sign(np.where(factor == 0, 1, factor))
        back = wide.astype(array.dtype)
        return back if (back.astype(np.float64) == wide).all() else None

    def _scales(self, factor: np.ndarray, axis: int | None) -> np.ndarray | None:
        """Scale of the weight after the fold, [channels] along ``axis`` or a scalar."""
        dequantize = self.dequantize
        scale = constant(dequantize.inputs[1]) if dequantize is not None else None
        if dequantize is None or scale is None or not factor.all() or not _is_symmetric(dequantize):
            return None
        old = scale.numpy().astype(np.float64)
        if old.size > 1 and axis is not None:
            own = integer_attribute(dequantize, "axis", 1) % len(self.shape)
            if old.ndim != 1 or own != axis:
                return None
        magnitude = np.abs(factor).reshape(-1) if axis is not None else np.abs(factor).max()
        return np.asarray(old.reshape(-1) * magnitude if old.ndim else old * magnitude)

    def _rescale(
        self, graph: ir.Graph, node: ir.Node, scales: np.ndarray, axis: int | None, taken: set[str]
    ) -> None:
        old = constant(node.inputs[1])
        if old is None:
            return
        self._store(graph, node, 1, scales.astype(old.numpy().dtype), taken)
        zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if zero is not None and zero.shape.numpy() != scales.shape:
            self._store(graph, node, 2, np.zeros(scales.shape, zero.numpy().dtype), taken)
        if scales.ndim and axis is not None:
            node.attributes["axis"] = ir.AttrInt64("axis", axis)

    def _store(
        self, graph: ir.Graph, node: ir.Node, index: int, array: np.ndarray, taken: set[str]
    ) -> None:
        old = node.inputs[index]
        name = old.name if old is not None and old.name else "weight"
        node.replace_input_with(index, new_constant(graph, f"{name}_folded", array, taken))


def scale_weight(node: ir.Node) -> ScaledWeight | None:
    """Return the weight (input 1) of a layer, or None where it is not a constant."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = constant(value)
    if tensor is not None:
        return ScaledWeight(node, tensor)
    dequantize = made_by(value, "DequantizeLinear")
    if dequantize is None or len(dequantize.outputs[0].uses()) != 1:
        return None
    stored = constant(dequantize.inputs[0])
    if stored is not None:
        return ScaledWeight(node, stored, dequantize)
    quantize = made_by(dequantize.inputs[0], "QuantizeLinear")
    original = constant(quantize.inputs[0]) if quantize is not None else None
    if quantize is None or original is None or len(quantize.outputs[0].uses()) != 1:
        return None
    return ScaledWeight(node, original, dequantize, quantize)


def _varying_axis(factor: np.ndarray) -> int | None:
    axes = [axis for axis, size in enumerate(factor.shape) if size > 1]
    return axes[0] if len(axes) == 1 else None


def _is_symmetric(node: ir.Node) -> bool:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    zero = constant(node.inputs[2])
    return zero is not None and not zero.numpy().astype(np.float32).any()
