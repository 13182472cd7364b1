"""Compile a model as it is: no graph is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.model import load, profile_between
from fuseq.targets import parse_target
from fuseq.targets.base import Engine


def compile_model(
    model: ir.Model | str | os.PathLike[str],
    target: str,
    *,
    gpu: str | None = None,
    batch: int = 8,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    minima: Mapping[str, tuple[int, ...]] | None = None,
    maxima: Mapping[str, tuple[int, ...]] | None = None,
    keep_plan: bool = False,
) -> Engine:
    """Compile for ``target`` at one static shape.

    Args:
        model: ONNX file or model.
        target: ``compiler:device``.
        gpu: GPU that predictions assume.
        batch: Size of a dynamic first axis.
        shapes: Static shape by input name, where more is dynamic.
        minima: Smallest shape by input name; an input that is not named keeps its one shape.
        maxima: Largest shape by input name, likewise.
        keep_plan: Keep the serialized engine in the result.

    Raises:
        ModelError: The file cannot be used.
        OptionError: The target, GPU or a shape is not allowed.
        TargetError: The compiler refused the model, with its own words.
    """
    loaded = load(model) if not isinstance(model, ir.Model) else model
    chosen = parse_target(target, gpu)
    profile = profile_between(loaded, batch, shapes or {}, minima or {}, maxima or {})
    return chosen.compile(loaded, profile, keep_plan=keep_plan)
