"""Cases that users of full TensorRT met (K numbers: the case list), with their right outcome.

Each network is the smallest that shows the case; shapes are small, so kernels and types are asserted,
not times.
"""

from __future__ import annotations

from fuseq.targets.base import KernelType
from tests.targets.tensorrt_models import by_operator, net, simulate, types

SHAPE = "float[1, 32, 8, 8]"
SAME = "<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
W = "Weight<32, 32, 3, 3> ()"


def residual(identity: str, conv: str = "c2", behind: str = "") -> str:
    """Conv-Relu-Conv and the input itself, added: ``identity`` and ``conv`` name the Add's inputs."""
    return f"""
      x0 = Relu(x)
      xd = Pair<0.1>(x0)
      w1 = {W}
      c1 = Conv {SAME} (xd, w1)
      r1 = Relu(c1)
      rd = Pair<0.2>(r1)
      w2 = {W}
      c2 = Conv {SAME} (rd, w2)
      {behind}
      s = Add({conv}, {identity})
      r2 = Relu(s)
      od = Pair<0.3>(r2)
      w3 = {W}
      y = Conv {SAME} (od, w3)
    """


# K1: pair on the identity branch only, none on the convolution's edge.


def test_k1_float_shortcut_leaves_the_next_quantizer_alone() -> None:
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", residual("x0")))
    fused = by_operator(engine, "Add")[0]
    assert fused.type is KernelType.CONVOLUTION and fused.compute_dtype == "int8"
    assert fused.outputs[0].dtype == "fp32"
    assert not [node for node in fused.nodes if node.startswith("QuantizeLinear_od")]
    alone = [kernel.nodes for kernel in engine.alone]
    assert [nodes[-1].split("_")[1] for nodes in alone] == ["xd", "od"]


def test_k1_shortcut_pair_makes_the_block_int8_from_end_to_end() -> None:
    engine = simulate(
        net(f"({SHAPE} x) => ({SHAPE} y)", residual("xi", behind="xi = Pair<0.1>(x0)"))
    )
    fused = by_operator(engine, "Add")[0]
    assert [tensor.dtype for tensor in fused.inputs] == ["int8", "int8"]
    assert fused.outputs[0].dtype == "int8"
    # Relu and its Q, three convolutions, and nothing that only quantizes but the first
    assert types(engine) == ["elementwise", "quantize", *["convolution"] * 3]


# K7: a pair on both inputs of the Add keeps the Add out of the convolution.


def test_k7_pair_on_the_convolutions_edge_costs_a_kernel() -> None:
    both = "xi = Pair<0.1>(x0)\nce = Pair<0.4>(c2)"
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", residual("xi", "ce", both)))
    add = by_operator(engine, "Add")[0]
    assert add.type is KernelType.ELEMENTWISE
    assert [tensor.dtype for tensor in (*add.inputs, *add.outputs)] == ["int8"] * 3
    assert types(engine).count("elementwise") == 2
    assert len(engine.kernels) == 6


# K9: the branches begin with different operators; only the one that is not fused gets a pair.


def test_k9_shortcut_through_max_pool() -> None:
    def body(pool: str) -> str:
        return f"""
          xd = Pair<0.1>(x)
          w1 = Weight<32, 32, 3, 3> ()
          c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (xd, w1)
          p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
          {pool}
          s = Add(c, i)
          od = Pair<0.3>(s)
          w2 = {W}
          y = Conv {SAME} (od, w2)
        """

    signature = f"({SHAPE} x) => (float[1, 32, 4, 4] y)"
    engine = simulate(net(signature, body("i = Pair<0.1>(p)")))
    assert types(engine) == ["quantize", "pool", "convolution", "convolution"]
    pool = by_operator(engine, "MaxPool")[0]
    assert pool.inputs[0].dtype == pool.outputs[0].dtype == "int8"  # one Q, moved before the pool
    assert by_operator(engine, "Add")[0].outputs[0].dtype == "int8"
    unpaired = simulate(net(signature, body("i = Identity(p)")))
    assert [k.type for k in unpaired.alone] == [KernelType.QUANTIZE] * 2
    assert by_operator(unpaired, "MaxPool")[0].inputs[0].dtype == "fp32"


# K3: nearest resizing between quantized convolutions moves 8-bit data.


def resize(before: str, behind: str) -> str:
    return f"""
      xd = Pair<0.1>(x)
      w1 = {W}
      c1 = Conv {SAME} (xd, w1)
      r1 = Relu(c1)
      {before}
      u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                  nearest_mode = "floor"> (rd, , scales)
      {behind}
      w2 = {W}
      y = Conv {SAME} (ud, w2)
    """


