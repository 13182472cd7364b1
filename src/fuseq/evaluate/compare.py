"""Compare two models tensor by tensor on the same data: how close, and where the error begins."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.image_presets import image_preset
from fuseq.calibration.sources import open_source
from fuseq.errors import CalibrationError, ModelError
from fuseq.evaluate.compare_engine import ENGINE_SUFFIXES, engine_side
from fuseq.evaluate.compare_jump import first_jump, with_jumps
from fuseq.evaluate.compare_matching import Match, match_values
from fuseq.evaluate.compare_metric import Metric, metric_row
from fuseq.evaluate.compare_module import is_module, module_side
from fuseq.evaluate.compare_onnx import onnx_side
from fuseq.evaluate.compare_outputs import Kind, OutputSums
from fuseq.evaluate.compare_recorded import RECORDED_SUFFIXES, recorded_side
from fuseq.evaluate.compare_side import Side, Value
from fuseq.evaluate.compare_streaming import grouped, stream
from fuseq.evaluate.compare_sums import TensorSums
from fuseq.model import input_specs, load
from fuseq.planning import Report, silent
from fuseq.report.document_closeness import ComparisonRow, TensorErrorRow


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """What a user decides about a comparison.

    Attributes:
        samples: Use at most this many samples.
        preset: How images become inputs.
        shapes: Static shape by input name, for random data.
        seed: Of random data.
        intermediates: Compare the tensors inside too.
        outputs_are: What outputs [N, D] hold: ``classes``, ``embedding`` or ``values``; None decides
            by the name and by the length of the rows.
        metric: ``module:function``, or the function (:mod:`fuseq.evaluate.compare_metric`).
        names: What the two are called in the result; None: their files' names.
    """

    samples: int = 64
    preset: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    seed: int = 0
    intermediates: bool = True
    outputs_are: Kind | None = None
    metric: str | Metric | None = None
    names: tuple[str, str] | None = None


def compare(
    reference: Any,
    other: ir.Model | str | os.PathLike[str],
    *,
    data: object,
    options: CompareOptions | None = None,
    report: Report = silent,
) -> ComparisonRow:
    """Compare ``other`` with ``reference`` on ``data``.

    Args:
        reference: ONNX file or model, usually the float one; or the ``torch.nn.Module`` that ``other``
            was exported from.
        other: ONNX file or model; an engine, where its GPU is here; or recorded outputs (``.json`` of
            ``trtexec --exportOutput``, ``.npz``, ``.safetensors``).
        data: As for calibration: folder, array file, ``module:function``, ``random`` or an iterable.
        options: The rest.
        report: Called with (stage, done, total).

    Raises:
        FuseqError: A model, the data or the metric cannot be used, or the two have no output in common.
    """
    options = options or CompareOptions()
    pair = _open(reference, other, options)
    source = _source(data, pair, options)
    sides = (pair.here, pair.there)
    outputs = [OutputSums(name, twin, options.outputs_are) for name, twin in _output_pairs(*sides)]
    groups = grouped(pair.matches, *sides, _first_batch(source)) if options.intermediates else []
    sums = stream(
        sides, groups, outputs, source, lambda done, total: report("compare", done, total)
    )
    rows = with_jumps(_rows(pair.matches, sums, pair.here.values), pair.here.values)
    metrics = () if options.metric is None else (metric_row(options.metric, sides, source),)
    name, reason = first_jump(rows)
    runners = dict.fromkeys(side.runner for side in sides)
    return ComparisonRow(
        reference=pair.here.label,
        other=pair.there.label,
        data=source.description,
        samples=max((entry.samples for entry in outputs), default=0),
        runner="; ".join(runners),
        outputs=tuple(entry.row() for entry in outputs),
        tensors=rows,
        first_jump=name,
        jump_reason=reason,
        metrics=metrics,
        notes=tuple(source.notes),
    )


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Both sides, what stands for what, and the model whose inputs the data must fit."""

    here: Side
    there: Side
    matches: Sequence[Match]
    model: ir.Model


def _open(reference: Any, other: Any, options: CompareOptions) -> _Pair:
    label, other_label = options.names or (_label(reference), _label(other))
    second, there = _other(other, other_label)
    if is_module(reference):
        if second is None:
            raise ModelError("a module is compared with the ONNX file that was exported from it.")
        here, twins = module_side(reference, there, second, label)
        return _Pair(here, there, twins, second)
    first = load(reference) if not isinstance(reference, ir.Model) else reference
    here = onnx_side(first, label)
    inputs = _inputs(here, there)
    matches = _matches(first, second, here, there, inputs)
    return _Pair(here, there, matches, _with_both_shapes(first, second, inputs))


