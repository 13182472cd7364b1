"""Step 3: convolutions and GEMMs take their DQ, epilogue, residual Add and the next Q.

Sources: TensorRT documentation, "Explicit Quantization", "Q/DQ Layer-Placement Recommendations" and
"Layer Fusion Catalog"; five ResNet-18 engines on an A100 (TensorRT's trt-engine-explorer examples).
Names in brackets are the passes of TensorRT's verbose log. Numbered cases:

1. DQ on data and weights: the product runs in low precision [QuantizeDoubleInputNodes]. With one of
   the two alone it runs in float: the weights' DQ is computed at build time, the data's runs alone.
2. Behind it: BatchNormalization, bias, scale [QConvScaleFusion]; any activation [ConvReluFusion,
   generic activation]. A low-precision depthwise convolution takes only Relu and Clip
   (https://github.com/NVIDIA/TensorRT/issues/3205), a low-precision ConvTranspose no
   BatchNormalization (.../issues/3412).
3. An Add of a tensor of the same shape, directly behind 1 and BatchNormalization or bias, then an
   activation. Of two convolutions the later one takes it. Behind an activation Add stays alone
   [EltwiseAddToPwn].
4. A Q that alone reads the result fuses into a low-precision product, which then writes low
   precision; with an Add only if its other input comes from DQ, which fuses too. "The precision of
   xf1 is floating-point, so the output of the fused convolution is limited to floating-point, and
   the trailing Q-layer cannot be fused" (recommendation 4).
5. A Q copied from behind a Concat does not fuse into ConvTranspose (.../issues/2597).
6. A float convolution takes the zero padding before it ("Padding and Convolution").
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.targets.tensorrt.layers import Layer, Network
from fuseq.targets.tensorrt.move_quantize import is_cloned
from fuseq.targets.tensorrt.operators import (
    ACTIVATIONS,
    CONVOLUTIONS,
    PRODUCTS,
    is_image_padding,
)
from fuseq.targets.tensorrt.pointwise_block import pointwise_block
from fuseq.targets.tensorrt.quantization import (
    dequantizer,
    is_dequantize,
    is_quantize,
    only_reader,
    scaling_of,
    stored_format,
)

_DEPTHWISE_EPILOGUE = frozenset({"Relu", "Clip", "BatchNormalization", "Add", "Mul", "Sub", "Div"})
_SCALE = frozenset({"Add", "Mul", "Sub", "Div"})
LOW_PRECISION = frozenset({"int8", "fp8"})


def fuse_products(network: Network) -> None:
    """Fuse around every product, the last one first, so that the later branch takes an Add."""
    for node in reversed(list(network.graph)):
        if node.op_type in PRODUCTS and network.is_single(node):
            _fuse(network, network.owner[node])


def _fuse(network: Network, layer: Layer) -> None:
    node = layer.anchor
    layer.operands = _operands(network, node)
    if layer.operands:  # case 1
        pairs = [dequantizer(value) for value in node.inputs[:2]]
        network.absorb(
            layer, [pair for pair in pairs if pair is not None and pair in network.owner]
        )
    else:
        network.absorb(layer, _padding(network, layer))  # case 6
    end = node.outputs[0]
    while True:
        fused = _next_epilogue(network, layer, end)
        if not fused:
            break
        network.absorb(layer, fused)
        end = fused[-1].outputs[0]
    if layer.operands:
        _fuse_quantize(network, layer, end)


def _padding(network: Network, layer: Layer) -> list[ir.Node]:
    data = layer.anchor.inputs[0]
    producer = data.producer() if data is not None else None
    if data is None or producer is None or layer.anchor.op_type not in CONVOLUTIONS:
        return []
    alone = only_reader(data) is not None and network.is_single(producer)
    return [producer] if alone and is_image_padding(producer) else []


def _operands(network: Network, node: ir.Node) -> str:
    """Low-precision format of both operands, "" when the product runs in float."""
    formats = set()
    for value in node.inputs[:2]:
        pair = dequantizer(value)
        if pair is None:
            pair = _behind_moves(network, value)
        if pair is None:
            return ""
        formats.add(stored_format(pair))
    only = formats.pop() if len(formats) == 1 else ""
    return only if only in LOW_PRECISION else ""


def _behind_moves(network: Network, value: ir.Value | None) -> ir.Node | None:
    """DQ of a constant weight, seen through what is done to it at build time (Transpose, Reshape)."""
    for _ in range(8):
        producer = value.producer() if value is not None and value in network.constants else None
        if producer is None or is_dequantize(producer):
            return producer
        value = producer.inputs[0]
    return None


def _next_epilogue(network: Network, layer: Layer, end: ir.Value) -> list[ir.Node]:
    reader = only_reader(end)
    if reader is not None and network.is_single(reader):
        if reader.op_type == "BatchNormalization" and not layer.has_activation:
            return [reader] if not (layer.operands and _is_transposed(layer)) else []
        if reader.op_type in _SCALE and _is_channelwise(network, reader, end):
            return [reader]
        if reader.op_type == "Add" and _take_residual(network, layer, reader, end):
            return [reader]
    block = pointwise_block(end, network.constants)
    if not block or not all(network.is_single(node) for node in block):
        return []
    if block[0].op_type == "Cast":
        return []
    if layer.operands and is_depthwise(layer.anchor) and not _fits_depthwise(block):
        network.notes.append(
            f"{layer.anchor.name}: a quantized depthwise convolution does not take "
            f"{block[-1].op_type}; it runs alone (TensorRT 8.5 refused to build such a network)"
        )
        return []
    if any(node.op_type in ACTIVATIONS or node.op_type == "Erf" for node in block):
        layer.has_activation = True
    return block


def _fits_depthwise(block: list[ir.Node]) -> bool:
    return all(node.op_type in _DEPTHWISE_EPILOGUE for node in block)


def _is_channelwise(network: Network, node: ir.Node, end: ir.Value) -> bool:
    """The other operand is a constant with one value, or one a channel (kUNIFORM, kCHANNEL)."""
    others = [value for value in node.inputs if value is not end]
    if len(others) != 1 or others[0] not in network.constants or others[0].shape is None:
        return False
    wide = [axis for axis, size in enumerate(reversed(others[0].shape.numpy())) if size != 1]
    return len(wide) <= 1


def _take_residual(network: Network, layer: Layer, add: ir.Node, end: ir.Value) -> bool:
    """Case 3; notes the other operand in the layer."""
    if layer.residual is not None or layer.has_activation or len(add.inputs) != 2:
        return False
    other = add.inputs[1] if add.inputs[0] is end else add.inputs[0]
    if other is None or other is end or other in network.constants:
        return False
    if other.shape is None or end.shape is None or other.shape != end.shape:
        return False
    if network.generated and add in network.generated:
        return False  # the ML compiler adds in the normalization that follows
    layer.residual = other
    return True


def _fuse_quantize(network: Network, layer: Layer, end: ir.Value) -> None:
    """Cases 4 and 5."""
    reader = only_reader(end)
    if reader is None or not is_quantize(reader) or not network.is_single(reader):
        return
    if scaling_of(reader).axis is not None or stored_format(reader) != layer.operands:
        return
    if _is_transposed(layer) and is_cloned(reader):
        return
    if layer.residual is not None:
        pair = dequantizer(layer.residual)
        if pair is None or stored_format(pair) != layer.operands:
            return
        network.absorb(layer, [pair])
    network.absorb(layer, [reader])


def _is_transposed(layer: Layer) -> bool:
    return layer.anchor.op_type == "ConvTranspose"


def is_depthwise(node: ir.Node) -> bool:
    """One input channel a group, and more than one group. Weight ``[O, I / groups, ...]``."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    groups = node.attributes.get_int("group", 1) or 1
    if groups == 1 or weight is None or weight.shape is None:
        return False
    return int(weight.shape.numpy()[1]) == 1
