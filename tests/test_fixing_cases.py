"""fix on the cases that users of this field met."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fuseq.fixing import fix
from tests.graphs import attention_net, from_text, named, normal
from tests.quantized_nets import CPU, HEAD, RTX, TRT, naive_block, quantized_by_fuseq, scales_at


def test_k3_resize_has_one_scale_on_both_sides() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 16, 16] y)
            <float s = {{0.02}}, float t = {{0.03}}, int8 z = {{0}}, float[4] by = {{1.0, 1.0, 2.0, 2.0}}> {{
              e1 = DequantizeLinear(w1, s)
              c = Conv <kernel_shape = [1, 1]> (x, e1)
              r = Relu(c)
              q0 = QuantizeLinear(r, s, z)
              d0 = DequantizeLinear(q0, s, z)
              u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (d0, , by)
              q1 = QuantizeLinear(u, t, z)
              d1 = DequantizeLinear(q1, t, z)
              e2 = DequantizeLinear(w2, s)
              y = Conv <kernel_shape = [1, 1]> (d1, e2)
            }}""",
            w1=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            w2=np.random.default_rng(1).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
        )
    )
    result = fix(model, options=RTX)
    assert len(set(scales_at(result.model).values())) == 1
    assert result.engine is not None


def test_k7_the_pair_on_the_convolutions_edge_of_an_add_goes() -> None:
    model = naive_block()
    graph = model.graph
    add = next(node for node in graph if node.op_type == "Add")
    scale, zero = graph.initializers["s0"], graph.initializers["z"]
    quantize = ir.node("QuantizeLinear", [add.inputs[0], scale, zero], name="edge_q")
    quantize.outputs[0].name, quantize.outputs[0].type = "edge_q", ir.TensorType(ir.DataType.INT8)
    dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero], name="edge_dq")
    dequantize.outputs[0].name, dequantize.outputs[0].type = (
        "edge_dq",
        ir.TensorType(ir.DataType.FLOAT),
    )
    graph.insert_before(add, [quantize, dequantize])
    add.replace_input_with(0, dequantize.outputs[0])
    result = fix(model, options=TRT)
    assert "n_s[0]" not in scales_at(result.model) and "n_s[1]" in scales_at(result.model)
    (removed,) = [c for c in result.changes if c.action == "removed"]
    assert removed.tensor == "c2" and "reads it in float" in removed.reason


def test_k15_two_convolutions_of_one_tensor_share_the_larger_scale() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] a, float[1, 16, 8, 8] b)
            <float s1 = {{0.0625}}, float s2 = {{0.125}}, int8 z = {{0}}> {{
              q1 = QuantizeLinear(x, s1, z)
              d1 = DequantizeLinear(q1, s1, z)
              e1 = DequantizeLinear(w, s1)
              a = Conv <kernel_shape = [1, 1]> (d1, e1)
              q2 = QuantizeLinear(x, s2, z)
              d2 = DequantizeLinear(q2, s2, z)
              e2 = DequantizeLinear(w, s2)
              b = Conv <kernel_shape = [1, 1]> (d2, e2)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
        )
    )
    result = fix(model, options=TRT)
    assert scales_at(result.model) == {"n_a[0]": 0.125, "n_b[0]": 0.125}
    assert sum(node.op_type == "QuantizeLinear" for node in result.model.graph) == 1
    (change,) = [c for c in result.changes if c.tensor == "x" and c.action == "rescaled"]
    assert change.reason == "the largest of the 2 scales that the file has for it"


def test_k13_the_transposed_branch_of_a_concat_is_float_and_the_others_are_not() -> None:
    text = f"""{HEAD}
    g (float[1, 16, 4, 4] x, float[1, 16, 8, 8] z) => (float[1, 16, 8, 8] y)
    <float s = {{0.03125}}, int8 i = {{0}}> {{
      et = DequantizeLinear <axis = 1> (wt, t)
      a = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (x, et)
      qz = QuantizeLinear(z, s, i)
      dz = DequantizeLinear(qz, s, i)
      e1 = DequantizeLinear(w1, s)
      b = Conv <kernel_shape = [1, 1]> (dz, e1)
      e2 = DequantizeLinear(w2, s)
      c = Conv <kernel_shape = [1, 1]> (dz, e2)
      k = Concat <axis = 1> (a, b, c)
      q = QuantizeLinear(k, s, i)
      d = DequantizeLinear(q, s, i)
      e3 = DequantizeLinear(w3, s)
      y = Conv <kernel_shape = [1, 1]> (d, e3)
    }}"""
    rng = np.random.default_rng(0)
    shapes = {
        "wt": (16, 16, 2, 2),
        "w1": (16, 16, 1, 1),
        "w2": (16, 16, 1, 1),
        "w3": (16, 48, 1, 1),
    }
    weights = {n: rng.integers(-127, 128, shape).astype(np.int8) for n, shape in shapes.items()}
    model = named(from_text(text, t=np.full(16, 0.01, np.float32), **weights))
    result = fix(model, options=RTX)
    assert scales_at(result.model) == dict.fromkeys(("n_b[0]", "n_c[0]", "n_y[0]"), 0.03125)
    (region,) = [r for r in result.plan.regions if r.name == "n_a"]
    assert not region.quantized and "runs ConvTranspose in FP16" in region.reason
    (weight,) = [c for c in result.changes if c.action == "removed"]
    assert weight.tensor == "wt" and weight.reason == region.reason
    assert result.engine is not None


