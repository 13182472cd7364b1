"""Step 9: every tensor gets its type and layout, and a Reformat where two kernels disagree.

Under strong typing the types are the file's. Under weak typing (before TensorRT 11) the file is FP32
and the compiler chooses; the rules below are those of the five ResNet-18 engines on an A100 built with
``--fp16`` or ``--fp16 --int8``:

1. The model's inputs and outputs keep their type, row by row. An INT8 product writes an FP32 output
   itself; an FP16 product does not, and a Reformat follows.
2. A DQ that runs alone writes FP32; an Add fused into an INT8 product then reads FP32, and the product
   writes it.
3. INT8 products on CUDA cores (images, DP4A) write INT8 or FP32, not FP16.
4. A pool keeps the type it finds; FP16 in vectors of 32 channels is first brought to vectors of two.
5. Everything else that stays float is FP16 where that is allowed.
6. Q, DQ and Cast alone convert the layout on the way.
7. When a reader wants another storage, it is converted once, behind the producer, and readers that
   take any read whichever is smaller.
8. Kernels of the ML compiler read and write any strides (its layer lists state strides), but no
   vectors of channels; generated ones cast on the way (``AddCastMeanSub...`` in its kernels' names).
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt.builder import DP4A_CHANNELS
from fuseq.targets.tensorrt.layers import Layer, Network
from fuseq.targets.tensorrt.quantization import DTYPE_WORDS, FLOATS, WORDS
from fuseq.targets.tensorrt.storage import (
    CHW2,
    CHW4,
    CHW32,
    HWC8,
    LINEAR,
    Storage,
    product_storage,
    written_by_int8,
)

_LOW = frozenset(WORDS.values())
_CONVERSIONS = frozenset({KernelType.QUANTIZE, KernelType.DEQUANTIZE, KernelType.CAST})
_VECTORIZED = frozenset({CHW2, CHW4, CHW32})
_ANY_LAYOUT = frozenset(
    {
        KernelType.POOL, KernelType.ELEMENTWISE, KernelType.RESIZE, KernelType.QUANTIZE,
        KernelType.DEQUANTIZE, KernelType.CAST,
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Reformat:
    """A conversion behind the kernel that makes ``value`` (or before all, for a model input)."""

    value: ir.Value
    before: Storage
    after: Storage
    reader: str
    is_output: bool


@dataclasses.dataclass
class Assignment:
    """Storage of every tensor as made, as each layer reads it, and the conversions between."""

    made: dict[ir.Value, Storage] = dataclasses.field(default_factory=dict)
    read: dict[tuple[Layer, ir.Value], Storage] = dataclasses.field(default_factory=dict)
    reformats: dict[ir.Value, list[Reformat]] = dataclasses.field(default_factory=dict)


def assign(network: Network, layers: list[Layer]) -> Assignment:
    """Walk ``layers`` in launch order."""
    result = Assignment()
    readers = _readers(network, layers)
    for value in network.graph.inputs:
        if value not in network.constants:
            _settle(network, result, value, Storage(_declared(value), LINEAR), readers)
    for layer in layers:
        for value in network.outputs(layer):
            _settle(network, result, value, _given(network, result, layer, value, readers), readers)
    return result


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Static shape; () when it depends on data."""
    if value.shape is None or not value.shape.is_static():
        return ()
    return tuple(int(size) for size in value.shape.numpy())


def _readers(network: Network, layers: list[Layer]) -> dict[ir.Value, list[tuple[Layer, ir.Value]]]:
    """Layers that read each tensor, with the view through which they do."""
    found: dict[ir.Value, list[tuple[Layer, ir.Value]]] = {}
    for layer in layers:
        for value in network.runtime_inputs(layer):
            found.setdefault(network.root(value), []).append((layer, value))
    return found