def test_k3_resize_moves_int8_with_one_scale_on_both_sides() -> None:
    signature = f"({SHAPE} x) => (float[1, 32, 16, 16] y) <float[4] scales = {{1, 1, 2, 2}}>"
    for before, behind in (
        ("rd = Identity(r1)", "ud = Pair<0.2>(u)"),  # "no need to insert Q/DQ before resize"
        ("rd = Pair<0.2>(r1)", "ud = Pair<0.2>(u)"),
        ("rd = Pair<0.2>(r1)", "ud = Identity(u)"),
    ):
        engine = simulate(net(signature, resize(before, behind)))
        assert types(engine) == ["quantize", "convolution", "resize", "convolution"]
        assert {t.dtype for t in engine.kernels[2].inputs + engine.kernels[2].outputs} == {"int8"}


def test_k3_two_scales_around_resize_cost_a_kernel() -> None:
    signature = f"({SHAPE} x) => (float[1, 32, 16, 16] y) <float[4] scales = {{1, 1, 2, 2}}>"
    engine = simulate(net(signature, resize("rd = Pair<0.2>(r1)", "ud = Pair<0.3>(u)")))
    assert types(engine) == ["quantize", "convolution", "quantize", "resize", "convolution"]
    rescale = engine.kernels[2]
    assert rescale.inputs[0].dtype == rescale.outputs[0].dtype == "int8"


def test_k3_linear_resize_stays_float() -> None:
    signature = f"({SHAPE} x) => (float[1, 32, 16, 16] y) <float[4] scales = {{1, 1, 2, 2}}>"
    body = resize("rd = Identity(r1)", "ud = Pair<0.2>(u)").replace('"nearest"', '"linear"')
    engine = simulate(net(signature, body))
    assert types(engine) == ["quantize", "convolution", "resize", "quantize", "convolution"]
    assert engine.kernels[2].inputs[0].dtype == "fp32"


# K5: a pair before every Conv is enough for 8-bit tensors between them, whatever the activation.


def test_k5_pairs_on_inputs_keep_tensors_int8_between_convolutions() -> None:
    for activation in (
        "a = Relu(c1)",
        "a = LeakyRelu <alpha = 0.1> (c1)",
        "a = HardSwish(c1)",
        "g = Sigmoid(c1)\na = Mul(c1, g)",
    ):
        body = f"""
          xd = Pair<0.1>(x)
          w1 = {W}
          c1 = Conv {SAME} (xd, w1)
          {activation}
          ad = Pair<0.2>(a)
          w2 = {W}
          y = Conv {SAME} (ad, w2)
        """
        engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
        assert types(engine) == ["quantize", "convolution", "convolution"], activation
        assert engine.kernels[1].outputs[0].dtype == "int8"
        assert engine.kernels[2].outputs[0].dtype == "fp32"


def test_k5_a_float_reader_keeps_the_convolution_float() -> None:
    body = f"""
      xd = Pair<0.1>(x)
      w1 = {W}
      c1 = Conv {SAME} (xd, w1)
      a = Relu(c1)
      ad = Pair<0.2>(a)
      w2 = {W}
      y = Conv {SAME} (ad, w2)
      z = Tanh(a)
    """
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y, {SHAPE} z)", body))
    assert by_operator(engine, "Relu")[0].outputs[0].dtype == "fp32"
    assert len(engine.alone) == 2


# K13: Q behind Concat goes to each branch and fuses into the convolutions, not into ConvTranspose.


def test_k13_concat_leaves_the_transposed_branch_stranded() -> None:
    body = f"""
      xd = Pair<0.1>(x)
      w1 = Weight<32, 32, 3, 3> ()
      w2 = {W}
      w3 = {W}
      t = ConvTranspose {SAME} (xd, w1)
      c1 = Conv {SAME} (xd, w2)
      r1 = Relu(c1)
      c2 = Conv {SAME} (xd, w3)
      j = Concat <axis = 1> (t, r1, c2)
      jd = Pair<0.2>(j)
      w4 = Weight<32, 96, 3, 3> ()
      y = Conv {SAME} (jd, w4)
    """
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    assert sorted(types(engine)) == [*["convolution"] * 4, "quantize", "quantize"]
    transposed = by_operator(engine, "ConvTranspose")[0]
    assert transposed.compute_dtype == "int8" and transposed.outputs[0].dtype == "fp32"
    stranded = engine.alone[1]
    assert stranded.inputs[0].name == "t" and stranded.nodes[0].startswith("QuantizeLinear_jd")
    assert by_operator(engine, "Relu")[0].outputs[0].dtype == "int8"
    assert not [k for k in engine.kernels if k.type is KernelType.MOVE]  # Concat copies nothing