def test_k49_a_transposed_convolution_is_left_float_on_rtx() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 9, 9] y)
            <float s = {{0.02}}, int8 z = {{0}}> {{
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              v = QuantizeLinear <axis = 1> (w, t, wz)
              e = DequantizeLinear <axis = 1> (v, t, wz)
              y = ConvTranspose <kernel_shape = [2, 2]> (d, e)
            }}""",
            w=normal(16, 16, 2, 2),
            t=np.full(16, 0.003, np.float32),
            wz=np.zeros(16, np.int8),
        )
    )
    result = fix(model, options=RTX)
    assert [node.op_type for node in result.model.graph if "Cast" not in node.op_type] == [
        "ConvTranspose"
    ]
    reasons = {c.reason for c in result.changes if c.action == "removed"}
    assert any("runs ConvTranspose in FP16" in reason for reason in reasons)


def test_k25_depthwise_with_silu_is_left_float_and_builds() -> None:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {{0.02}}, int8 z = {{0}}> {{
              q = QuantizeLinear(x, s, z)
              d = DequantizeLinear(q, s, z)
              e = DequantizeLinear(w, s)
              c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 16> (d, e)
              b = BatchNormalization(c, one, zero, zero, one)
              g = Sigmoid(b)
              m = Mul(b, g)
              q1 = QuantizeLinear(m, s, z)
              y = DequantizeLinear(q1, s, z)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 1, 3, 3)).astype(np.int8),
            one=np.ones(16, np.float32),
            zero=np.zeros(16, np.float32),
        )
    )
    for options in (RTX, TRT):
        result = fix(model, options=options)
        assert not any("Quantize" in node.op_type for node in result.model.graph)
        assert result.engine is not None


def test_k17_k19_pools_concat_and_silu_add_share_scales() -> None:
    """SPPF: pairs with one scale through MaxPool and Concat, where the reader is quantized."""
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
            <float s = {{0.02}}, int8 z = {{0}}> {{
              e = DequantizeLinear(w, s)
              c = Conv <kernel_shape = [1, 1]> (x, e)
              g = Sigmoid(c)
              m = Mul(c, g)
              a = Add(m, x)
              p1 = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (a)
              p2 = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (p1)
              k = Concat <axis = 1> (a, p1, p2)
              q = QuantizeLinear(k, s, z)
              d = DequantizeLinear(q, s, z)
              e2 = DequantizeLinear(w2, s)
              y = Conv <kernel_shape = [1, 1]> (d, e2)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
            w2=np.random.default_rng(1).integers(-127, 128, (16, 48, 1, 1)).astype(np.int8),
        )
    )
    batches = [{"x": normal(1, 16, 8, 8, seed=3, scale=0.3)}]
    on_cpu = scales_at(fix(model, options=CPU, calib=batches).model)
    shared = ("n_p1[0]", "n_p2[0]", "n_k[0]", "n_k[1]", "n_k[2]", "n_y[0]")
    assert {on_cpu[reader] for reader in shared} == {np.float32(0.02)}
    result = fix(model, options=RTX)
    assert scales_at(result.model) == dict.fromkeys(("n_c[0]", "n_y[0]"), np.float32(0.02))
    (added,) = [c for c in result.changes if c.action == "added" and c.kind == "activation"]
    assert added.tensor == "x" and "estimate: taken to stay within the sum" in added.reason
    assert result.engine is not None


def test_k33_a_softmax_without_a_pair_gets_the_known_scale() -> None:
    net = attention_net(length=128, size=64)
    model, _ = quantized_by_fuseq(net, "tensorrt-rtx:sm89", "fp8", "fp16")
    graph = model.graph
    softmax = next(node for node in graph if node.op_type == "Softmax")
    pair = next(iter(softmax.outputs[0].uses())).node
    behind = next(iter(pair.outputs[0].uses())).node
    behind.outputs[0].replace_all_uses_with(softmax.outputs[0])
    graph.remove([behind, pair], safe=True)
    result = fix(model, options=RTX)
    product = next(
        iter(next(n for n in result.model.graph if n.op_type == "Softmax").outputs[0].uses())
    ).node
    assert product.op_type == "QuantizeLinear"
    assert float(product.inputs[1].const_value.numpy()) == np.float32(np.float16(1 / 448))
    (added,) = [c for c in result.changes if c.action == "added"]
    assert "scale known by definition" in added.reason


def test_k53_a_zero_scale_leaves_the_layer_float_and_names_it() -> None:
    model = naive_block()
    model.graph.initializers["s1"].const_value = ir.tensor(np.float32(0.0))
    result = fix(model, options=RTX)
    (mended,) = [c for c in result.changes if c.action == "mended"]
    assert mended.tensor == "r1" and "not above 0" in mended.reason
    assert mended.nodes == ("n_q1", "n_d1")
    assert "n_c2[0]" not in scales_at(result.model)


def test_k65_names_of_the_result_are_unique() -> None:
    model = naive_block()
    taken = [value.name for node in fix(model, options=TRT).model.graph for value in node.outputs]
    assert len(set(taken)) == len(taken)
