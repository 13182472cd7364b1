"""Step 3a: attention becomes one kernel.

Sources: TensorRT documentation, "Fused Attention" (scores, mask, softmax, product); FP8 from sm89
(TensorRT 10.6 release notes); four pairs or none, as the fused kernels have both products in one
type (compiled with the same ML compiler in TensorRT-RTX 1.7: with Q, K, V quantized and the softmax
output not, twelve kernels instead of six); INT8 sizes from the kernel table of TensorRT's own plugin
bertQKVToContextPlugin; no fused INT8 attention on sm87 (a user's report on Orin).

1. ``softmax(scores) @ v`` with scores ``q @ k`` and scale or mask between, in FP16 or BF16.
2. DQ on q, k, v and Q -> DQ on the softmax output, one format for all: in that format.
3. A multiplication by a constant that q or k alone goes through belongs to the kernel.
4. Anything else (three pairs, FP32): two products and a softmax of their own.
5. A low-precision kernel writes the quantized result when Q alone reads it.
6. A guard against NaN behind the softmax goes into a float kernel and breaks a low-precision one
   (compiled with TensorRT-RTX: CLIP's text encoder as exported).
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt.layers import Network
from fuseq.targets.tensorrt.quantization import (
    DTYPE_WORDS,
    dequantizer,
    is_dequantize,
    is_quantize,
    only_reader,
    stored_format,
)

_SCORE_STEPS = frozenset({"Add", "Mul", "Div", "Sub", "Where", "Cast"})
_LONGEST = 6
_INT8_KEYS = 512
_FP8_CAPABILITY = 89


@dataclasses.dataclass(frozen=True)
class Attention:
    """One match: the products, the softmax, what lies between, and the pairs around."""

    scores: ir.Node
    softmax: ir.Node
    product: ir.Node
    between: tuple[ir.Node, ...]
    guard: tuple[ir.Node, ...]
    softmax_pair: tuple[ir.Node, ...]

    @property
    def operands(self) -> list[ir.Value | None]:
        """Q, K and V."""
        return [*self.scores.inputs[:2], self.product.inputs[1]]


def fuse_attention(network: Network) -> None:
    """Fuse every attention of cases 1 and 2; a broken one gets a note."""
    for node in list(network.graph):
        if node.op_type != "Softmax" or not network.is_single(node):
            continue
        found = _match(network, node)
        if found is None:
            continue
        operands = _operands(network, found)
        if operands is None:
            continue
        layer = network.owner[found.scores]
        layer.type, layer.word, layer.operands = KernelType.ATTENTION, "kgen", operands
        pairs = [pair for value in found.operands if (pair := dequantizer(value)) is not None]
        fused = [*found.between, found.softmax, *found.guard, *found.softmax_pair, found.product]
        if operands:
            fused += pairs + _trailing_quantize(found, operands)
        network.absorb(layer, fused)
        for value in found.operands[:2]:
            network.absorb(layer, _scaling(network, value, operands))


def _trailing_quantize(found: Attention, operands: str) -> list[ir.Node]:
    """Case 5."""
    reader = only_reader(found.product.outputs[0])
    if reader is None or not is_quantize(reader) or stored_format(reader) != operands:
        return []
    return [reader]


def _match(network: Network, softmax: ir.Node) -> Attention | None:
    guard = _guard(softmax)
    end = guard[-1].outputs[0] if guard else softmax.outputs[0]
    behind = _product_behind(network, end)
    before = _scores_before(network, softmax)
    if behind is None or before is None:
        return None
    product, pair = behind
    scores, between = before
    return Attention(scores, softmax, product, between, guard, pair)


def _guard(softmax: ir.Node) -> tuple[ir.Node, ...]:
    """Case 6: ``Where(IsNaN(p), 0, p)``, which exporters write behind a softmax."""
    value = softmax.outputs[0]
    readers = {use.node.op_type: use.node for use in value.uses()}
    if len(value.uses()) != 2 or set(readers) != {"IsNaN", "Where"}:
        return ()
    test, choice = readers["IsNaN"], readers["Where"]
    return (test, choice) if only_reader(test.outputs[0]) is choice else ()


def _product_behind(network: Network, end: ir.Value) -> tuple[ir.Node, tuple[ir.Node, ...]] | None:
    """The product with V, and the pair between the probabilities and it."""
    pair: tuple[ir.Node, ...] = ()
    reader = only_reader(end)
    if reader is not None and is_quantize(reader):
        behind = only_reader(reader.outputs[0])
        if behind is None or not is_dequantize(behind):
            return None
        end, pair = behind.outputs[0], (reader, behind)
        reader = only_reader(end)
    if reader is None or reader.op_type != "MatMul" or reader.inputs[0] is not end:
        return None
    return (reader, pair) if _is_runtime(network, reader.inputs[1]) else None


def _scores_before(
    network: Network, softmax: ir.Node
) -> tuple[ir.Node, tuple[ir.Node, ...]] | None:
    """The product of Q and K, and the scale and mask between it and the softmax."""
    between: list[ir.Node] = []
    value = softmax.inputs[0]
    for _ in range(_LONGEST):
        producer = value.producer() if value is not None and only_reader(value) else None
        if producer is None or producer not in network.owner:
            return None
        if producer.op_type == "MatMul":
            computed = all(_is_runtime(network, operand) for operand in producer.inputs[:2])
            return (producer, tuple(reversed(between))) if computed else None
        if producer.op_type not in _SCORE_STEPS:
            return None
        between.append(producer)
        value = _toward_scores(producer)
    return None


def _toward_scores(node: ir.Node) -> ir.Value | None:
    """The input that a product of activations makes, at most a few steps back."""
    for value in node.inputs:
        seen = value
        for _ in range(_LONGEST):
            producer = seen.producer() if seen is not None else None
            if producer is None:
                break
            if producer.op_type == "MatMul":
                return value
            if producer.op_type not in _SCORE_STEPS:
                break
            seen = producer.inputs[1 if producer.op_type == "Where" else 0]
    return None


def _operands(network: Network, found: Attention) -> str | None:
    """Format of the fused kernel, "" for float, None when it does not fuse (case 4)."""
    pairs = [dequantizer(value) for value in found.operands]
    formats = {stored_format(pair) if pair is not None else "" for pair in pairs}
    formats.add(stored_format(found.softmax_pair[1]) if found.softmax_pair else "")
    name = found.softmax.name
    if len(formats) > 1:
        network.notes.append(
            f"{name}: attention is not fused: Q, K, V and the softmax output are not all quantized "
            "alike"
        )
        return None
    only = formats.pop()
    if only:
        reason = _refusal(network, found, only)
        if reason:
            network.notes.append(f"{name}: attention is not fused in {only}: {reason}")
            return None
        return only
    dtype = found.product.outputs[0].dtype
    word = DTYPE_WORDS.get(dtype, "") if dtype is not None else ""
    if word in ("fp16", "bf16") or network.builder.typing == "fp16":
        return ""
    return None


def _refusal(network: Network, found: Attention, operands: str) -> str:
    capability = network.builder.capability
    if found.guard:
        return "a guard against NaN stands behind the softmax"
    if operands == "fp8":
        return "" if capability >= _FP8_CAPABILITY else f"no FP8 before sm{_FP8_CAPABILITY}"
    if operands != "int8":
        return "no kernel has this format"
    head, keys = _size(found.scores.inputs[0], -1), _size(found.product.inputs[1], -2)
    if capability == 87:
        return "none was seen on sm87"
    if head not in (32, 64) or not keys or keys > _INT8_KEYS:
        return (
            f"heads of 32 or 64 and at most {_INT8_KEYS} keys have a kernel, not {head} and {keys}"
        )
    return ""


def _size(value: ir.Value | None, axis: int) -> int:
    shape = value.shape if value is not None else None
    return int(shape.numpy()[axis]) if shape is not None and len(shape) > 1 else 0


def _scaling(network: Network, value: ir.Value | None, operands: str) -> list[ir.Node]:
    """Case 3, float only: behind a Q the multiplication is not part of the kernel."""
    producer = value.producer() if value is not None else None
    if operands or producer is None or producer.op_type not in ("Mul", "Div"):
        return []
    if value is None or only_reader(value) is None or not network.is_single(producer):
        return []
    constant = [read for read in producer.inputs if read in network.constants]
    return [producer] if len(constant) == 1 else []


def _is_runtime(network: Network, value: ir.Value | None) -> bool:
    return value is not None and value not in network.constants
