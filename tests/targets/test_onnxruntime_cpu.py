"""Target onnxruntime:cpu: kernels, provenance, runs and timing of small models built here."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnx_ir as ir
import onnxruntime
import pytest

from fuseq.calibration.limits import scale_within
from fuseq.calibration.scales import activation_scale
from fuseq.errors import OptionError, TargetError
from fuseq.formats import INT7, INT8, UINT8
from fuseq.targets import parse_target
from fuseq.targets.base import KernelType, ShapeProfile
from fuseq.targets.fusion import OperatorCosts
from fuseq.targets.onnxruntime.costs import DOT, NARROW, WIDE
from fuseq.targets.onnxruntime.timing import time_models
from fuseq.targets.onnxruntime_cpu import Cpu, OnnxRuntimeCpu
from fuseq.targets.onnxruntime_rules import (
    ABSORBED,
    DATA_OPS_OWN_SCALE,
    DATA_OPS_SAME_SCALE,
    FLOAT_ONLY,
    rules_for,
)

PROFILE = ShapeProfile({"x": (2, 8, 6, 6)})
X86_PLAIN = Cpu("x86_64", frozenset({"avx2", "fma"}))
CPU = OnnxRuntimeCpu(threads=1, profiled_runs=1, cpu=X86_PLAIN)

refuses_what_it_cannot_fuse = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24),
    reason="ONNX Runtime 1.23, the last for Python 3.10, fuses these and computes them wrong or not",
)


def _pair(name: str, scale: str = "s", zero: str = "z") -> str:
    return (
        f"{name}_q = QuantizeLinear({name}, {scale}, {zero})\n"
        f"{name}_d = DequantizeLinear({name}_q, {scale}, {zero})\n"
    )


def _model(body: str, outputs: str = "float y", opset: int = 20, batch: str = "2") -> ir.Model:
    """A graph on x [batch, 8, 6, 6] with a convolution's constants at hand; nodes are named."""
    random = np.random.default_rng(7)
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
        f"g (float[{batch},8,6,6] x) => ({outputs}) {{\n{body}}}"
    )
    constants = {
        "s": np.float32(0.03),
        "z": np.uint8(128),
        "s6": np.float32(6 / 255),
        "z0": np.uint8(0),
        "ws": np.full(8, 0.01, np.float32),
        "wz": np.zeros(8, np.int8),
        "w": random.integers(-63, 64, (8, 8, 3, 3)).astype(np.int8),
        "wd": random.integers(-63, 64, (8, 1, 3, 3)).astype(np.int8),
        "wf": random.normal(0, 0.1, (8, 8, 3, 3)).astype(np.float32),
        "b": random.integers(-2000, 2000, 8).astype(np.int32),
        "bs": np.full(8, np.float32(0.03) * np.float32(0.01), np.float32),
        "bs6": np.full(8, np.float32(6 / 255) * np.float32(0.01), np.float32),
        "bf": random.normal(0, 1, 8).astype(np.float32),
        "wf16": random.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32),
        "bf16": random.normal(0, 1, 16).astype(np.float32),
        "gw": random.integers(-63, 64, (8, 8 * 36)).astype(np.int8),
        "gs": np.full(8, 0.01, np.float32),
        "gz": np.zeros(8, np.int8),
        "low": np.float32(0),
        "high": np.float32(6),
        "axes": np.array([2, 3]),
        "rows": np.array([0, -1]),
    }
    used = {name for node in proto.graph.node for name in node.input}
    for name in sorted(used & set(constants)):
        tensor = onnx.numpy_helper.from_array(np.asarray(constants[name]), name)
        proto.graph.initializer.append(tensor)
    for node in proto.graph.node:
        node.name = f"n_{node.output[0]}"
    return ir.from_proto(proto)