def test_k13_a_pair_of_its_own_fuses_into_convtranspose() -> None:
    body = f"""
      xd = Pair<0.1>(x)
      w1 = Weight<32, 32, 3, 3> ()
      t = ConvTranspose {SAME} (xd, w1)
      td = Pair<0.2>(t)
      w2 = {W}
      y = Conv {SAME} (td, w2)
    """
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    assert types(engine) == ["quantize", "convolution", "convolution"]
    assert by_operator(engine, "ConvTranspose")[0].outputs[0].dtype == "int8"


# K15: two convolutions of one tensor merge when they share its pair.


def siblings(first: str, second: str, geometry: str = SAME, size: int = 3) -> str:
    return f"""
      {first}
      {second}
      w1 = {W}
      w2 = Weight<16, 32, {size}, {size}> ()
      a = Conv {SAME} (x1, w1)
      b = Conv {geometry} (x2, w2)
    """


def test_k15_one_shared_pair_merges_the_convolutions() -> None:
    signature = f"({SHAPE} x) => ({SHAPE} a, float[1, 16, 8, 8] b)"
    for second in ("x2 = Identity(x1)", "x2 = Pair<0.1>(x)"):  # equal pairs become one
        engine = simulate(net(signature, siblings("x1 = Pair<0.1>(x)", second)))
        assert types(engine) == ["quantize", "convolution"], second
        assert [tensor.name for tensor in engine.kernels[1].outputs] == ["a", "b"]
        assert engine.kernels[1].flops == 2 * 64 * (32 + 16) * 32 * 9


def test_k15_pairs_of_two_scales_keep_them_apart() -> None:
    signature = f"({SHAPE} x) => ({SHAPE} a, float[1, 16, 8, 8] b)"
    engine = simulate(net(signature, siblings("x1 = Pair<0.1>(x)", "x2 = Pair<0.2>(x)")))
    assert sorted(types(engine)) == ["convolution", "convolution", "quantize", "quantize"]


def test_k15_another_kernel_size_keeps_them_apart() -> None:
    signature = f"({SHAPE} x) => ({SHAPE} a, float[1, 16, 8, 8] b)"
    one = siblings("x1 = Pair<0.1>(x)", "x2 = Identity(x1)", "<kernel_shape = [1, 1]>", 1)
    assert types(simulate(net(signature, one))) == ["quantize", "convolution", "convolution"]


# K17: SPPF. One scale through MaxPool and Concat: pools move 8-bit data, Concat copies nothing.

POOL = "MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]>"


def sppf(pools: str) -> str:
    return f"""
      xd = Pair<0.1>(x)
      w1 = {W}
      c = Conv {SAME} (xd, w1)
      g = Sigmoid(c)
      a = Mul(c, g)
      {pools}
      j = Concat <axis = 1> (a, p1, p2, p3)
      jd = Pair<0.2>(j)
      w2 = Weight<32, 128, 1, 1> ()
      y = Conv <kernel_shape = [1, 1]> (jd, w2)
    """


def test_k17_one_pair_behind_concat_is_enough_for_the_whole_pyramid() -> None:
    pools = f"p1 = {POOL} (a)\np2 = {POOL} (p1)\np3 = {POOL} (p2)"
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", sppf(pools)))
    assert types(engine) == ["quantize", "convolution", *["pool"] * 3, "convolution"]
    assert {t.dtype for k in engine.kernels[2:5] for t in k.inputs + k.outputs} == {"int8"}


def test_k17_pairs_of_one_scale_on_each_pool_do_no_harm() -> None:
    pools = f"""
      q1 = Pair<0.2>(a)
      p1 = {POOL} (q1)
      q2 = Pair<0.2>(p1)
      p2 = {POOL} (q2)
      q3 = Pair<0.2>(p2)
      p3 = {POOL} (q3)
    """
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", sppf(pools)))
    assert types(engine) == ["quantize", "convolution", *["pool"] * 3, "convolution"]


def test_k17_another_scale_in_the_pyramid_costs_kernels() -> None:
    pools = f"q1 = Pair<0.3>(a)\np1 = {POOL} (q1)\np2 = {POOL} (p1)\np3 = {POOL} (p2)"
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", sppf(pools)))
    assert len(engine.alone) > 1