def _settle(
    network: Network,
    result: Assignment,
    value: ir.Value,
    made: Storage,
    readers: dict[ir.Value, list[tuple[Layer, ir.Value]]],
) -> None:
    """Case 7: choose what each reader of ``value`` reads."""
    result.made[value] = made
    shape = shape_of(value)
    wishes = [
        (layer, _wanted(network, result, layer, view, value, made))
        for layer, view in readers.get(value, [])
    ]
    available = [made]
    for layer, wish in wishes:
        if wish is not None and not any(wish.is_free_from(have, shape) for have in available):
            available.append(wish)
            conversion = Reformat(value, made, wish, layer.anchor.name or "", False)
            result.reformats.setdefault(value, []).append(conversion)
    smallest = min(available, key=lambda storage: storage.nbytes(shape))
    for layer, wish in wishes:
        result.read[layer, value] = smallest if wish is None else wish
    for output in network.graph.outputs:
        public = Storage(_declared(output), LINEAR)
        if network.root(output) is value and not public.is_free_from(made, shape):
            name = output.name or ""
            result.reformats.setdefault(value, []).append(Reformat(value, made, public, name, True))


def _wanted(
    network: Network,
    result: Assignment,
    layer: Layer,
    view: ir.Value,
    value: ir.Value,
    made: Storage,
) -> Storage | None:
    """What ``layer`` must read ``value`` as; None when it takes any."""
    if layer.type is KernelType.CONVOLUTION:
        return _wanted_by_product(network, layer, view, made)
    if made.dtype in _LOW and (_keeps_layout(layer) or layer.word == "kgen"):
        return None
    if layer.type in _CONVERSIONS:
        return None
    if _keeps_layout(layer):
        if layer.type is KernelType.POOL and made.layout == CHW32:  # case 4
            return Storage(made.dtype, CHW2)
        if view is not value and shape_of(view) != shape_of(value):
            return Storage(made.dtype, LINEAR)
        return _like_first(network, result, layer, value, made)
    dtype = _float(network, made.dtype)
    if _is_strided(layer) and made.layout not in _VECTORIZED:
        casts_itself = layer.word == "kgen" and layer.type is not KernelType.ATTENTION
        return None if casts_itself or dtype == made.dtype else Storage(dtype, made.layout)
    return Storage(dtype, LINEAR)


def _keeps_layout(layer: Layer) -> bool:
    """It takes the layout it finds and writes the same."""
    return (layer.type in _ANY_LAYOUT and layer.word != "kgen") or layer.word == "Padding"


def _is_strided(layer: Layer) -> bool:
    """Generated kernels and GEMMs read and write any strides (case 8)."""
    return layer.word in ("kgen", "gemm")


def _wanted_by_product(network: Network, layer: Layer, view: ir.Value, made: Storage) -> Storage:
    shape = shape_of(view)
    channels = shape[1] if len(shape) > 1 else 1
    if layer.residual is view and made.dtype not in _LOW and layer.operands:
        dtype = made.dtype if _is_from_alone_dq(network, view) else _float(network, made.dtype)
        return written_by_int8(dtype) if layer.operands == "int8" else Storage(dtype, HWC8)
    if layer.word == "ConvActPool":
        return Storage("int8", LINEAR)
    return product_storage(layer.operands or _float(network, made.dtype), channels, network.builder)


def _like_first(
    network: Network, result: Assignment, layer: Layer, value: ir.Value, made: Storage
) -> Storage | None:
    """A pointwise layer reads all its images in the storage of the first one made."""
    for other in network.runtime_inputs(layer):
        root = network.root(other)
        storage = result.read.get((layer, root))
        if root is not value and storage is not None and shape_of(root) == shape_of(value):
            return storage if storage != made else None
    return None


