"""``fuseq check --fix``: mend what rules found, one finding at a time, and check again.

In the manner of ruff: fixes that are safe are made, others when they are asked for, and the rest is
listed. Two guards stand behind every round, because a rule judges one place and an engine is one whole:
a target that built still builds, and no placement fix makes a predicted engine slower.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.checks.all_rules import RULES, rule_named
from fuseq.checks.finding import Finding
from fuseq.checks.mends import WHOLE_FILE
from fuseq.checks.opening import MAX_INFERRED_NODES, open_model
from fuseq.checks.rule import Rule
from fuseq.checks.running import CheckOptions, CheckResult, FloatEngines, check_opened
from fuseq.library_logs import quiet_libraries
from fuseq.passes.names import fix_names
from fuseq.passes.shapes import infer_shapes
from fuseq.passes.well_formed import check_size

MAX_ROUNDS = 40
"""More than there are rules; each round mends the findings of one kind."""

_SLOWER = 1.001
_PLACEMENT = "FQ1"


@dataclasses.dataclass(frozen=True)
class Mended:
    """One finding that was mended.

    Attributes:
        finding: As it was found.
        done: What was done, in words.
    """

    finding: Finding
    done: str


@dataclasses.dataclass(frozen=True)
class MendResult:
    """What mending gave.

    Attributes:
        model: The mended model; the opened one where nothing was mended.
        before: The check of the file.
        after: The check of ``model``.
        mended: What was mended, in order.
        notes: Fixes that were tried and taken back, and why.
        diff: Lines of nodes and constants that differ, ``-`` the file's and ``+`` the new ones.
    """

    model: ir.Model
    before: CheckResult
    after: CheckResult
    mended: tuple[Mended, ...]
    notes: tuple[str, ...]
    diff: tuple[str, ...]


def mend_model(path: str | Path, options: CheckOptions, *, unsafe: bool = False) -> MendResult:
    """Check a file and mend what single fixes can.

    1. Legality, types and scales (FQ2xx to FQ4xx) first, all together: a file that builds can be judged.
    2. Then placement (FQ1xx), one rule a round, and only what every target of the check complains about.
    3. After each round the model is checked again, and the round taken back where a target does not
       build any more, or (placement) is predicted slower.

    Args:
        path: ONNX file, read only.
        options: As for :func:`fuseq.checks.running.check_model`.
        unsafe: Make fixes too that change values or need a look at the accuracy.

    Raises:
        ModelError: The file cannot be used.
        OptionError: A target, GPU or shape is not allowed.
    """
    with quiet_libraries():
        model = open_model(path)
        check_size(model, Path(path).name)
        floats: FloatEngines = {}
        before = check_opened(model, path, options, floats)
        rounds = _Rounds(model, before, path, options, unsafe, floats)
        while rounds.once():
            pass
    lines = _lines(open_model(path)), _lines(rounds.model)
    diff = (
        difflib.unified_diff(*lines, "before", "after", lineterm="", n=0) if rounds.mended else ()
    )
    return MendResult(
        rounds.model, before, rounds.state, tuple(rounds.mended), tuple(rounds.notes), tuple(diff)
    )


@dataclasses.dataclass
class _Rounds:
    """The model and its check so far."""

    model: ir.Model
    state: CheckResult
    path: str | Path
    options: CheckOptions
    unsafe: bool
    floats: FloatEngines
    mended: list[Mended] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    tried: set[tuple[str, str, str]] = dataclasses.field(default_factory=set)
    count: int = 0

    def once(self) -> bool:
        """Mend the next kind of findings; False when nothing is left to try."""
        self.count += 1
        wanted = self._wanted()
        if not wanted or self.count > MAX_ROUNDS:
            return False
        self.tried.update(_key(finding) for _, finding in wanted)
        attempt = self.model.clone()
        done = _mended(attempt, wanted)
        if not done:
            return True
        _tidy(attempt)
        state = check_opened(attempt, self.path, self.options, self.floats)
        why = _worse(self.state, state, done[0].finding.code.startswith(_PLACEMENT))
        if why:
            codes = ", ".join(dict.fromkeys(each.finding.code for each in done))
            self.notes.append(f"{codes}: {len(done)} fixes were tried and taken back: {why}")
            return True
        self.model, self.state = attempt, state
        self.mended += done
        return True

    def _wanted(self) -> list[tuple[Rule, Finding]]:
        """Findings of the next round, each once whatever the number of targets."""
        found: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in self.state.findings:
            if _key(finding) not in self.tried and is_mendable(finding.code, self.unsafe):
                found.setdefault(_key(finding), []).append(finding)
        codes = {code for code, _, _ in found}
        legal = {code for code in codes if not code.startswith(_PLACEMENT)}
        chosen = legal or set(sorted(codes)[:1])
        targets = {row.target for row in self.state.targets}
        return [
            (rule_named(code), several[0])
            for (code, *_), several in found.items()
            if code in chosen and (code in legal or {f.target for f in several} >= targets)
        ] or self._skipped(found, chosen)

    def _skipped(
        self, found: dict[tuple[str, str, str], list[Finding]], chosen: set[str]
    ) -> list[tuple[Rule, Finding]]:
        """Placement that only some targets complain about is left, with a note; then the next rule."""
        left = {key: several for key, several in found.items() if key[0] in chosen}
        if not left:
            return []
        self.tried.update(left)
        names = ", ".join(dict.fromkeys(f.target for several in left.values() for f in several))
        code = next(iter(chosen))
        self.notes.append(f"{code}: {len(left)} findings stay, because they are of {names} alone")
        return self._wanted()


def _mended(model: ir.Model, wanted: Sequence[tuple[Rule, Finding]]) -> list[Mended]:
    """Mend in place; a mend of the whole file runs once and serves every finding of its rule."""
    done: list[Mended] = []
    said_once: dict[str, str] = {}
    for rule, finding in wanted:
        if rule.mend is None:
            continue
        said = said_once.get(rule.code)
        if said is None:
            said = rule.mend(model, finding)
            if rule.mend in WHOLE_FILE:
                said_once[rule.code] = said
        if said:
            done.append(Mended(finding, said))
    return done


def is_mendable(code: str, unsafe: bool) -> bool:
    """Whether ``check --fix`` mends findings of the rule."""
    rule = next(rule for rule in RULES if rule.code == code)
    return rule.mend is not None and (rule.fixable.kind == "safe" or unsafe)


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.node, finding.tensor


def _tidy(model: ir.Model) -> None:
    """Unread nodes go, names are unique, types and shapes known: what every pass leaves."""
    common.RemoveUnusedNodesPass()(model)
    fix_names(model)
    if len(model.graph) <= MAX_INFERRED_NODES:
        infer_shapes(model)


def _worse(before: CheckResult, after: CheckResult, is_placement: bool) -> str:
    """Why a round is taken back; "" when it stays."""
    for old, new in zip(before.targets, after.targets, strict=True):
        if old.builds and new.builds is False:
            return f"{new.target} does not build it then ({new.words})"
        if not is_placement or old.engine is None or new.engine is None:
            continue
        times = old.engine.predicted_us, new.engine.predicted_us
        if times[1] > times[0] * _SLOWER:
            return f"{new.target} is predicted slower ({times[0]:.1f} to {times[1]:.1f} us)"
    return ""


def _lines(model: ir.Model) -> Sequence[str]:
    """One line a constant and a node, as ONNX text has them."""
    lines = [f"opset {model.opset_imports.get('', 0)}"]
    lines += [f"{name}: {_type(value)}" for name, value in sorted(model.graph.initializers.items())]
    for node in model.graph:
        attributes = "".join(
            f" {key}={attribute.value}"
            for key, attribute in sorted(node.attributes.items())
            if key in ("axis", "to", "block_size")
        )
        inputs = ", ".join("" if v is None else v.name or "" for v in node.inputs)
        outputs = ", ".join(f"{value.name}: {_type(value)}" for value in node.outputs)
        lines.append(f"{outputs} = {node.op_type}{attributes}({inputs})  # {node.name}")
    return lines


def _type(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "unknown"
    tensor = value.const_value
    if tensor is not None and tensor.size == 1 and tensor.dtype.is_floating_point():
        return f"{dtype} {float(tensor.numpy().reshape(-1)[0]):.6g}"
    sizes = "?" if value.shape is None else ", ".join(str(dim) for dim in value.shape)
    return f"{dtype}[{sizes}]"
