"""What the drawing reads: columns of numbers and one list of words, a view a graph.

Two kinds of view: the ONNX nodes of an engine's model with boxes around those that a kernel fuses, and
the kernels of an engine, which exist without any ONNX file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fuseq.report.document import Document, EngineRow, GraphRow, KernelRow
from fuseq.report.html.charts import tone_of
from fuseq.report.html.graph_boxes import boxes
from fuseq.report.html.graph_layout import Edge, Layout, layered
from fuseq.report.html.overview import title

_KINDS = {"QuantizeLinear": "q", "DequantizeLinear": "dq", "Cast": "cast"}


@dataclasses.dataclass
class _Words:
    """Strings that repeat (modules, source lines), each once."""

    numbers: dict[str, int] = dataclasses.field(default_factory=lambda: {"": 0})

    def number(self, word: str) -> int:
        return self.numbers.setdefault(word, len(self.numbers))


@dataclasses.dataclass(frozen=True)
class _Vertex:
    """One drawn node, of either kind of view."""

    name: str
    label: str
    kind: str
    tone: str
    kernel: int
    module: str
    source: str
    weights_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def graph_data(document: Document) -> dict[str, Any]:
    """Views, engines' kernels and words, for JSON.

    Raises:
        MissingExtraError: The ``report`` extra is not installed.
    """
    words = _Words()
    views = []
    for index, engine in reversed(list(enumerate(document.engines))):
        graph = next((row for row in document.graphs if row.engine == engine.name), None)
        if graph is not None and graph.nodes:
            views.append(_onnx_view(index, engine, graph, words))
        if engine.kernels:
            views.append(_kernel_view(index, engine, words))
    engines = [
        {"title": title(engine), "kernels": [_kernel(k, words) for k in engine.kernels]}
        for engine in document.engines
    ]
    return {"views": views, "engines": engines, "words": list(words.numbers)}


def _onnx_view(index: int, engine: EngineRow, graph: GraphRow, words: _Words) -> dict[str, Any]:
    vertices = [
        _Vertex(
            node.name, node.op_type, _KINDS.get(node.op_type, ""), tone_of(node.precision),
            -1 if node.kernel is None else node.kernel, node.module, node.source,
            node.weights_bytes, node.inputs, node.outputs,
        )
        for node in graph.nodes
    ]  # fmt: skip
    read = [_end(name, "input", (), (name,)) for name in graph.inputs]
    written = [_end(name, "output", (name,), ()) for name in graph.outputs]
    tensors = {
        tensor.name: (
            None if tensor.shape is None else list(tensor.shape), tensor.dtype,
            tensor.tensor_bytes, list(tensor.scale) if tensor.scale else None, tensor.scale_count,
        )
        for tensor in graph.tensors
    }  # fmt: skip
    view = _view([*read, *vertices, *written], tensors, words)
    return {**view, "kind": "onnx", "engine": index, "title": f"ONNX graph, {title(engine)}"}


def _kernel_view(index: int, engine: EngineRow, words: _Words) -> dict[str, Any]:
    vertices = [
        _Vertex(
            kernel.name, kernel.type, "alone" if kernel.alone else "", tone_of(kernel.precision),
            number, kernel.module, kernel.source_lines[0] if kernel.source_lines else "",
            kernel.weights_bytes, tuple(t.name for t in kernel.inputs),
            tuple(t.name for t in kernel.outputs),
        )
        for number, kernel in enumerate(engine.kernels)
    ]  # fmt: skip
    tensors = {
        tensor.name: (list(tensor.shape), tensor.dtype, tensor.stored_bytes, None, 0)
        for kernel in engine.kernels
        for tensor in (*kernel.inputs, *kernel.outputs)
    }
    view = _view(vertices, tensors, words)
    return {**view, "kind": "kernels", "engine": index, "title": f"Kernels, {title(engine)}"}


def _end(name: str, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> _Vertex:
    return _Vertex(name, kind, "end", "p-other", -1, "", "", 0, inputs, outputs)


def _view(
    vertices: Sequence[_Vertex], tensors: dict[str, tuple[Any, ...]], words: _Words
) -> dict[str, Any]:
    used = dict.fromkeys(name for v in vertices for name in (*v.inputs, *v.outputs))
    numbers = {name: number for number, name in enumerate(used)}
    links = _links(vertices)
    layout = layered(len(vertices), list(links))
    kernels = [vertex.kernel for vertex in vertices]

    def column(read: Callable[[_Vertex], str]) -> list[int]:
        return [words.number(read(vertex)) for vertex in vertices]

    return {
        "names": [vertex.name for vertex in vertices],
        "labels": column(lambda vertex: vertex.label),
        "kinds": column(lambda vertex: vertex.kind),
        "tones": column(lambda vertex: vertex.tone),
        "modules": column(lambda vertex: vertex.module),
        "sources": column(lambda vertex: vertex.source),
        "kernels": kernels,
        "weights": [vertex.weights_bytes for vertex in vertices],
        "x": [x for x, _ in layout.points],
        "y": [y for _, y in layout.points],
        "ins": [[numbers[name] for name in vertex.inputs] for vertex in vertices],
        "outs": [[numbers[name] for name in vertex.outputs] for vertex in vertices],
        "tensors": [[name, *tensors.get(name, (None, "", None, None, 0))] for name in used],
        "edges": _edges(links, layout),
        "boxes": [list(dataclasses.astuple(box)) for box in boxes(layout.points, kernels)],
    }


def _links(vertices: Sequence[_Vertex]) -> dict[Edge, None]:
    """Producer and reader of every tensor; a name that is written twice belongs to the last writer."""
    producer: dict[str, int] = {}
    links: dict[Edge, None] = {}
    for number, vertex in enumerate(vertices):
        for name in vertex.inputs:
            if name in producer and producer[name] != number:
                links[producer[name], number] = None
        producer.update(dict.fromkeys(vertex.outputs, number))
    return links


def _edges(links: dict[Edge, None], layout: Layout) -> list[list[int]]:
    return [
        [source, reader, *(c for point in layout.bends.get((source, reader), ()) for c in point)]
        for source, reader in links
    ]


def _kernel(kernel: KernelRow, words: _Words) -> list[Any]:
    return [
        kernel.name, words.number(kernel.type), words.number(kernel.precision),
        words.number(tone_of(kernel.precision)), kernel.measured_us, kernel.predicted_us,
        kernel.activation_bytes, kernel.weights_bytes, int(kernel.alone),
    ]  # fmt: skip
