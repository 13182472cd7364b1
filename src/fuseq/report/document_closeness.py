"""Rows of a document that say how close two models are; its rules are those of :mod:`fuseq.report.document`."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class OutputRow:
    """How close one output of the other model is to the reference's.

    Attributes:
        name: Output of the reference.
        other: Output of the other model.
        kind: ``classes`` ([N, C] scores), ``embedding``, ``values``: what the agreements mean.
        shape: Of one batch, axis 0 included.
        samples: Rows that were compared.
        identical: Every value is equal.
        sqnr_db: None when identical or undefined.
        cosine_mean: Mean over rows.
        cosine_min: Least row.
        max_abs: Largest absolute difference.
        max_rel: ``max_abs`` over the largest magnitude of the reference.
        relative: ``|a - b| / |a|`` of all values together (L2).
        top1, top5, nearest: Agreements; None where ``kind`` gives them no meaning.
        not_finite: Values that are NaN or infinite in the other model only.
    """

    name: str
    other: str
    kind: Literal["classes", "embedding", "values"]
    shape: tuple[int, ...]
    samples: int
    identical: bool
    sqnr_db: float | None
    cosine_mean: float | None
    cosine_min: float | None
    max_abs: float | None
    max_rel: float | None
    relative: float | None
    top1: float | None
    top5: float | None
    nearest: float | None
    not_finite: int


@dataclasses.dataclass(frozen=True)
class TensorErrorRow:
    """Error of one intermediate tensor that both models have, in the reference's graph order.

    Attributes:
        name: Value of the reference.
        other: Value of the other model (the same name, or one found by provenance).
        matched: ``name``, or ``provenance``.
        op_type: Operator that makes it in the reference, "" for an input.
        node: That node's name.
        module: Module of the user's model, "" if unknown.
        source: Source line, "" if unknown.
        shape: Of one batch.
        identical: Every value is equal.
        sqnr_db: None when identical or undefined.
        cosine: Of all values together; None when undefined.
        max_abs: Largest absolute difference.
        max_rel: ``max_abs`` over the largest magnitude of the reference.
        relative: ``|a - b| / |a|`` (L2); None when undefined.
        added: Growth of ``relative`` against the worst tensor that it is computed from; None for the
            first ones.
        jump: The error jumps here.
        not_finite: Values that are NaN or infinite in the other model only.
    """

    name: str
    other: str
    matched: Literal["name", "provenance"]
    op_type: str
    node: str
    module: str
    source: str
    shape: tuple[int, ...]
    identical: bool
    sqnr_db: float | None
    cosine: float | None
    max_abs: float | None
    max_rel: float | None
    relative: float | None
    added: float | None
    jump: bool
    not_finite: int


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """A user's metric ``module:function`` on both models."""

    name: str
    reference: float | None
    other: float | None


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """A numeric comparison of two models on the same data.

    Attributes:
        reference: What the other is compared with (engine name or file).
        other: What is compared.
        data: The data in words.
        samples: Rows of axis 0 that were run.
        runner: What computed both: ``onnxruntime:cpu, as written``.
        outputs: In the reference's order.
        tensors: Common intermediate tensors, in graph order.
        first_jump: Name of the first tensor where the error jumps, "" if none does.
        jump_reason: The jump in words, "" if there is none.
        metrics: The user's metrics.
        notes: What the user should know.
    """

    reference: str
    other: str
    data: str
    samples: int
    runner: str
    outputs: tuple[OutputRow, ...]
    tensors: tuple[TensorErrorRow, ...]
    first_jump: str
    jump_reason: str
    metrics: tuple[MetricRow, ...] = ()
    notes: tuple[str, ...] = ()