WEIGHTS = "wq = DequantizeLinear <axis = 0> (w, ws, wz)\nbq = DequantizeLinear <axis = 0> (b, bs)\n"
DEPTHWISE_WEIGHTS = (
    "wdq = DequantizeLinear <axis = 0> (wd, ws, wz)\nbq6 = DequantizeLinear <axis = 0> (b, bs6)\n"
)
CONV = "Conv <pads = [1, 1, 1, 1]>"
BLOCK = (
    _pair("x")
    + WEIGHTS
    + DEPTHWISE_WEIGHTS
    + f"c = {CONV} (x_d, wq, bq)\na = Clip(c, low, high)\n"
    + _pair("a", "s6", "z0")
    + "d = Conv <pads = [1, 1, 1, 1], group = 8> (a_d, wdq, bq6)\nr = Relu(d)\n"
    + _pair("r", "s", "z0")
    + "j = Add(r_d, a_d)\n"
    + _pair("j")
    + "p = GlobalAveragePool(j_d)\n"
    + _pair("p")
    + "y = Flatten(p_d)\n"
)


def _types(model: ir.Model) -> list[str]:
    return [kernel.compiler_type for kernel in CPU.compile(model, PROFILE).kernels]


def _feeds(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"x": random.normal(0, 1, (2, 8, 6, 6)).astype(np.float32)}


def test_a_quantized_block_keeps_no_pair_but_the_ends() -> None:
    engine = CPU.compile(_model(BLOCK), PROFILE)
    assert [kernel.compiler_type for kernel in engine.kernels] == [
        "QuantizeLinear",
        "Transpose",
        "QLinearConv",
        "QLinearConv",
        "QLinearAdd",
        "QLinearGlobalAveragePool",
        "Transpose",
        "DequantizeLinear",
        "Flatten",
    ]
    assert [kernel.type for kernel in engine.alone] == [
        KernelType.QUANTIZE,
        KernelType.DEQUANTIZE,
    ]


def test_kernels_carry_bytes_flops_and_types_of_the_real_shapes() -> None:
    kernels = CPU.compile(_model(BLOCK), PROFILE).kernels
    quantize, _, conv, depthwise, add = kernels[:5]
    pixels = 2 * 8 * 6 * 6
    assert [(t.name, t.shape, t.dtype, t.nbytes) for t in quantize.inputs] == [
        ("x", (2, 8, 6, 6), "fp32", 4 * pixels)
    ]
    assert [(t.shape, t.dtype, t.nbytes) for t in conv.inputs] == [((2, 6, 6, 8), "uint8", pixels)]
    assert conv.flops == 2 * pixels * 8 * 9
    assert depthwise.flops == 2 * pixels * 9
    assert (conv.compute_dtype, add.compute_dtype, add.flops) == ("int8", "", 0)
    # int8 weight, its scales and zero points, int32 bias, and one scale and zero point each of x and y
    assert conv.weights_bytes == 8 * 8 * 9 + 8 * 4 + 8 + 8 * 4 + 2 * (4 + 1)
    assert add.activation_bytes == 3 * pixels
    assert all(kernel.measured_us is not None for kernel in kernels)
    assert all(kernel.predicted_us is None for kernel in kernels)


def test_every_node_belongs_to_exactly_one_kernel() -> None:
    model = _model(BLOCK)
    kernels = CPU.compile(model, PROFILE).kernels
    by_type = {kernel.compiler_type: kernel.nodes for kernel in kernels}
    assert by_type["QuantizeLinear"] == ("n_x_q",)
    assert by_type["QLinearAdd"] == ("n_r_d", "n_j", "n_j_q")
    conv, depthwise = [k.nodes for k in kernels if k.compiler_type == "QLinearConv"]
    assert set(conv) == {"n_x_d", "n_wq", "n_bq", "n_c", "n_a", "n_a_q"}
    assert set(depthwise) == {"n_a_d", "n_wdq", "n_bq6", "n_d", "n_r", "n_r_q"}
    assert by_type["Transpose"] == ()
    claimed = sorted(name for kernel in kernels for name in kernel.nodes)
    assert claimed == sorted(node.name or "" for node in model.graph)