def _other(given: ir.Model | str | os.PathLike[str], label: str) -> tuple[ir.Model | None, Side]:
    if isinstance(given, ir.Model):
        return given, onnx_side(given, label)
    suffix = Path(given).suffix.lower()
    if suffix in RECORDED_SUFFIXES:
        return None, recorded_side(given)
    if suffix in ENGINE_SUFFIXES:
        return None, engine_side(given, label)
    model = load(given)
    return model, onnx_side(model, label)


def _inputs(here: Side, there: Side) -> dict[str, str]:
    """Name of the other's input by the reference's: equal names, else by place."""
    if not there.inputs or set(here.inputs) == set(there.inputs):
        return {name: name for name in here.inputs}
    if len(here.inputs) == len(there.inputs):
        return dict(zip(here.inputs, there.inputs, strict=True))
    raise ModelError(
        f"{there.label} has the inputs {list(there.inputs)}, {here.label} has {list(here.inputs)}; "
        "compare models that take the same inputs."
    )


def _source(data: object, pair: _Pair, options: CompareOptions) -> Source:
    """The data, cut so that both models take its batches."""
    return open_source(
        data,
        pair.model,
        preset=image_preset(options.preset) if options.preset else None,
        limit=options.samples,
        shapes=options.shapes,
        seed=options.seed,
    )


def _with_both_shapes(
    first: ir.Model, second: ir.Model | None, inputs: Mapping[str, str]
) -> ir.Model:
    """The reference with the sizes that only the other fixes, its batch for example."""
    if second is None:
        return first
    fixed = {spec.name: spec.shape for spec in input_specs(second)}
    merged = first.clone()
    for value in merged.graph.inputs:
        shape = fixed.get(inputs.get(value.name or "", ""))
        if shape is None or value.shape is None or len(shape) != len(value.shape):
            continue
        sizes = zip(value.shape, shape, strict=True)
        value.shape = ir.Shape([b if isinstance(b, int) and not isinstance(a, int) else a
                                for a, b in sizes])  # fmt: skip
    return merged


def _first_batch(source: Source) -> Any:
    batch = next(iter(source), None)
    if batch is None:
        raise CalibrationError(f"{source.description} gave no batch; give one sample or more.")
    return batch


def _matches(
    first: ir.Model, second: ir.Model | None, here: Side, there: Side, inputs: Mapping[str, str]
) -> list[Match]:
    """Common float values in the reference's order."""
    floats = {value.name for value in here.values if value.is_float}
    others = {value.name for value in there.values if value.is_float}
    if second is None:
        found: Sequence[Match] = [Match(v.name, v.name, "name") for v in here.values]
    else:
        found = match_values(first, second, inputs)
    return [match for match in found if match.name in floats and match.other in others]


def _output_pairs(here: Side, there: Side) -> list[tuple[str, str]]:
    """Outputs of the same name, else by place.

    Raises:
        ModelError: There is none.
    """
    pairs = [(name, name) for name in here.outputs if name in there.outputs]
    if not pairs and len(here.outputs) == len(there.outputs):
        pairs = list(zip(here.outputs, there.outputs, strict=True))
    if not pairs:
        raise ModelError(
            f"{there.label} has the outputs {list(there.outputs)[:8]}, {here.label} has "
            f"{list(here.outputs)[:8]}; compare models with the same outputs."
        )
    return pairs


def _rows(
    matches: Sequence[Match], sums: Mapping[str, TensorSums], values: Sequence[Value]
) -> list[TensorErrorRow]:
    known = {value.name: value for value in values}
    return [
        _row(match, sums[match.name], known[match.name]) for match in matches if match.name in sums
    ]


def _row(match: Match, sums: TensorSums, value: Value) -> TensorErrorRow:
    return TensorErrorRow(
        name=match.name,
        other=match.other,
        matched=match.how,
        op_type=value.op_type,
        node=value.node,
        module=value.module,
        source=value.source,
        shape=sums.shape,
        identical=sums.identical,
        sqnr_db=sums.sqnr_db,
        cosine=sums.cosine,
        max_abs=sums.max_abs,
        max_rel=sums.max_rel,
        relative=sums.relative,
        added=None,
        jump=False,
        not_finite=sums.not_finite,
    )


def _label(given: Any) -> str:
    if isinstance(given, ir.Model):
        return given.graph.name or "model"
    return type(given).__name__ if is_module(given) else Path(given).name
