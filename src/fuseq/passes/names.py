"""Every node and value has a unique, printable name that does not change from run to run."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common


def fix_names(model: ir.Model) -> list[str]:
    """Name what has no name after its operator, and make every name unique and printable.

    1. Inputs and outputs of the graph keep their names whatever happens.
    2. An unnamed node is ``node_<Op>_<n>``, an unnamed value ``<node>_out<k>``.
    3. A name seen before, and only the later one, gets the first free ``_<n>``: fresh names are
       checked against all names of the graph, not only against those given here.
    4. Characters that cannot be printed become ``_`` (compilers quote names in their logs).
    """
    taken = {value.name for value in _values(model.graph) if value.name}
    for graph in model.graphs():
        for node in graph:
            node.name = _printable(node.name)
        boundary = {*graph.inputs, *graph.outputs}
        for value in _values(graph):
            clean = _printable(value.name)
            if value not in boundary and value.name and clean != value.name:
                value.name = fresh(clean or "value", taken)
    _name_the_nameless(model, taken)
    common.NameFixPass()(model)
    return []


def fresh(wanted: str, taken: set[str]) -> str:
    """Return ``wanted``, or the first free ``wanted_<n>``, and add it to ``taken``."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def value_names(model: ir.Model) -> set[str]:
    """Return the names of all values of all graphs, for :func:`fresh`."""
    return {value.name for graph in model.graphs() for value in _values(graph) if value.name}


def _name_the_nameless(model: ir.Model, taken: set[str]) -> None:
    nodes = {node.name for graph in model.graphs() for node in graph if node.name}
    for graph in model.graphs():
        for node in graph:
            if not node.name:
                node.name = fresh(f"node_{node.op_type}", nodes)
            for index, value in enumerate(node.outputs):
                if not value.name:
                    value.name = fresh(f"{node.name}_out{index}", taken)


def _values(graph: ir.Graph) -> list[ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *made]


def _printable(name: str | None) -> str:
    return "".join(letter if letter.isprintable() else "_" for letter in name or "")