def _given(
    network: Network,
    result: Assignment,
    layer: Layer,
    value: ir.Value,
    readers: dict[ir.Value, list[tuple[Layer, ir.Value]]],
) -> Storage:
    """What ``layer`` writes ``value`` as."""
    declared = _declared(value)
    if layer.type is KernelType.CONVOLUTION:
        return _given_by_product(network, result, layer, value, declared)
    dtype = declared if declared in _LOW else _float(network, declared)
    if layer.type is KernelType.DEQUANTIZE and not network.builder.is_strong:
        dtype = "fp32"  # case 2
    if layer.type in _CONVERSIONS and layer.word != "kgen":
        shape = shape_of(value)
        plain = Storage(dtype, LINEAR)
        if len(shape) == 4:
            plain = product_storage(dtype, shape[1], network.builder)
        return _for_reader(network, result, value, plain, readers)  # case 6
    if _keeps_layout(layer):
        main = _main_input(network, result, layer)
        if main is not None:
            kept = main.dtype if declared in FLOATS and main.dtype in FLOATS else dtype
            kept = kept if not network.builder.is_strong else dtype
            return Storage(kept, main.layout)
    if layer.word == "kgen":
        if _feeds_output(network, value) and layer.type is not KernelType.ATTENTION:
            dtype = declared
        wish = _for_reader(network, result, value, Storage(dtype, LINEAR), readers)
        return wish if wish.layout not in _VECTORIZED else Storage(dtype, LINEAR)
    return Storage(dtype, LINEAR)


def _given_by_product(
    network: Network, result: Assignment, layer: Layer, value: ir.Value, declared: str
) -> Storage:
    shape = shape_of(value)
    channels = shape[1] if len(shape) > 1 else 1
    if declared in _LOW:
        return (
            Storage(declared, CHW32)
            if declared == "int8"
            else product_storage(declared, channels, network.builder)
        )
    if not layer.operands:
        data = result.read.get((layer, network.root(network.runtime_inputs(layer)[0])))
        dtype = data.dtype if data is not None else _float(network, declared)
        is_linear = data is not None and data.layout == LINEAR
        return Storage(
            dtype,
            LINEAR
            if is_linear
            else product_storage(dtype, DP4A_CHANNELS + 1, network.builder).layout,
        )
    dtype = _float(network, declared)
    if not network.builder.is_strong:
        dtype = _weak_int8_output(network, result, layer, value, dtype)
    return written_by_int8(dtype) if layer.operands == "int8" else Storage(dtype, HWC8)


def _weak_int8_output(
    network: Network, result: Assignment, layer: Layer, value: ir.Value, dtype: str
) -> str:
    """Cases 1 to 3."""
    if _feeds_output(network, value):
        return "fp32"
    data = layer.anchor.inputs[0]
    shape = shape_of(data) if data is not None else ()
    if len(shape) > 1 and shape[1] <= DP4A_CHANNELS:
        return "fp32"
    if layer.residual is not None:
        storage = result.read.get((layer, network.root(layer.residual)))
        return storage.dtype if storage is not None else dtype
    return dtype


def _feeds_output(network: Network, value: ir.Value) -> bool:
    return any(network.root(output) is value for output in network.graph.outputs)


def _for_reader(
    network: Network,
    result: Assignment,
    value: ir.Value,
    plain: Storage,
    readers: dict[ir.Value, list[tuple[Layer, ir.Value]]],
) -> Storage:
    for layer, view in readers.get(value, []):
        wish = _wanted(network, result, layer, view, value, plain)
        if wish is not None and wish.dtype == plain.dtype:
            return wish
    return plain


def _main_input(network: Network, result: Assignment, layer: Layer) -> Storage | None:
    found = [
        result.read[layer, root]
        for value in network.runtime_inputs(layer)
        if (layer, root := network.root(value)) in result.read
    ]
    return found[0] if found else None


def _is_from_alone_dq(network: Network, value: ir.Value) -> bool:
    producer = network.root(value).producer()
    return producer is not None and network.owner[producer].type is KernelType.DEQUANTIZE


def _declared(value: ir.Value) -> str:
    return DTYPE_WORDS.get(value.dtype, "fp32") if value.dtype is not None else "fp32"


def _float(network: Network, dtype: str) -> str:
    """Case 5: FP32 becomes FP16 under weak typing that allows it."""
    return "fp16" if dtype == "fp32" and network.builder.typing == "fp16" else dtype