# K19: SiLU, then an Add. With pairs on both inputs and quantized readers the Add runs in INT8.


def silu_add(left: str, right: str, behind: str) -> str:
    return f"""
      xd = Pair<0.1>(x)
      w1 = {W}
      c = Conv {SAME} (xd, w1)
      g = Sigmoid(c)
      a = Mul(c, g)
      ad = {left}
      xi = {right}
      s = Add(ad, xi)
      {behind}
    """


READER = f"sd = Pair<0.3>(s)\nw2 = {W}\ny = Conv {SAME} (sd, w2)"


def test_k19_quantized_readers_behind_the_add_keep_it_int8() -> None:
    body = silu_add("Pair<0.2>(a)", "Pair<0.1>(x)", READER)
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    assert types(engine) == ["quantize", "convolution", "elementwise", "convolution"]
    add = by_operator(engine, "Add")[0]
    assert {tensor.dtype for tensor in (*add.inputs, *add.outputs)} == {"int8"}


def test_k19_without_a_quantizer_behind_the_add_both_pairs_run_alone() -> None:
    body = silu_add("Pair<0.2>(a)", "Pair<0.1>(x)", "y = Tanh(s)")
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    add = by_operator(engine, "Add")[0]
    assert {tensor.dtype for tensor in (*add.inputs, *add.outputs)} == {"fp32"}
    assert [k.type for k in engine.alone] == [
        KernelType.QUANTIZE, KernelType.DEQUANTIZE, KernelType.DEQUANTIZE,
    ]  # fmt: skip


def test_k19_float_add_is_never_fused_behind_an_activation() -> None:
    body = silu_add("Identity(a)", "Identity(x)", READER)
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    assert by_operator(engine, "Add")[0].type is KernelType.ELEMENTWISE
    assert len(engine.alone) == 2


# K25: a quantized depthwise convolution takes Relu, not SiLU, which an ordinary one takes.


def depthwise(activation: str, groups: int = 32) -> str:
    return f"""
      xd = Pair<0.1>(x)
      w1 = Weight<32, {32 // groups}, 3, 3> ()
      c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = {groups}> (xd, w1)
      b = BatchNormalization (c, one, zero, zero, one)
      {activation}
      ad = Pair<0.2>(a)
      w2 = Weight<32, 32, 1, 1> ()
      y = Conv <kernel_shape = [1, 1]> (ad, w2)
    """


ONES = (
    "<float[32] one = {"
    + ", ".join(["1"] * 32)
    + "}, float[32] zero = {"
    + ", ".join(["0"] * 32)
    + "}>"
)


def test_k25_depthwise_with_silu_is_split_and_says_so() -> None:
    signature = f"({SHAPE} x) => ({SHAPE} y) {ONES}"
    engine = simulate(net(signature, depthwise("g = Sigmoid(b)\na = Mul(b, g)")))
    convolution = by_operator(engine, "BatchNormalization")[0]
    assert convolution.compute_dtype == "int8" and convolution.outputs[0].dtype == "fp32"
    assert types(engine) == ["quantize", "convolution", "elementwise", "quantize", "convolution"]
    (note,) = [note for note in engine.notes if "depthwise" in note]
    assert "Conv_c_" in note and "Mul" in note


def test_k25_depthwise_with_relu_and_ordinary_with_silu_are_one_kernel() -> None:
    signature = f"({SHAPE} x) => ({SHAPE} y) {ONES}"
    for body in (depthwise("a = Relu(b)"), depthwise("g = Sigmoid(b)\na = Mul(b, g)", groups=1)):
        engine = simulate(net(signature, body))
        assert types(engine) == ["quantize", "convolution", "convolution"]
        assert engine.kernels[1].outputs[0].dtype == "int8"
        assert len(engine.notes) == 1


# Where pairs do not matter: FP16 networks.


def test_fp16_network_fuses_bias_activation_add_and_pads_nothing() -> None:
    body = f"""
      a = Conv {SAME} (x, w)
      b = Relu(a)
      c = Conv {SAME} (b, w)
      s = Add(c, x)
      r = Relu(s)
      p = GlobalAveragePool(r)
      y = Flatten(p)
    """
    values = ", ".join(["0"] * 32 * 32 * 9)
    signature = (
        f"(float16[1, 32, 8, 8] x) => (float16[1, 32] y) <float16[32, 32, 3, 3] w = {{{values}}}>"
    )
    engine = simulate(net(signature, body))
    assert types(engine) == ["move", "convolution", "convolution", "pool"]
    assert {t.dtype for k in engine.kernels for t in k.inputs + k.outputs} == {"fp16"}
    assert [len(kernel.inputs) for kernel in engine.kernels] == [1, 1, 2, 1]


