"""The stages of a deployment. Each writes its files into a work folder and returns plain numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.opening import open_model
from fuseq.checks.running import chosen_rules
from fuseq.deployment.from_checkpoint import quantize_checkpoint
from fuseq.deployment.opened import FLOAT, QUANTIZED, Opened
from fuseq.evaluate.compare import CompareOptions, compare
from fuseq.model import load, save
from fuseq.passes.canonical import canonicalize
from fuseq.passes.typing import set_precision
from fuseq.placement.plan import Plan
from fuseq.planning import typed_copy
from fuseq.quantizing import Quantized, quantize
from fuseq.report.document import EngineRow
from fuseq.report.engine_rows import EngineText, engine_of, engine_row
from fuseq.report.finding_rows import finding_rows
from fuseq.report.graph_rows import modules_by_node

PLAN, SCALES = "plan.json", "scales.safetensors"

Made = tuple[list[str], Any]
"""Names of the files that were written, and numbers as plain JSON data."""


def quantize_stage(opened: Opened, work: Path) -> Made:
    """Quantize; write the quantized and the float model, the plan and the scales."""
    result = _quantized(opened, work / QUANTIZED)
    result.plan.save(work / PLAN)
    result.scales.save(work / SCALES)
    save(_float_model(opened, result), work / FLOAT)
    return sorted(file.name for file in work.iterdir()), {"notes": list(result.notes)}


def _quantized(opened: Opened, output: Path) -> Quantized:
    options = opened.options
    if opened.checkpoint is not None:
        return quantize_checkpoint(
            opened.model,
            opened.checkpoint,
            output,
            options=options.quantize,
            calib=opened.calib_source,
            report=opened.report,
        )
    return quantize(
        opened.path,
        output,
        calib=opened.calib_source,
        options=options.quantize,
        plan=options.plan,
        report=opened.report,
    )


def engine_stage(opened: Opened, folder: Path, work: Path, text: EngineText) -> Made:
    """Compile one model of the folder; write the engine where the target has a file for it."""
    opened.report(f"compile {text.label}", 0, None)
    model = load(folder / text.model_file)
    engine = opened.target.compile(model, opened.profile, keep_plan=True)
    files = []
    is_file = engine.plan_bytes is not None and not opened.target.name.startswith("onnxruntime")
    if engine.plan_bytes is not None and is_file:
        (work / text.engine_file).write_bytes(engine.plan_bytes)
        files.append(text.engine_file)
    named = text if is_file else dataclasses.replace(text, engine_file="")
    row = engine_row(engine, named, modules_by_node(model))
    return files, dataclasses.asdict(row)


def check_stage(
    opened: Opened, folder: Path, float_engine: EngineRow | None, engine: EngineRow | None
) -> Made:
    """Run the rules over the quantized model and the engines that are there."""
    opened.report("check", 0, None)
    path = folder / QUANTIZED
    plan = Plan.load(folder / PLAN)
    model = open_model(path)
    judged = engine is not None and opened.target.predicts
    context = Context(
        file=path.name,
        model=model,
        target=opened.target,
        rules=opened.target.rules(opened.options.quantize.format) if plan.tensors else None,
        format=opened.options.quantize.format if plan.tensors else "",
        engine=engine_of(engine) if engine is not None and judged else None,
        float_engine=engine_of(float_engine) if float_engine is not None and judged else None,
        simulated=engine.simulated if engine is not None else False,
        batch=opened.options.quantize.batch,
    )
    findings: list[Finding] = []
    for rule in chosen_rules():
        if rule.reads == "model" or context.engine is not None:
            findings += rule.check(context)
    rows = finding_rows(findings, modules_by_node(model))
    return [], [dataclasses.asdict(row) for row in rows]


def compare_stage(opened: Opened, folder: Path) -> Made:
    """Compare the float model in the target's type, and the quantized one, with the user's own model."""
    options = opened.options
    chosen = CompareOptions(
        samples=options.samples,
        preset=options.quantize.preset,
        shapes=opened.shapes,
        seed=options.quantize.seed,
        outputs_are=options.outputs_are,
        metric=options.metric,
    )
    rows = []
    for name, file in (("float", FLOAT), ("quantized", QUANTIZED)):
        row = compare(
            opened.model.clone(),
            folder / file,
            data=opened.data,
            options=dataclasses.replace(
                chosen, names=(opened.path.name, name), intermediates=name == "quantized"
            ),
            report=opened.report,
        )
        rows.append(dataclasses.asdict(row))
    return [], rows


def _float_model(opened: Opened, result: Quantized) -> ir.Model:
    """The model without Q/DQ in the type of what stays float: what the quantized one must beat.

    For a CPU the planned model is in a form that suits integer kernels; float kernels get the
    canonical form.
    """
    if not opened.target.name.startswith("onnxruntime"):
        return typed_copy(result.job, result.job.model)[0]
    model = opened.model.clone()
    canonicalize(model)
    set_precision(model, opened.precision, io_types=opened.options.quantize.io_types)
    return model
