"""A deployment on its way: the model, the data and the target that every stage needs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from fuseq.calibration.batches import Source
from fuseq.calibration.image_presets import image_preset
from fuseq.calibration.sources import open_source
from fuseq.deployment.from_checkpoint import open_checkpoint, with_its_format
from fuseq.deployment.options import DeployOptions
from fuseq.errors import OptionError
from fuseq.model import load, profile_for
from fuseq.modelopt.checkpoint import Checkpoint
from fuseq.passes.float_only import check_float
from fuseq.planning import Report
from fuseq.targets import parse_target
from fuseq.targets.base import ShapeProfile, Target

QUANTIZED, FLOAT = "model.onnx", "float.onnx"
ENGINE, FLOAT_ENGINE = "model.engine", "float.engine"


@dataclasses.dataclass(frozen=True)
class Opened:
    """Everything that stages read.

    Attributes:
        path: The user's file.
        model: As it was loaded.
        target: The compiler and device.
        profile: Static shapes that engines are compiled for.
        calib: As the user gave it.
        calib_source: The calibration data, opened.
        options: The rest.
        report: Progress.
        checkpoint: The ModelOpt checkpoint that the model comes from, whose ranges are applied.
    """

    path: Path
    model: ir.Model
    target: Target
    profile: ShapeProfile
    calib: object
    calib_source: Source
    options: DeployOptions
    report: Report
    checkpoint: Checkpoint | None = None

    @property
    def precision(self) -> str:
        """Type of what stays float."""
        return self.options.quantize.precision or self.target.precision

    @property
    def data(self) -> object:
        """What closeness is measured on, as the user gave it."""
        return self.calib if self.options.data is None else self.options.data

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Static shape by input name."""
        return self.profile.optimum


def open_deployment(
    model: str | os.PathLike[str], calib: object, options: DeployOptions, report: Report
) -> Opened:
    """Open what the user gave; refuses before the long work what would fail after it.

    Raises:
        FuseqError: The model, the data, the target or a shape cannot be used.
    """
    if options.samples < 1:
        raise OptionError(f"--samples {options.samples} compares nothing; give 1 or more.")
    exported = open_checkpoint(Path(model), options)
    if exported is not None:
        options = with_its_format(options, exported[1])
    chosen = options.quantize
    target = parse_target(chosen.target, chosen.gpu)
    target.rules(chosen.format)
    loaded = load(model) if exported is None else exported[0]
    check_float(loaded, str(model))
    profile = profile_for(loaded, chosen.batch, chosen.shapes)
    return Opened(
        path=Path(model),
        model=loaded,
        target=target,
        profile=profile,
        calib=calib,
        calib_source=_source(calib, loaded, options, profile, chosen.limit),
        options=options,
        report=report,
        checkpoint=None if exported is None else exported[1],
    )


def evaluation_source(opened: Opened) -> Source:
    """The data that closeness is measured on.

    Raises:
        CalibrationError: It cannot be used.
    """
    options = opened.options
    return _source(opened.data, opened.model, options, opened.profile, options.samples)


def _source(
    given: object, model: ir.Model, options: DeployOptions, profile: ShapeProfile, limit: int | None
) -> Source:
    chosen = options.quantize
    return open_source(
        given,
        model,
        preset=image_preset(chosen.preset) if chosen.preset else None,
        limit=limit,
        shapes=profile.optimum,
        seed=chosen.seed,
    )