def test_only_an_image_convolution_takes_its_pool() -> None:
    for channels, expected in ((3, "ConvActPool"), (32, "CaskConvolution")):
        body = f"""
          xd = Pair<0.1>(x)
          w1 = Weight<32, {channels}, 3, 3> ()
          c = Conv {SAME} (xd, w1)
          r = Relu(c)
          p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
          pd = Pair<0.2>(p)
          w2 = {W}
          y = Conv {SAME} (pd, w2)
        """
        signature = f"(float[1, {channels}, 8, 8] x) => (float[1, 32, 4, 4] y)"
        assert simulate(net(signature, body)).kernels[1].compiler_type == expected


def test_requantized_output_is_a_kernel_of_its_own() -> None:
    body = f"""
      xd = Pair<0.1>(x)
      w1 = {W}
      c = Conv {SAME} (xd, w1)
      a = Pair<0.2>(c)
      b = Pair<0.3>(a)
      w2 = {W}
      y = Conv {SAME} (b, w2)
    """
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    assert types(engine) == ["quantize", "convolution", "quantize", "convolution"]
    assert engine.kernels[2].inputs[0].dtype == engine.kernels[2].outputs[0].dtype == "int8"


def test_weights_alone_quantized_are_computed_at_build_time() -> None:
    body = f"w = {W}\ny = Conv {SAME} (x, w)"
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y)", body))
    convolution = engine.kernels[-2]
    assert convolution.compute_dtype == "tf32" and convolution.weights_bytes == 4 * 32 * 32 * 9
    assert not engine.alone


def test_data_alone_quantized_runs_both_alone() -> None:
    values = ", ".join(["0"] * 32 * 32)
    signature = f"({SHAPE} x) => ({SHAPE} y) <float[32, 32, 1, 1] w = {{{values}}}>"
    body = "xd = Pair<0.1>(x)\ny = Conv <kernel_shape = [1, 1]> (xd, w)"
    engine = simulate(net(signature, body))
    assert [kernel.type for kernel in engine.alone] == [KernelType.QUANTIZE, KernelType.DEQUANTIZE]
    assert by_operator(engine, "Conv")[0].compute_dtype == "tf32"


def test_average_pool_is_int8_between_pairs_and_float_without_the_second() -> None:
    def body(behind: str) -> str:
        return f"""
          xd = Pair<0.1>(x)
          w1 = {W}
          c = Conv {SAME} (xd, w1)
          cd = Pair<0.2>(c)
          p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (cd)
          {behind}
        """

    signature = f"({SHAPE} x) => (float[1, 32, 4, 4] y)"
    engine = simulate(
        net(signature, body(f"pd = Pair<0.3>(p)\nw2 = {W}\ny = Conv {SAME} (pd, w2)"))
    )
    assert types(engine) == ["quantize", "convolution", "pool", "convolution"]
    assert {t.dtype for t in engine.kernels[2].inputs + engine.kernels[2].outputs} == {"int8"}
    engine = simulate(net(signature, body("y = Tanh(p)")))
    assert types(engine)[:4] == ["quantize", "convolution", "dequantize", "pool"]


def test_zero_padding_goes_into_a_float_convolution_and_runs_alone_in_int8() -> None:
    pads = "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}"
    values = ", ".join(["0"] * 32 * 32 * 9)
    plain = "p = Pad(x, pads)\ny = Conv <kernel_shape = [3, 3]> (p, w)"
    signature = f"({SHAPE} x) => ({SHAPE} y) <{pads}, float[32, 32, 3, 3] w = {{{values}}}>"
    assert types(simulate(net(signature, plain))) == ["move", "convolution", "move"]
    quantized = (
        f"p = Pad(x, pads)\npd = Pair<0.1>(p)\nw = {W}\ny = Conv <kernel_shape = [3, 3]> (pd, w)"
    )
    engine = simulate(net(f"({SHAPE} x) => ({SHAPE} y) <{pads}>", quantized))
    assert types(engine)[:3] == ["quantize", "move", "convolution"]
    assert by_operator(engine, "Pad")[0].outputs[0].dtype == "int8"
