"""Turns the optimized graph and its profile into kernels, one a node, in the order of execution."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.source_lines import source_line
from fuseq.targets.base import Kernel, TensorInfo
from fuseq.targets.onnxruntime.operators import VIEWS, compute_dtype, flops, kernel_type
from fuseq.targets.onnxruntime.provenance import Marked, origins
from fuseq.targets.onnxruntime.session import NodeRun, Profile

_WORDS: dict[str, tuple[str, float]] = {
    "float": ("fp32", 4), "float16": ("fp16", 2), "bfloat16": ("bf16", 2), "double": ("fp64", 8),
    "float8e4m3fn": ("fp8", 1), "int8": ("int8", 1), "uint8": ("uint8", 1), "int4": ("int4", 0.5),
    "uint4": ("uint4", 0.5), "int16": ("int16", 2), "uint16": ("uint16", 2), "int32": ("int32", 4),
    "uint32": ("uint32", 4), "int64": ("int64", 8), "uint64": ("uint64", 8), "bool": ("bool", 1),
}  # fmt: skip
"""The profiler's type words: ours, and bytes of one value."""


TypedShape = tuple[str, tuple[int, ...]]


def kernels_of(profile: Profile, marked: Marked) -> tuple[Kernel, ...]:
    """One kernel for every node of the optimized graph that ran.

    A branch of If that was not taken ran no node; the If itself is one kernel, with its body.
    """
    graph = profile.graph.graph
    came_from = origins(marked, graph)
    known = _inputs_and_weights(graph)
    kernels = []
    for node in graph:
        run = profile.runs.get(node.name or "")
        if run is None:
            continue
        written = [value for value in node.outputs if value.name]
        known.update(zip(written, run.outputs, strict=False))
        kernels.append(_kernel(node, run, known, marked, came_from[node.name or ""]))
    return tuple(kernels)


def _inputs_and_weights(graph: ir.Graph) -> dict[ir.Value, TypedShape]:
    """Type and shape of graph inputs and initializers, which no node writes.

    The profiler's own list of a node's inputs leaves out weights that were repacked at load time.
    """
    known = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.dtype is not None and value.shape is not None:
            shape = tuple(dim if isinstance(dim, int) else 0 for dim in value.shape)
            known[value] = (value.dtype.name.lower(), shape)
    return known


def _kernel(
    node: ir.Node,
    run: NodeRun,
    known: Mapping[ir.Value, TypedShape],
    marked: Marked,
    numbers: tuple[int, ...],
) -> Kernel:
    read = [value for value in dict.fromkeys(node.inputs) if value is not None and value in known]
    activations = [value for value in read if not value.is_initializer()]
    weights = [value for value in read if value.is_initializer()]
    written = [value for value in node.outputs if value in known]
    in_place = [
        known[value][1] if value is not None and value in known else None for value in node.inputs
    ]
    moves = node.op_type not in VIEWS
    inputs = tuple(_info(value, known[value], marked, moves) for value in activations)
    sources = [marked.nodes[number] for number in numbers]
    return Kernel(
        name=marked.node_name(node.name or ""),
        type=kernel_type(node.op_type),
        compiler_type=node.op_type,
        inputs=inputs,
        outputs=tuple(_info(value, known[value], marked, moves) for value in written),
        weights_bytes=sum(_nbytes(*known[value]) for value in weights),
        flops=flops(node, in_place, [known[value][1] for value in written]),
        compute_dtype=compute_dtype(node.op_type, [info.dtype for info in inputs]),
        nodes=tuple(_label(source) for source in sources),
        source_lines=tuple(dict.fromkeys(filter(None, map(source_line, sources)))),
        measured_us=run.us,
    )


def _info(value: ir.Value, typed: TypedShape, marked: Marked, moves: bool) -> TensorInfo:
    word, shape = typed
    dtype = _WORDS.get(word, (word, 0))[0]
    name = marked.tensor_name(value.name or "")
    return TensorInfo(name, shape, dtype, _nbytes(word, shape) if moves else 0)


def _nbytes(word: str, shape: tuple[int, ...]) -> int:
    return math.ceil(math.prod(shape) * _WORDS.get(word, (word, 0))[1])


def _label(node: ir.Node) -> str:
    return node.name or node.outputs[0].name or node.op_type
