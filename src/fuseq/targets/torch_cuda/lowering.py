"""From a typed Q/DQ graph to a torch.fx graph whose planned products run in 8 bits.

An 8-bit tensor travels with its scale (:class:`Held`): DequantizeLinear only notes the scale, views
keep it, and a product that takes 8-bit operands reads the stored values. Whoever wants floats gets
them by a multiplication, which torch.compile fuses into the reader.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import torch

from fuseq.errors import TargetError
from fuseq.targets.torch_cuda import emit_fused
from fuseq.targets.torch_cuda.emitter import Emitter, Operand, dtype_of, shape_of
from fuseq.targets.torch_cuda.fusions import Fusion, find_fusions
from fuseq.targets.torch_cuda.held import Held, float_of, quantized
from fuseq.targets.torch_cuda.operators import OPERATORS, TORCH_TYPES, Write

_KEEPS_SCALE = frozenset(
    {
        "Reshape",
        "Transpose",
        "Split",
        "Slice",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Expand",
        "Gather",
    }
)
_FOLD_LIMIT = 1 << 20


@dataclasses.dataclass(frozen=True)
class Fused:
    """A fusion and the call that runs it; the call's arguments carry shapes and types."""

    fusion: Fusion
    call: torch.fx.Node


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A runnable graph.

    Attributes:
        module: Takes the inputs in the model's order, returns a tuple of the outputs.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        fused: The kernels of ours in it, in the order in which they run.
        left: Why planned products did not become kernels of ours, by node name.
    """

    module: torch.fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fused: tuple[Fused, ...]
    left: Mapping[str, str]


def lower(model: ir.Model, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> Lowered:
    """Write the graph for one set of input shapes.

    Args:
        model: Typed, with Q/DQ or without; not changed.
        shapes: Static shape of every input by name.
        device: Where it runs.

    Raises:
        TargetError: The model has an operator, type or size that this target does not run.
    """
    emit = Emitter(device)
    values: dict[ir.Value, Operand | Held] = {}
    for value in model.graph.inputs:
        dtype = TORCH_TYPES.get(value.dtype or ir.DataType.UNDEFINED)
        if dtype is None:
            raise TargetError(f"torch:cuda: input {value.name!r} has type {value.dtype}.")
        values[value] = emit.input(_identifier(value), shapes[value.name or ""], dtype)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            values[value] = value.const_value.numpy()
    fused, left = _write_nodes(emit, model.graph, values)
    outputs = tuple(
        emit.tensor(_some(_plain(emit, values[value]))) for value in model.graph.outputs
    )
    emit.graph.output(outputs)
    emit.graph.eliminate_dead_code()
    return Lowered(
        module=torch.fx.GraphModule(emit.root, emit.graph),
        inputs=tuple(value.name or "" for value in model.graph.inputs),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        fused=tuple(fused),
        left=left,
    )


def _write_nodes(
    emit: Emitter, graph: ir.Graph, values: dict[ir.Value, Operand | Held]
) -> tuple[list[Fused], dict[str, str]]:
    fusions = find_fusions(graph)
    at = {fusion.nodes[-1]: fusion for fusion in fusions}
    absorbed = {node for fusion in fusions for node in fusion.nodes}
    fused: list[Fused] = []
    left: dict[str, str] = {}
    for node in graph:
        fusion = at.get(node)
        if fusion is None:
            if node not in absorbed:
                _write_plain(emit, node, values)
            continue
        written = emit_fused.write(emit, fusion, values)
        if isinstance(written, str):
            left[fusion.nodes[0].name or ""] = written
            for single in fusion.nodes:
                _write_plain(emit, single, values)
        else:
            fused.append(Fused(fusion, written))
    return fused, left


def _write_plain(emit: Emitter, node: ir.Node, values: dict[ir.Value, Operand | Held]) -> None:
    if all(output in values for output in node.outputs):
        return  # written with a fusion before it
    operands = [None if value is None else values[value] for value in node.inputs]
    if node.op_type == "DequantizeLinear":
        values[node.outputs[0]] = _dequantize(emit, node, operands)
        return
    if node.op_type == "QuantizeLinear":
        values[node.outputs[0]] = quantized(emit, node, operands)
        return
    rows = _gathered_rows(emit, node, operands)
    if rows is not None:
        values[node.outputs[0]] = rows
        return
    folded = _folded(node, operands)
    results = _computed(emit, node, operands) if folded is None else folded
    for output, result in zip(node.outputs, results, strict=False):
        values[output] = result


def _computed(
    emit: Emitter, node: ir.Node, operands: Sequence[Operand | Held | None]
) -> Sequence[Operand | Held]:
    if node.op_type == "Shape":
        source = operands[0]
        shape = shape_of(source.stored if isinstance(source, Held) else _some(source))
        cut = slice(node.attributes.get_int("start", 0), node.attributes.get_int("end", None))
        return [np.asarray(shape[cut], dtype=np.int64)]
    write = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if write is None:
        raise TargetError(
            f"torch:cuda does not run operator {node.domain or 'ai.onnx'}.{node.op_type} "
            f"(node {node.name!r})."
        )
    held = _still_held(emit, node, operands, write)
    if held is not None:
        return held
    try:
        result = write(emit, node, [_plain(emit, operand) for operand in operands])
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TargetError(
            f"torch:cuda: PyTorch refuses {node.op_type} {node.name!r}: {first_line}"
        ) from error
    return result if isinstance(result, list) else [result]


def _still_held(
    emit: Emitter, node: ir.Node, operands: Sequence[Operand | Held | None], write: Write
) -> Sequence[Held] | None:
    """Operators that only move stored values, or scale them all alike; None for any other.

    Rows gathered from a table with one scale for each row take their scales along.
    """
    first = operands[0] if operands else None
    others = operands[1:]
    if not isinstance(first, Held):
        return None
    if node.op_type in ("Mul", "Div") and len(others) == 1 and not first.is_per_channel:
        factor = others[0]
        if not isinstance(factor, np.ndarray) or factor.size != 1:
            return None
        number = float(factor.reshape(-1)[0])
        return [first.times(number if node.op_type == "Mul" else 1.0 / number)]
    if node.op_type not in _KEEPS_SCALE or first.is_per_channel:
        return None
    written = write(emit, node, [first.stored, *(_plain(emit, other) for other in others)])
    results = written if isinstance(written, list) else [written]
    return [dataclasses.replace(first, stored=result) for result in results]


def _gathered_rows(
    emit: Emitter, node: ir.Node, operands: Sequence[Operand | Held | None]
) -> torch.fx.Node | None:
    """Gather from an 8-bit table with a scale for each row: only the rows read are widened."""
    table = operands[0] if operands else None
    if node.op_type != "Gather" or not isinstance(table, Held) or table.axis != 0:
        return None
    if node.attributes.get_int("axis", 0) != 0 or not isinstance(table.stored, np.ndarray):
        return None
    indices = emit.tensor(_some(_plain(emit, operands[1])))
    stored, scale = emit.tensor(table.stored), emit.tensor(table.scale)
    bits = emit.call(torch.Tensor.view, stored, torch.uint8)  # indexing has no FP8 kernel
    rows = emit.call(operator.getitem, bits, (indices,))
    rows = emit.call(torch.Tensor.view, rows, dtype_of(stored))
    values = emit.call(torch.Tensor.to, rows, dtype_of(scale))
    scales = emit.call(torch.unsqueeze, emit.call(operator.getitem, scale, (indices,)), -1)
    return emit.call(torch.mul, values, scales)


def _folded(node: ir.Node, operands: Sequence[Operand | Held | None]) -> Sequence[Operand] | None:
    """Shape arithmetic: nodes that read constants alone, computed by ONNX's reference evaluator."""
    if not operands and node.op_type != "Constant":
        return None
    if any(not isinstance(operand, np.ndarray) for operand in operands if operand is not None):
        return None
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if sum(array.size for array in arrays) > _FOLD_LIMIT or node.op_type not in _FOLDS:
        return None
    names = ["" if operand is None else f"x{i}" for i, operand in enumerate(operands)]
    proto = onnx.helper.make_node(node.op_type, names, [f"y{i}" for i in range(len(node.outputs))])
    proto.attribute.extend(ir.to_proto(node).attribute)
    graph = onnx.helper.make_graph(
        [proto],
        "fold",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names if name],
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in proto.output],
    )
    version = node.version or 20
    whole = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    feeds = dict(zip([name for name in names if name], arrays, strict=True))
    results = onnx.reference.ReferenceEvaluator(whole).run(None, feeds)
    return [np.asarray(result) for result in results]