def test_a_residual_belongs_to_the_convolution_that_absorbs_it() -> None:
    """Though the convolution behind it is the next kernel that carries a mark."""
    pads = "<pads = [1, 1, 1, 1]>"
    body = f"""a = Conv{pads}(x, wf, bf)
      c = Conv{pads}(a, wf, bf)
      d = Add(c, a)
      r = Relu(d)
      y = Conv(r, wf, bf)"""
    kernels = CPU.compile(_model(body), PROFILE).kernels
    found = [k.nodes for k in kernels if k.compiler_type == "Conv"]
    assert found == [("n_a",), ("n_c", "n_d", "n_r"), ("n_y",)]


def test_float_fusions_keep_their_nodes() -> None:
    """With 16 channels: ONNX Runtime pads to its vectors, of 16 floats under AVX-512."""
    body = f"""x16 = Concat <axis = 1> (x, x)
      c = {CONV} (x16, wf16, bf16)
      a = Relu(c)
      e = {CONV} (a, wf16, bf16)
      y = Add(e, a)"""
    kernels = CPU.compile(_model(body), PROFILE).kernels
    convs = [kernel for kernel in kernels if kernel.type is KernelType.CONVOLUTION]
    assert [kernel.nodes for kernel in convs] == [("n_c", "n_a"), ("n_e", "n_y")]
    assert [kernel.flops for kernel in convs] == [2 * 2 * 16 * 36 * 144] * 2
    assert [kernel.compute_dtype for kernel in convs] == ["fp32"] * 2
    assert [kernel.weights_bytes for kernel in convs] == [4 * (16 * 16 * 9 + 16)] * 2


def test_kernels_name_the_lines_of_the_users_code() -> None:
    model = _model(f"c = {CONV} (x, wf, bf)\ny = Relu(c)\n")
    for node in model.graph:
        node.metadata_props["fuseq.source"] = f"net.py:{len(node.inputs)} in forward: ..."
    kernels = CPU.compile(model, PROFILE).kernels
    conv = next(kernel for kernel in kernels if kernel.type is KernelType.CONVOLUTION)
    assert conv.source_lines == ("net.py:3 in forward: ...", "net.py:1 in forward: ...")


def test_views_move_no_bytes() -> None:
    kernels = CPU.compile(
        _model("t = Relu(x)\nv = Reshape(t, rows)\ny = Relu(v)\n"), PROFILE
    ).kernels
    view = next(kernel for kernel in kernels if kernel.compiler_type == "Reshape")
    assert (view.type, view.activation_bytes) == (KernelType.MOVE, 0)
    assert view.outputs[0].shape == (2, 8 * 36)


def test_the_model_is_left_alone() -> None:
    model = _model(BLOCK, batch="N")
    before = ir.to_proto(model).SerializeToString()
    CPU.compile(model, PROFILE)
    assert ir.to_proto(model).SerializeToString() == before


def test_dynamic_batch_takes_the_profile() -> None:
    engine = CPU.compile(_model("y = Relu(x)\n", batch="N"), ShapeProfile({"x": (5, 8, 6, 6)}))
    assert engine.kernels[0].outputs[0].shape == (5, 8, 6, 6)


def test_the_optimized_graph_is_the_plan_on_request() -> None:
    engine = CPU.compile(_model(BLOCK), PROFILE, keep_plan=True)
    assert engine.plan_bytes is not None
    assert engine.engine_bytes == len(engine.plan_bytes)
    graph = onnx.load_from_string(engine.plan_bytes).graph
    assert len(graph.node) == len(engine.kernels)
    assert CPU.compile(_model(BLOCK), PROFILE).plan_bytes is None


def test_run_equals_the_reference_evaluator() -> None:
    model = _model(f"c = {CONV} (x, wf, bf)\na = Relu(c)\ny = GlobalAveragePool(a)\n")
    expected = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, _feeds())[0]
    found = CPU.run(model, _feeds())
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)


