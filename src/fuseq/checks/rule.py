"""What a rule is: frozen data and one function that reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import UNKNOWN_COST, Cost, Finding, Severity
from fuseq.source_lines import source_line

Mend = Callable[[ir.Model, Finding], str]
"""Mends one finding in the checked graph, in place; returns what was done, "" where nothing could be."""


@dataclasses.dataclass(frozen=True)
class Fixable:
    """Whether ``fuseq fix`` mends it.

    Attributes:
        kind: ``safe``: outputs stay within quantization noise; ``unsafe``: values or placement
            change, look at the accuracy; ``none``: only the user can.
        reason: Why, one sentence.
    """

    kind: Literal["safe", "unsafe", "none"]
    reason: str


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: FQ1xx placement, FQ2xx legality and types, FQ3xx scales, FQ4xx coverage, FQ5xx engine.
        name: Names the fault; the page is ``docs/rules/<code>-<name>.md``.
        severity: Of its findings, unless one says otherwise.
        summary: The fault in one sentence, for lists.
        fixable: Whether it can be mended.
        check: Reads the context and yields findings; changes nothing.
        reads: ``model`` rules need the graph, ``engine`` rules an engine; a rule runs when what it
            reads is there.
        mend: What ``fuseq check --fix`` does to one finding; None where only planning anew with
            ``fuseq fix``, or the user, can mend it.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    fixable: Fixable
    check: Callable[[Context], Iterable[Finding]]
    reads: Literal["model", "engine"] = "model"
    mend: Mend | None = None

    @property
    def page(self) -> str:
        """File name of its page in docs/rules/."""
        return f"{self.code}-{self.name}.md"

    def finding(
        self,
        context: Context,
        node: ir.Node | str,
        message: str,
        fix: str,
        *,
        tensor: ir.Value | str | None = None,
        cost: Cost = UNKNOWN_COST,
        confirmed: bool = False,
        severity: Severity | None = None,
    ) -> Finding:
        """Make a finding of this rule.

        An error that the compiler's refusal names is confirmed. What only its legality rules (FQ2xx)
        forbid is a warning when this compiler has built the file: the engine is right.
        """
        name = node if isinstance(node, str) else node.name or ""
        severity = severity or self.severity
        if severity == "error" and self.code.startswith("FQ2") and context.has_built:
            severity, message = "warning", f"{message}; {context.target_name} built it nevertheless"
        found = context.node_named(name) if isinstance(node, str) else node
        return Finding(
            code=self.code,
            severity=severity,
            node=name,
            tensor=(tensor if isinstance(tensor, str) else tensor.name or "") if tensor else "",
            source=_source(found) if found is not None else "",
            message=message,
            fix=fix,
            cost=cost,
            confirmed=confirmed or (severity == "error" and context.refused_at(name)),
            target=context.target_name,
        )


def _source(node: ir.Node) -> str:
    """The node's own line; tools that insert Q/DQ write none, so else that of what it reads or serves."""
    own = source_line(node)
    if own is not None:
        return own
    beside = [value.producer() for value in node.inputs[:1] if value is not None]
    beside += [use.node for out in node.outputs for use in out.uses()]
    lines = [source_line(other) for other in beside if other is not None]
    return next((line for line in lines if line), "")
