"""The user's choices about placement: policy, globs, first and last layers."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from fuseq.placement.patterns import Weighted
from fuseq.placement.plan import Policy
from fuseq.source_lines import module_paths


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """What the user decides.

    Attributes:
        policy: ``pays`` or ``full``.
        exclude: Globs of node, weight or module names that stay float.
        include: If given, only regions that match one of these globs are quantized.
        keep_first: Leave the first weighted node of each path from an input in float.
        keep_last: Leave the last weighted node before each output in float.
        float_because: Regions that stay float for another reason, by name.
    """

    policy: Policy = "pays"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    keep_first: bool = False
    keep_last: bool = False
    float_because: Mapping[str, str] = dataclasses.field(default_factory=dict)


def blocked_by_user(
    graph: ir.Graph, matches: Sequence[Weighted], options: PlanOptions
) -> dict[str, str]:
    """Reason by node name, for the weighted nodes that the user or calibration keeps in float."""
    blocked = dict(options.float_because)
    for match in matches:
        refusal = user_refusal(names_of(match), options)
        if refusal:
            blocked[match.node.name or ""] = refusal
    if options.keep_first:
        for name in _first(graph, matches):
            blocked.setdefault(name, "the first layer is kept by option")
    if options.keep_last:
        for name in _last(graph, matches):
            blocked.setdefault(name, "the last layer is kept by option")
    return blocked


def user_refusal(names: Iterable[str], options: PlanOptions) -> str:
    """Why the user keeps something with these names in float; "" if not."""
    names = tuple(names)
    for glob in options.exclude:
        if any(fnmatch.fnmatchcase(name, glob) for name in names):
            return f"excluded by --exclude {glob}"
    if options.include and not any(
        fnmatch.fnmatchcase(name, glob) for name in names for glob in options.include
    ):
        return "not named by --include"
    return ""


def names_of(match: Weighted) -> tuple[str, ...]:
    """What a glob may name: the node, its weight, its module path, its operator."""
    modules = module_paths(match.node)
    return (match.node.name or "", match.weight.name or "", *modules, match.node.op_type)


def unmatched_globs(matches: Sequence[Weighted], options: PlanOptions) -> list[str]:
    """A sentence for each glob that names no weighted node: a typing error should be seen."""
    names = [name for match in matches for name in names_of(match)]
    return [
        f"{option} {glob} matched no layer with weights."
        for option, globs in (("--exclude", options.exclude), ("--include", options.include))
        for glob in globs
        if not any(fnmatch.fnmatchcase(name, glob) for name in names)
    ]


def _first(graph: ir.Graph, matches: Sequence[Weighted]) -> list[str]:
    """Weighted nodes that no other weighted node feeds."""
    weights = {match.node for match in matches}
    fed: set[ir.Value] = set()
    first = []
    for node in graph:
        is_fed = any(value in fed for value in node.inputs if value is not None)
        if node in weights and not is_fed:
            first.append(node.name or "")
        if is_fed or node in weights:
            fed.update(node.outputs)
    return first


def _last(graph: ir.Graph, matches: Sequence[Weighted]) -> list[str]:
    """Weighted nodes that feed no other weighted node."""
    weights = {match.node for match in matches}
    feeding: set[ir.Value] = set()
    last = []
    for node in reversed(list(graph)):
        feeds = any(value in feeding for value in node.outputs)
        if node in weights and not feeds:
            last.append(node.name or "")
        if feeds or node in weights:
            feeding.update(value for value in node.inputs if value is not None)
    return last
