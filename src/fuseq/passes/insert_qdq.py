"""Write a plan's Q/DQ nodes and low-precision weights into a float graph.

Cases:
1. An activation gets one QuantizeLinear and one DequantizeLinear, shared by all planned readers;
   the other readers keep the float tensor.
2. A weight is stored in its format behind DequantizeLinear alone. Where the initializer has float
   readers too, it is kept for them. Beside asymmetric activations its zero point 0 is written out:
   ONNX Runtime 1.32 makes no QGemm of a Gemm that writes float without it (optimized).
3. A bias becomes INT32 with scale = input scale x weight scale, as integer kernels add it
   (ONNX operator QLinearConv, input ``B``).
4. A planned reader with node "" is the model's own output of that number.
5. HardSwish and HardSigmoid between asymmetric pairs are written in operators that have integer
   kernels (:mod:`fuseq.passes.integer_activations`), and convolutions that the plan leaves in float
   between asymmetric pairs are kept so (:mod:`fuseq.passes.keep_float`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fuseq.calibration.rounding import quantize_array
from fuseq.calibration.scales import Scale
from fuseq.errors import PlanError
from fuseq.formats import format_named
from fuseq.passes.integer_activations import write_hard_activations
from fuseq.passes.keep_float import keep_planned_floats
from fuseq.placement.plan import Plan, QuantizedTensor, Use

_INT32_MAX = 2**31 - 1


def insert_qdq(
    model: ir.Model, plan: Plan, scales: Mapping[str, Scale]
) -> dict[str, tuple[str, ...]]:
    """Apply ``plan`` with ``scales`` (by group) to ``model``, in place.

    Returns:
        The regions that each inserted node serves, by node name.

    Raises:
        PlanError: The plan names a tensor or node that the model lacks, or a group has no scale.
    """
    graph = model.graph
    names = _taken_names(graph)
    nodes = {node.name or "": node for node in graph}
    values = _values_by_name(graph)
    served: dict[str, tuple[str, ...]] = {}
    is_asymmetric = any(not _is_symmetric(entry) for entry in plan.tensors)
    for entries in _by_tensor(plan.tensors):
        entry = entries[0]
        value = values.get(entry.tensor)
        if value is None:
            raise PlanError(f"plan quantizes {entry.tensor!r}, which the model does not have.")
        scale = _scale_for(entry, scales)
        if entry.kind == "activation":
            inserted = _quantize_activation(graph, value, entry, scale, names)
        else:
            zero = _zero_point(entry, scale) if is_asymmetric and entry.kind == "weight" else None
            inserted = [_store_constant(graph, value, entry, scale, zero, names)]
        for use in dict.fromkeys(use for other in entries for use in other.uses):
            _rewire(graph, nodes, use, inserted[-1].outputs[0], entry)
        regions = tuple(dict.fromkeys(other.region for other in entries))
        served.update((node.name or "", regions) for node in inserted)
        if value.is_initializer() and not value.uses() and not value.is_graph_output():
            del graph.initializers[value.name or ""]
    if is_asymmetric:
        write_hard_activations(model)
        keep_planned_floats(model)
    return served


def _by_tensor(tensors: Sequence[QuantizedTensor]) -> list[list[QuantizedTensor]]:
    """Entries that one Q/DQ pair or one stored constant serves: same tensor, format, axis, group."""
    found: dict[tuple[str, str, int | None, str], list[QuantizedTensor]] = {}
    for entry in tensors:
        key = (entry.tensor, entry.format, entry.axis, entry.group)
        found.setdefault(key, []).append(entry)
    return list(found.values())


def _scale_for(entry: QuantizedTensor, scales: Mapping[str, Scale]) -> Scale:
    scale = scales.get(entry.group)
    if scale is None:
        raise PlanError(
            f"no scale for group {entry.group!r} ({entry.tensor!r}); calibrate the plan's tensors."
        )
    return scale


def _is_symmetric(entry: QuantizedTensor) -> bool:
    return entry.kind != "activation" or format_named(entry.format).symmetric


def _quantize_activation(
    graph: ir.Graph, value: ir.Value, entry: QuantizedTensor, scale: Scale, names: set[str]
) -> list[ir.Node]:
    base = value.name or "input"
    scale_value = _constant(graph, scale.scale, _fresh(f"{base}_scale", names))
    zero_value = _constant(graph, _zero_point(entry, scale), _fresh(f"{base}_zero_point", names))
    attributes = [] if entry.axis is None else [ir.AttrInt64("axis", entry.axis)]
    quantize = ir.Node(
        "", "QuantizeLinear", [value, scale_value, zero_value], attributes,
        name=_fresh(f"{base}_quantize", names),
    )  # fmt: skip
    dequantize = ir.Node(
        "", "DequantizeLinear", [quantize.outputs[0], scale_value, zero_value], attributes,
        name=_fresh(f"{base}_dequantize", names),
    )  # fmt: skip
    fmt = format_named(entry.format)
    _describe(quantize.outputs[0], _fresh(f"{base}_quantized", names), fmt.dtype, value)
    _describe(dequantize.outputs[0], _fresh(f"{base}_dequantized", names), value.dtype, value)
    producer = value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, [quantize, dequantize])
    else:
        graph.insert_before(graph[0], [quantize, dequantize])
    return [quantize, dequantize]


def _store_constant(
    graph: ir.Graph,
    value: ir.Value,
    entry: QuantizedTensor,
    scale: Scale,
    zero_point: np.ndarray | None,
    names: set[str],
) -> ir.Node:
    tensor = value.const_value
    if tensor is None:
        raise PlanError(f"plan stores {entry.tensor!r} as {entry.format}, but it is no constant.")
    base = value.name or "constant"
    if entry.kind == "bias":
        stored = _int32_bias(tensor.numpy(), scale.scale)
        stored_type = ir.DataType.INT32
    else:
        fmt = format_named(entry.format)
        stored = quantize_array(tensor.numpy(), scale.scale, scale.zero_point, fmt, axis=entry.axis)
        stored_type = fmt.dtype
    quantized = _constant(graph, stored, _fresh(f"{base}_quantized", names), stored_type)
    inputs: list[ir.Value] = [
        quantized,
        _constant(graph, scale.scale, _fresh(f"{base}_scale", names)),
    ]
    if zero_point is not None:
        inputs.append(_constant(graph, zero_point, _fresh(f"{base}_zero_point", names)))
    attributes = [] if entry.axis is None else [ir.AttrInt64("axis", entry.axis)]
    dequantize = ir.Node(
        "", "DequantizeLinear", inputs, attributes, name=_fresh(f"{base}_dequantize", names)
    )
    _describe(dequantize.outputs[0], _fresh(f"{base}_dequantized", names), value.dtype, value)
    graph.insert_before(graph[0], dequantize)
    return dequantize


def _int32_bias(bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    rounded = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    return np.clip(rounded, -_INT32_MAX, _INT32_MAX).astype(np.int32)


def _zero_point(entry: QuantizedTensor, scale: Scale) -> np.ndarray:
    dtype = format_named(entry.format).dtype.numpy()
    if scale.zero_point is None:
        return np.zeros(scale.scale.shape, dtype=dtype)
    return np.asarray(scale.zero_point).astype(dtype)


def _constant(
    graph: ir.Graph, array: np.ndarray, name: str, dtype: ir.DataType | None = None
) -> ir.Value:
    tensor = ir.Tensor(array, dtype=dtype, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )  # fmt: skip
    graph.register_initializer(value)
    return value


def _rewire(
    graph: ir.Graph,
    nodes: Mapping[str, ir.Node],
    use: Use,
    dequantized: ir.Value,
    entry: QuantizedTensor,
) -> None:
    if not use.node:
        _replace_output(graph, use.index, dequantized)
        return
    node = nodes.get(use.node)
    if node is None or use.index >= len(node.inputs):
        raise PlanError(
            f"plan says that {entry.tensor!r} is input {use.index} of {use.node!r}, which the "
            "model does not have; plan this model again."
        )
    node.replace_input_with(use.index, dequantized)


def _replace_output(graph: ir.Graph, index: int, dequantized: ir.Value) -> None:
    """The output keeps its public name; the float tensor behind it gets another."""
    old = graph.outputs[index]
    old.name, dequantized.name = f"{old.name}_float", old.name
    graph.outputs[index] = dequantized


def _describe(value: ir.Value, name: str, dtype: ir.DataType | None, like: ir.Value) -> None:
    value.name = name
    value.shape = like.shape
    if dtype is not None:
        value.type = ir.TensorType(dtype)


def _values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    found = {value.name or "": value for value in graph.inputs}
    found.update(graph.initializers)
    for node in graph:
        found.update((value.name or "", value) for value in node.outputs)
    return found


def _taken_names(graph: ir.Graph) -> set[str]:
    names = set(_values_by_name(graph))
    names.update(node.name or "" for node in graph.all_nodes())
    for node in graph.all_nodes():
        names.update(value.name or "" for value in node.outputs)
    return names


def _fresh(wanted: str, names: set[str]) -> str:
    name, number = wanted, 1
    while name in names:
        name, number = f"{wanted}_{number}", number + 1
    names.add(name)
    return name