def test_run_of_integer_kernels_equals_the_reference_evaluator() -> None:
    """The reference runs Q, DQ and float operators one by one: at most one step of rounding apart."""
    model = _model(BLOCK)
    expected = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, _feeds())[0]
    found = CPU.run(model, _feeds())["y"]
    assert np.ptp(expected) > 5 * 0.03
    assert float(np.abs(found - expected).max()) <= 0.03 * 1.01


def test_run_takes_bytes_and_paths(tmp_path) -> None:
    model = _model("y = Relu(x)\n")
    data = ir.to_proto(model).SerializeToString()
    file = tmp_path / "m.onnx"
    file.write_bytes(data)
    expected = np.maximum(_feeds()["x"], 0)
    for source in (data, file, str(file)):
        np.testing.assert_array_equal(CPU.run(source, _feeds())["y"], expected)


def test_time_takes_turns_and_returns_ratios() -> None:
    slow = _model(f"c = {CONV} (x, wf, bf)\ny = {CONV} (c, wf, bf)\n")
    fast = _model("y = Relu(x)\n")
    feeds = {"x": np.zeros((2, 8, 6, 6), np.float32)}
    timings = CPU.time({"slow": slow, "fast": fast}, feeds, seconds=0.05, warmup=1)
    assert [timing.name for timing in timings] == ["slow", "fast"]
    assert timings[0].speedup == 1.0
    assert timings[0].rounds == timings[1].rounds >= 5
    ratios = [a / b for a, b in zip(timings[0].rounds_ms, timings[1].rounds_ms, strict=True)]
    assert timings[1].speedup == pytest.approx(float(np.median(ratios)))
    for timing in timings:
        assert timing.best_ms == min(timing.rounds_ms)
        assert timing.median_ms == pytest.approx(float(np.median(timing.rounds_ms)))


def test_timing_refuses_what_it_cannot_do() -> None:
    with pytest.raises(OptionError, match="no model to time"):
        time_models({}, {})
    with pytest.raises(OptionError, match="threads=4096: this process may use"):
        time_models({"m": _model("y = Relu(x)\n")}, _feeds(), threads=4096)


@pytest.mark.parametrize(
    ("cpu", "weight"),
    [
        (X86_PLAIN, INT7),
        (Cpu("amd64", frozenset()), INT7),
        (Cpu("x86_64", frozenset({"avx512f", "avx512_vnni"})), INT8),
        (Cpu("x86_64", frozenset({"avx_vnni"})), INT8),
        (Cpu("x86_64", frozenset({"amx_int8"})), INT8),
        (Cpu("aarch64", frozenset()), INT8),
        (Cpu("arm64", frozenset({"asimddp"})), INT8),
    ],
)
def test_the_processor_chooses_the_weight_range(cpu: Cpu, weight: object) -> None:
    assert OnnxRuntimeCpu(cpu=cpu).storage_formats("int8") == (UINT8, weight)


def test_seven_bit_weights_cannot_saturate_sixteen_bits() -> None:
    assert 2 * 255 * INT7.qmax <= 2**15 - 1
    assert 2 * 255 * INT7.qmin >= -(2**15)
    assert 2 * 255 * INT8.qmax > 2**15 - 1


def test_this_machine_is_read() -> None:
    cpu = Cpu.here()
    assert cpu.machine == cpu.machine.lower() != ""
    assert OnnxRuntimeCpu(cpu=cpu).storage_formats("int8")[0] is UINT8


def test_fp8_is_refused_in_one_sentence() -> None:
    with pytest.raises(TargetError, match=r"onnxruntime:cpu has no FP8 kernels.*--format int8"):
        CPU.storage_formats("fp8")
    with pytest.raises(OptionError, match="is not a format"):
        CPU.storage_formats("int3")


def test_the_target_is_found_by_name() -> None:
    assert parse_target("onnxruntime:cpu").name == "onnxruntime:cpu"
    assert CPU.missing() is None
    with pytest.raises(OptionError, match=r"onnxruntime:gpu.*write onnxruntime:cpu"):
        parse_target("onnxruntime:gpu")


