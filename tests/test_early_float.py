"""The float engine that is compiled while calibration runs is the one that is compiled after it."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.early_float import EarlyFloat
from fuseq.options import QuantizeOptions
from fuseq.planning import Job, compile_float, open_job
from fuseq.targets.base import Engine
from tests.graphs import conv_net

pytest.importorskip("tensorrt_rtx_bindings")


def _job(target: str = "tensorrt-rtx:sm89", **magnitudes: float) -> Job:
    job = open_job(conv_net(), QuantizeOptions(format="int8", target=target, batch=2))
    return dataclasses.replace(job, magnitudes=magnitudes)


def _output_of_first(job: Job) -> str:
    return next(node.outputs[0].name or "" for node in job.model.graph if node.op_type == "Conv")


def _kernels(engine: Engine) -> list[tuple[object, ...]]:
    return [(k.type, k.inputs, k.outputs, k.nodes, k.predicted_us) for k in engine.kernels]


@pytest.mark.parametrize("largest", [1.0, 16000.0])
def test_magnitudes_that_fit_leave_the_early_engine(largest: float) -> None:
    job = _job()
    early = EarlyFloat(job)
    known = dataclasses.replace(job, magnitudes={_output_of_first(job): largest})
    engine = early.engine_of(known)
    assert engine is early.engine_of(known)
    assert _kernels(engine) == _kernels(compile_float(known))


def test_a_value_that_overflows_is_compiled_again_with_its_nodes_in_fp32() -> None:
    job = _job()
    early = EarlyFloat(job)
    before = early.engine_of(job)
    known = dataclasses.replace(job, magnitudes={_output_of_first(job): 1e5})
    engine = early.engine_of(known)
    assert _kernels(engine) == _kernels(compile_float(known))
    assert _kernels(engine) != _kernels(before)
    assert not engine.notes


def test_a_bias_that_is_lost_beside_its_output_is_compiled_again_in_fp16() -> None:
    job = _job()
    conv = next(node for node in job.model.graph if node.op_type == "Conv")
    weight = conv.inputs[1]
    assert weight is not None and weight.shape is not None
    values = np.full(int(weight.shape.numpy()[0]), 1e-9, dtype=np.float32)
    bias = ir.Value(
        name="tiny", shape=ir.Shape(values.shape), type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(values, name="tiny"),
    )  # fmt: skip
    job.model.graph.register_initializer(bias)
    conv.resize_inputs(3)
    conv.replace_input_with(2, bias)
    early = EarlyFloat(job)
    known = dataclasses.replace(job, magnitudes={_output_of_first(job): 1.0})
    assert _kernels(early.engine_of(job)) != _kernels(compile_float(known))
    assert _kernels(early.engine_of(known)) == _kernels(compile_float(known))


def test_an_angle_that_turned_out_small_is_compiled_again_in_fp16() -> None:
    x = ir.Value(name="x", shape=ir.Shape([4, 64]), type=ir.TensorType(ir.DataType.FLOAT))
    double = ir.node("Add", [x, x], name="double")
    sine = ir.node("Sin", [double.outputs[0]], name="sine")
    for node, name in ((double, "angle"), (sine, "y")):
        node.outputs[0].name = name
        node.outputs[0].type, node.outputs[0].shape = x.type, x.shape
    graph = ir.Graph([x], [sine.outputs[0]], nodes=[double, sine], opset_imports={"": 21}, name="g")
    job = open_job(
        ir.Model(graph, ir_version=10), QuantizeOptions(format="int8", target="tensorrt-rtx:sm89")
    )
    early = EarlyFloat(job)
    known = dataclasses.replace(job, magnitudes={"angle": 1.0})
    assert _kernels(early.engine_of(known)) == _kernels(compile_float(known))


def test_nothing_is_compiled_early_where_the_compiler_is_python() -> None:
    job = _job("tensorrt:sm89")
    early = EarlyFloat(job)
    first, second = early.engine_of(job), early.engine_of(job)
    assert first is not second
    np.testing.assert_equal(_kernels(first), _kernels(second))
