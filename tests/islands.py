"""Helpers for tests of integer plans: plan, calibrate by maximum, insert, optimize, run."""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from fuseq.calibration.bias import bias_scales
from fuseq.calibration.ranges import Range
from fuseq.calibration.scales import Scale
from fuseq.calibration.tensor_scales import activation_scales, constant_scales
from fuseq.formats import INT7, UINT8
from fuseq.passes.insert_qdq import insert_qdq
from fuseq.placement.choices import PlanOptions
from fuseq.placement.plan import Plan
from fuseq.placement.planner import plan_everything
from fuseq.targets.fusion import OperatorCosts
from fuseq.targets.onnxruntime_rules import rules_for

Feeds = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A float model, its plan, its scales and the quantized model."""

    model: ir.Model
    plan: Plan
    scales: dict[str, Scale]
    quantized: ir.Model

    def quantizes(self, region: str) -> bool:
        """Whether the region called ``region`` is quantized."""
        return {r.name: r.quantized for r in self.plan.regions}[region]

    def reason(self, region: str) -> str:
        """Why the region is what it is."""
        return {r.name: r.reason for r in self.plan.regions}[region]


def plan_of(model: ir.Model, costs: OperatorCosts | None = None, **options: object) -> Plan:
    """Plan for onnxruntime:cpu without VNNI; ``costs`` None plans all that can run."""
    return plan_everything(
        model,
        rules_for(UINT8, INT7, costs),
        target="onnxruntime:cpu",
        user_format="int8",
        precision="fp32",
        options=PlanOptions(**options),  # type: ignore[arg-type]
    )


def case_of(model: ir.Model, feeds: Feeds, plan: Plan | None = None) -> Case:
    """Quantize ``model`` with the ranges that ``feeds`` give."""
    plan = plan or plan_of(model)
    names = list(dict.fromkeys(e.tensor for e in plan.tensors if e.kind == "activation"))
    found = values_of(model, names, feeds)
    ranges = {name: Range(float(v.min()), float(v.max())) for name, v in found.items()}
    scales = {
        **constant_scales(plan, model, "fp32"),
        **activation_scales(plan, ranges, "fp32"),
    }
    scales |= bias_scales(plan, scales, model)
    quantized = model.clone()
    insert_qdq(quantized, plan, scales)
    onnx.checker.check_model(ir.to_proto(quantized), full_check=True)
    return Case(model, plan, scales, quantized)


def values_of(model: ir.Model, names: list[str], feeds: Feeds) -> Feeds:
    """Values of tensors of the float model."""
    proto = ir.to_proto(model)
    given = {value.name for value in proto.graph.output}
    inner = [name for name in names if name not in feeds]
    for name in inner:
        if name not in given:
            proto.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    found = dict(zip(inner, _session(proto).run(inner, feeds), strict=True)) if inner else {}
    return {**found, **{name: feeds[name] for name in names if name in feeds}}


def run(model: ir.Model, feeds: Feeds) -> np.ndarray:
    """First output, by ONNX Runtime with all optimizations."""
    return np.asarray(_session(ir.to_proto(model)).run(None, feeds)[0])


def optimized(model: ir.Model) -> onnx.ModelProto:
    """What ONNX Runtime makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "optimized.onnx"
        _session(ir.to_proto(model), str(file))
        return onnx.load(file)


def kernels(model: ir.Model) -> dict[str, int]:
    """Operators of the optimized graph, by name."""
    return dict(collections.Counter(node.op_type for node in optimized(model).graph.node))


def sqnr_db(exact: np.ndarray, other: np.ndarray) -> float:
    """Signal to quantization noise ratio in decibels."""
    noise = np.square(exact.astype(np.float64) - other).sum()
    return float(10 * np.log10(np.square(exact.astype(np.float64)).sum() / noise))


def listing(plan: Plan) -> str:
    """The plan in short lines: regions, then tensors as ``name@group``, limits, readers."""
    lines = [
        f"{'int  ' if region.quantized else 'float'} {region.pattern}: {' '.join(region.nodes)}"
        for region in plan.regions
    ]
    for entry in plan.tensors:
        axis = "" if entry.axis is None else f"[{entry.axis}]"
        group = "" if entry.group == entry.tensor else f"@{entry.group}"
        limits = "" if entry.limits is None else f" {entry.limits}"
        uses = " ".join(f"{use.node or 'output'}.{use.index}" for use in entry.uses)
        lines.append(
            f"{entry.region}: {entry.tensor}{group} {entry.format}{axis}{limits} -> {uses}"
        )
    return "\n".join(lines)


def _session(proto: onnx.ModelProto, file: str = "") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if file:
        options.optimized_model_filepath = file
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
