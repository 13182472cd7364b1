"""Runs models node by node as written: ONNX Runtime without its optimizations."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort


def run(
    model: ir.Model, feeds: Mapping[str, np.ndarray], also: list[str] | None = None
) -> dict[str, np.ndarray]:
    """Outputs by name, and the values named in ``also``."""
    proto = ir.to_proto(copy.copy(model).clone())
    known = {info.name for info in proto.graph.output}
    for name in also or []:
        if name not in known:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