def test_onnxruntimes_own_words_reach_the_user() -> None:
    with pytest.raises(TargetError, match=r"onnxruntime:cpu refused.*No Op registered for Nope"):
        CPU.compile(_model("y = Nope(x)\n"), PROFILE)
    with pytest.raises(TargetError, match=r"inputs are \['x'\], the feeds name \['q'\]"):
        CPU.run(_model("y = Relu(x)\n"), {"q": np.zeros(1, np.float32)})
    with pytest.raises(TargetError, match=r"could not run the model.*tensor\(double\)"):
        CPU.run(_model("y = Relu(x)\n"), {"x": np.zeros((2, 8, 6, 6))})
    with pytest.raises(TargetError, match="refused"):
        CPU.run(b"not a model", _feeds())


# What onnxruntime_rules.py says, asked of the optimizer.


def _conv_then(step: str, scale: str = "s", zero: str = "z", between: bool = False) -> ir.Model:
    middle = _pair("c") if between else ""
    source = "c_d" if between else "c"
    body = _pair("x") + WEIGHTS + f"c = {CONV} (x_d, wq, bq)\n{middle}"
    return _model(
        body + f"t = {step.format(source)}\n" + _pair("t", scale, zero) + "y = Identity(t_d)\n"
    )


def test_relu_needs_zero_point_zero() -> None:
    assert "QLinearConv" in _types(_conv_then("Relu({})", "s", "z0"))
    assert "QLinearConv" not in _types(_conv_then("Relu({})", "s", "z"))


@pytest.mark.parametrize(("zero", "fused"), [("z0", True), ("z", False)])
def test_clip_needs_the_range_inside(zero: str, fused: bool) -> None:
    assert ("QLinearConv" in _types(_conv_then("Clip({}, low, high)", "s6", zero))) is fused


def test_clip_with_a_wider_range_keeps_the_convolution_float() -> None:
    types = _types(_conv_then("Clip({}, low, high)", "s", "z0"))  # 255 x 0.03 > 6
    assert "QLinearConv" not in types


def test_a_convolution_without_output_pair_is_float() -> None:
    types = _types(_model(_pair("x") + WEIGHTS + f"y = {CONV} (x_d, wq, bq)\n"))
    assert "QLinearConv" not in types
    assert types.count("DequantizeLinear") == 3


def test_a_float_reader_keeps_the_convolution_float() -> None:
    body = _pair("x") + WEIGHTS + f"c = {CONV} (x_d, wq, bq)\n" + _pair("c")
    assert "QLinearConv" not in _types(_model(body + "e = Elu(c)\ny = Add(e, c_d)\n"))
    assert "QLinearConv" in _types(_model(body + "e = Elu(c_d)\ny = Add(e, c_d)\n"))


@refuses_what_it_cannot_fuse
def test_a_bias_of_another_scale_keeps_the_convolution_float() -> None:
    weights = WEIGHTS.replace("(b, bs)", "(b, bs6)")
    body = _pair("x") + weights + f"c = {CONV} (x_d, wq, bq)\n" + _pair("c") + "y = Elu(c_d)\n"
    assert "QLinearConv" not in _types(_model(body))
    assert "QLinearConv" in _types(_model(body.replace("(b, bs6)", "(b, bs)")))


@refuses_what_it_cannot_fuse
@pytest.mark.parametrize(("inputs", "fused"), [("gw, gs, gz", True), ("gw, gs", False)])
def test_gemm_writes_float_but_needs_the_weights_zero_point(inputs: str, fused: bool) -> None:
    body = (
        _pair("x")
        + "f = Flatten(x_d)\n"
        + _pair("f")
        + f"gd = DequantizeLinear <axis = 0> ({inputs})\n"
        + "gb = DequantizeLinear <axis = 0> (b, bs)\n"
        + "y = Gemm <transB = 1> (f_d, gd, gb)\n"
    )
    assert ("QGemm" in _types(_model(body))) is fused


