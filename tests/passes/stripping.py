"""What the tests of stripping share."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from fuseq.passes.found_scales import FoundScale
from fuseq.passes.strip_qdq import Stripped, strip_qdq

F8 = ml_dtypes.float8_e4m3fn
HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "trt" : 1]>'


def run_as_written(model: ir.Model, **feeds: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def strip_checked(model: ir.Model) -> tuple[Stripped, dict[tuple[str, str], FoundScale]]:
    stripped = strip_qdq(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return stripped, {(s.kind, s.tensor): s for s in stripped.scales(model)}


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def array_of(model: ir.Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return np.asarray(tensor.numpy())