_FOLDS = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Mod", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze",
        "Cast", "Range", "ConstantOfShape", "Equal", "Where", "Expand", "Reshape", "Shape", "Size",
        "ReduceProd", "Max", "Min", "Neg", "Floor", "Ceil", "Greater", "Less", "Not", "And", "Or",
        "Transpose", "Tile", "NonZero", "CumSum", "Trilu", "Identity", "Constant", "Split",
    }
)  # fmt: skip


def _dequantize(emit: Emitter, node: ir.Node, operands: Sequence[Operand | Held | None]) -> Held:
    stored, scale = operands[0], operands[1]
    if isinstance(stored, Held) or stored is None or not isinstance(scale, np.ndarray):
        raise TargetError(f"torch:cuda: {node.name!r} dequantizes with a scale that is computed.")
    zero = operands[2] if len(operands) > 2 else None
    if isinstance(zero, np.ndarray) and np.any(zero.astype(np.float32) != 0):
        raise TargetError(
            f"torch:cuda: {node.name!r} has a zero point that is not 0; run `fuseq fix` first."
        )
    axis = node.attributes.get_int("axis", 1) if scale.size > 1 else None
    return Held(stored, scale, axis)


def _plain(emit: Emitter, operand: Operand | Held | None) -> Operand | None:
    return float_of(emit, operand) if isinstance(operand, Held) else operand


def _some(operand: Operand | None) -> Operand:
    assert operand is not None
    return operand


def _identifier(value: ir.Value) -> str:
    name = "".join(char if char.isalnum() else "_" for char in value.name or "input")
    return name if name.isidentifier() else f"input_{name}"