def test_reduce_mean_is_float_and_global_average_pool_is_not() -> None:
    float_types = _types(_conv_then("ReduceMean({}, axes)", between=True))
    assert "ReduceMean" in float_types
    assert "QLinearGlobalAveragePool" in _types(_conv_then("GlobalAveragePool({})", between=True))


@pytest.mark.parametrize("op", ["Tanh", "Elu", "HardSwish", "Gelu", "Softplus"])
def test_float_only_operators_keep_their_pairs(op: str) -> None:
    assert op in FLOAT_ONLY
    types = _types(_conv_then(op + "({})", between=True))
    assert (types.count("QuantizeLinear"), types.count("DequantizeLinear")) == (2, 2)


@pytest.mark.parametrize(
    ("step", "kernel"),
    [
        ("Sigmoid({})", "QLinearSigmoid"),
        ("LeakyRelu({})", "QLinearLeakyRelu"),
        ("Add({}, x_d)", "QLinearAdd"),
        ("Mul({}, x_d)", "QLinearMul"),
        ("Concat <axis = 1> ({}, x_d)", "QLinearConcat"),
        ("AveragePool <kernel_shape = [2, 2]> ({})", "QLinearAveragePool"),
        ("MaxPool <kernel_shape = [2, 2]> ({})", "NhwcMaxPool"),
    ],
)
def test_operators_with_integer_kernels(step: str, kernel: str) -> None:
    types = _types(_conv_then(step, between=True))
    assert re.match(r"\w+", step)[0] in (*DATA_OPS_OWN_SCALE, *DATA_OPS_SAME_SCALE)
    assert kernel in types
    assert (types.count("QuantizeLinear"), types.count("DequantizeLinear")) == (1, 1)


def test_the_rule_lists_do_not_overlap() -> None:
    lists = (DATA_OPS_SAME_SCALE, DATA_OPS_OWN_SCALE, FLOAT_ONLY, ABSORBED)
    names = [name for names in lists for name in names]
    assert len(names) == len(set(names))
    rules = rules_for(UINT8, INT7)
    assert rules.data_ops["MaxPool"] == "same"
    assert rules.data_ops["Add"] == "own"
    assert (rules.activation, rules.weight) == (UINT8, INT7)


def test_a_scale_within_limits_makes_the_optimizer_drop_the_clip() -> None:
    random = np.random.default_rng(1)
    for high in random.uniform(0.01, 20, 8).astype(np.float32):
        raw, zero = activation_scale(0.0, float(high), UINT8)
        scale = scale_within(raw, zero, UINT8, (0.0, float(high)))
        model = _conv_then("Clip({}, low, high)", "s6", "z0")
        model.graph.initializers["high"].const_value = ir.tensor(np.asarray(high))
        model.graph.initializers["s6"].const_value = ir.tensor(np.asarray(scale))
        assert zero == 0
        assert "QLinearConv" in _types(model)


@pytest.mark.parametrize(
    ("cpu", "costs"),
    [
        (Cpu("x86_64", frozenset({"avx2", "avx512_vnni"}), "GenuineIntel", 6, 143), DOT),
        (Cpu("x86_64", frozenset({"avx2", "avx_vnni"}), "GenuineIntel", 6, 154), DOT),
        (Cpu("x86_64", frozenset({"avx2"}), "GenuineIntel", 6, 79), WIDE),
        (Cpu("x86_64", frozenset({"avx2"}), "AuthenticAMD", 0x17, 0x01), NARROW),
        (Cpu("x86_64", frozenset({"avx2"}), "AuthenticAMD", 0x17, 0x31), WIDE),
        (Cpu("aarch64", frozenset()), WIDE),
    ],
)
def test_costs_are_those_of_the_kind_of_processor(cpu: Cpu, costs: OperatorCosts) -> None:
    assert OnnxRuntimeCpu(cpu=cpu).costs is costs
