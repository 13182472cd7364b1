"""What users of this field met (public reports), where it touches bench and profile.

Each model stands in FP16 beside itself with INT8 pairs at every convolution or product, as toolkits
place them by default; the compiler is TensorRT-RTX, so engines are real and times are predicted.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.evaluate.bench import BenchOptions, BenchResult, bench
from fuseq.evaluate.bench_rows import BenchRow
from fuseq.options import QuantizeOptions
from fuseq.passes.typing import set_precision
from fuseq.quantizing import quantize
from fuseq.report.bench import bench_table
from fuseq.report.bench_document import bench_document
from fuseq.report.shares import by_precision, shares
from tests.graphs import from_text, named, normal

TARGET = "tensorrt-rtx:sm89"
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def pairs_everywhere(model: ir.Model, op_types: tuple[str, ...]) -> ir.Model:
    """INT8 Q/DQ on the data of every such node, and per channel on its weight."""
    graph = model.graph
    for node in [node for node in graph if node.op_type in op_types]:
        for place, value in enumerate(node.inputs[:2]):
            assert value is not None
            weight = value.const_value
            axis = 1 if node.op_type in ("ConvTranspose", "MatMul") else 0
            scales = np.asarray(0.02, np.float32)
            if weight is not None:
                array = weight.numpy()
                others = tuple(a for a in range(array.ndim) if a != axis)
                scales = (np.abs(array).max(axis=others) / 127).astype(np.float32)
            scale = ir.Value(name=f"{node.name}_s{place}", const_value=ir.tensor(scales))
            zeros = ir.Value(
                name=f"{node.name}_z{place}", const_value=ir.tensor(np.zeros(scales.shape, np.int8))
            )
            graph.register_initializer(scale)
            graph.register_initializer(zeros)
            attributes = {"axis": axis} if scales.ndim else {}
            q = ir.node("QuantizeLinear", [value, scale, zeros], attributes)
            d = ir.node("DequantizeLinear", [q.outputs[0], scale, zeros], attributes)
            q.name, d.name = f"{node.name}_q{place}", f"{node.name}_d{place}"
            graph.insert_before(node, [q, d])
            node.replace_input_with(place, d.outputs[0])
    return ir.from_proto(ir.to_proto(model))


def conv_silu() -> ir.Model:
    """K5: Conv-act-Conv-act, float between."""
    text = f"""{HEAD}
    net (float[8, 64, 56, 56] x) => (float[8, 64, 56, 56] y) {{
      a = Conv <pads = [1, 1, 1, 1]> (x, w1)  sa = Sigmoid(a)  b = Mul(a, sa)
      c = Conv <pads = [1, 1, 1, 1]> (b, w2)  sc = Sigmoid(c)  d = Mul(c, sc)
      y = Conv <pads = [1, 1, 1, 1]> (d, w3) }}"""
    weights = {f"w{i}": normal(64, 64, 3, 3, seed=i) for i in (1, 2, 3)}
    return named(from_text(text, **weights))


def hifi_gan() -> ir.Model:
    """K21: ConvTranspose1d, then Conv1d-LeakyRelu-Conv1d with a skip, three times."""
    lines, weights = [], {"wt": normal(64, 64, 4)}
    for i in range(3):
        weights |= {f"u{i}": normal(64, 64, 3, seed=i), f"v{i}": normal(64, 64, 3, seed=9 + i)}
        lines.append(
            f"""a{i} = LeakyRelu(x{i})  b{i} = Conv <pads = [1, 1]> (a{i}, u{i})
            c{i} = LeakyRelu(b{i})  d{i} = Conv <pads = [1, 1]> (c{i}, v{i})
            x{i + 1} = Add(d{i}, x{i})"""
        )
    text = f"""{HEAD}
    net (float[1, 64, 2048] x) => (float[1, 64, 4096] x3) {{
      x0 = ConvTranspose <strides = [2], pads = [1, 1]> (x, wt)
      {" ".join(lines)} }}"""
    return named(from_text(text, **weights))


def mobilenet_v3() -> ir.Model:
    """K29: expand, depthwise, squeeze and excite, project, skip."""
    text = f"""{HEAD}
    net (float[8, 40, 28, 28] x) => (float[8, 40, 28, 28] y) {{
      a = Conv (x, we)  b = HardSwish(a)
      c = Conv <group = 240, pads = [2, 2, 2, 2]> (b, wd)  d = HardSwish(c)
      p = GlobalAveragePool(d)  q = Conv (p, w1)  r = Relu(q)  s = Conv (r, w2)  t = HardSigmoid(s)
      m = Mul(d, t)  z = Conv (m, wp)  y = Add(z, x) }}"""
    return named(
        from_text(
            text,
            we=normal(240, 40, 1, 1, seed=1),
            wd=normal(240, 1, 5, 5, seed=2),
            w1=normal(64, 240, 1, 1, seed=3),
            w2=normal(240, 64, 1, 1, seed=4),
            wp=normal(40, 240, 1, 1, seed=5),
        )
    )


def deformable() -> ir.Model:
    """K23: linear layers around a GridSample, which no compiler quantizes."""
    text = f"""{HEAD}
    net (float[4, 256, 256] x, float[4, 1024, 1, 2] grid) => (float[4, 1024, 256] y)
    <int64[4] image = {{4, 256, 16, 16}}, int64[3] flat = {{4, 256, 1024}}> {{
      v = MatMul(x, wv)  i = Reshape(v, image)
      g = GridSample <mode = "linear"> (i, grid)
      f = Reshape(g, flat)  t = Transpose <perm = [0, 2, 1]> (f)
      y = MatMul(t, wo) }}"""
    return named(from_text(text, wv=normal(256, 256, seed=1), wo=normal(256, 256, seed=2)))


def in_fp16(model: ir.Model) -> ir.Model:
    set_precision(model, "fp16")
    return model


def beside_fp16(float_model: ir.Model, quantized: ir.Model) -> BenchResult:
    models = {"fp16": in_fp16(float_model), "int8": in_fp16(quantized)}
    result = bench(models, BenchOptions(target=TARGET))
    assert result.exit_code == 1  # nothing was measured here
    return result


@pytest.mark.parametrize(
    ("build", "op_types"),
    [(conv_silu, ("Conv",)), (hifi_gan, ("Conv", "ConvTranspose")), (mobilenet_v3, ("Conv",))],
    ids=["K5", "K21", "K29"],
)
def test_int8_that_gains_nothing_is_said_before_anything_is_built_on_a_gpu(build, op_types) -> None:  # type: ignore[no-untyped-def]
    result = beside_fp16(build(), pairs_everywhere(build(), op_types))
    row = result.rows[1]
    assert row.predicted_ratio is not None
    assert row.predicted_ratio < 1.02
    (finding,) = result.findings
    assert finding.startswith(("int8 is slower than fp16", "int8 is no faster than fp16"))
    assert "(predicted); see `fuseq check`" in finding
    assert row.engine is not None
    assert len(row.engine.alone) >= 1  # kernels that only quantize are counted beside it
    cells = [str(cell) for column in bench_table(result).columns for cell in column._cells]
    assert f"{row.predicted_ratio:.3f}" in cells


@pytest.mark.parametrize("build", [conv_silu, hifi_gan, mobilenet_v3], ids=["K5", "K21", "K29"])
def test_what_fuseq_quantizes_instead_is_never_slower_than_fp16(build) -> None:  # type: ignore[no-untyped-def]
    model = build()
    spec = model.graph.inputs[0]
    data = {"x": normal(*spec.shape.numpy(), scale=1.0)}
    options = QuantizeOptions(format="int8", target=TARGET, policy="pays", batch=8)
    done = quantize(model, calib=[data], options=options)
    result = bench({"fp16": in_fp16(build()), "fuseq": done.model}, BenchOptions(target=TARGET))
    ratio = result.rows[1].predicted_ratio
    assert ratio is not None
    assert ratio >= 0.999
    assert all(region.reason for region in done.plan.regions)


def test_k23_what_is_still_float_has_its_time() -> None:
    result = beside_fp16(deformable(), pairs_everywhere(deformable(), ("MatMul",)))
    engine = bench_document(result).engines[1]
    parts = {share.key: share for share in shares(engine, by_precision)}
    still_float = [k for k in engine.kernels if k.precision in ("fp16", "fp32") and not k.alone]
    sampler = next(k for k in still_float if "GridSample" in _operators(k.nodes))
    products = [k for k in engine.kernels if k.compute_dtype == "int8"]
    assert [k.type for k in products] == ["gemm", "gemm"]
    assert parts["int8"].time_us >= sum(k.predicted_us or 0 for k in products)
    assert parts[sampler.precision].time_us == pytest.approx(
        sum(k.predicted_us or 0 for k in still_float if k.precision == sampler.precision)
    )
    assert sum(share.part for share in parts.values()) == pytest.approx(1.0)


def _operators(nodes: tuple[str, ...]) -> set[str]:
    by_name = {node.name: node.op_type for node in deformable().graph}
    return {by_name[name] for name in nodes if name in by_name}


def test_a_baseline_in_fp32_flatters_and_is_said_to() -> None:
    models = {"float": conv_silu(), "fp16": in_fp16(conv_silu())}
    (finding,) = bench(models, BenchOptions(target=TARGET)).findings
    assert finding.startswith("float computes in FP32, as its file says: ratios to it flatter.")
    assert (
        bench(dict(reversed(models.items())), BenchOptions(target=TARGET))
        .findings[0]
        .startswith("float is slower than fp16")
    )


def test_rows_without_an_engine_have_no_kernels() -> None:
    result = BenchResult("trtexec", (BenchRow("a", "a.json", None),))
    assert bench_document(result).engines == ()
