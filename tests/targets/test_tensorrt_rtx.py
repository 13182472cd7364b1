"""TensorRT-RTX, the real compiler: what it says of small graphs, and what it refuses."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from fuseq.errors import OptionError, TargetError
from fuseq.model import profile_for
from fuseq.passes.typing import set_precision
from fuseq.targets import parse_target
from fuseq.targets.base import KernelType
from fuseq.targets.tensorrt_rtx.layers import parse_layers
from tests.graphs import attention_net, conv_net, from_text, normal

LINE = (
    "Name: node, with a comma, LayerType: correlation, Inputs: [ { Name: a, Dimensions: [1,3,8,8], "
    "Strides: [256,1,32,4], StrideOrder: [3,0,2,1], Datatype: Half, Format: (NHWC) Channel major "
    "format }], Constants: [ { Name: w, Dimensions: [64,3,1,1], Strides: [4,1,4,4], StrideOrder: "
    "[3,0,2,1], Datatype: Int8, Format: (NHWC) Channel major format }, { Name: s, Dimensions: [1], "
    "Strides: [1], StrideOrder: [0], Datatype: Float, Format: (Linear) Row major linear format }], "
    "Outputs: [ { Name: b, Dimensions: [1,64,8,8], Strides: [4096,1,512,64], StrideOrder: [3,0,2,1],"
    " Datatype: Float, Format: (NHWC) Channel major format }], TacticName: t, StreamId: 0, "
    "Metadata: [ONNX Layer: conv][ONNX Layer: relu]"
)


def test_a_line_becomes_a_layer_with_padded_bytes() -> None:
    (layer,) = parse_layers("Layers:\n" + LINE + "\nI/O Tensors:\n Name: a, IOMode: Input")
    assert layer.name == "node, with a comma"
    assert layer.type == "correlation"
    assert layer.nodes == ("conv", "relu")
    # 3 channels are stored as 4: 8 x 8 x 4 halves.
    assert [(t.shape, t.dtype, t.nbytes) for t in layer.inputs] == [((1, 3, 8, 8), "fp16", 512)]
    assert [(t.dtype, t.nbytes) for t in layer.constants] == [("int8", 256), ("fp32", 4)]
    assert [(t.dtype, t.nbytes) for t in layer.outputs] == [("fp32", 16384)]


def test_a_slice_of_a_wide_tensor_moves_only_the_slice() -> None:
    line = LINE.replace("[1,3,8,8], Strides: [256,1,32,4]", "[4,64], Strides: [192,1]")
    (layer,) = parse_layers(line)
    assert layer.inputs[0].nbytes == 4 * 64 * 2


def test_a_kernel_that_comes_from_no_node_is_a_layer_too() -> None:
    """The builder's own changes of layout; the line ends behind "Metadata: "."""
    line = LINE.partition("[ONNX Layer")[0]
    assert [layer.nodes for layer in parse_layers(line)] == [()]
    assert [layer.nodes for layer in parse_layers(line.rstrip() + "\n" + LINE)] == [
        (),
        ("conv", "relu"),
    ]


def test_every_kernel_reads_what_a_kernel_wrote() -> None:
    model = _typed(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[8, 32, 7, 7] x) => (float[8, 32] y)
              <int64[2] axes = {2, 3}, float[640, 32, 1, 1] w, float[640, 32] v>
              { c = Conv (x, w) d = Relu (c) m = ReduceMean <keepdims = 0> (d, axes)
                y = MatMul (m, v) }""",
            w=normal(640, 32, 1, 1),
            v=normal(640, 32),
        )
    )
    engine = parse_target("tensorrt-rtx:sm89").compile(model, profile_for(model))
    assert engine.kernels[2].nodes == ()  # Tran: from channels last to the average's layout
    written = {tensor.name for kernel in engine.kernels for tensor in kernel.outputs}
    for kernel in engine.kernels:
        assert {tensor.name for tensor in kernel.inputs} <= written | {"x"}


def _typed(model: ir.Model, precision: str = "fp16") -> ir.Model:
    set_precision(model, precision)
    return model


def test_a_residual_block_compiles_to_fused_convolutions() -> None:
    model = _typed(conv_net())
    engine = parse_target("tensorrt-rtx:sm89").compile(model, profile_for(model))
    convolutions = [k for k in engine.kernels if k.type is KernelType.CONVOLUTION]
    fused = [set(k.nodes) & {"n_c1", "n_r1", "n_c2", "n_s", "n_r2", "n_y"} for k in convolutions]
    assert fused == [{"n_c1", "n_r1"}, {"n_c2", "n_s", "n_r2"}, {"n_y"}]
    # 2 x 8 x 8 outputs x 16 channels x 16 inputs x 9 taps, and 4 x 4 x 16 x 16 for the last.
    assert [k.flops for k in convolutions] == [294912, 294912, 8192]
    assert {k.compute_dtype for k in convolutions} == {"fp16"}
    assert all(k.predicted_us and k.predicted_us > 0 for k in engine.kernels)
    assert engine.engine_bytes > 0 and engine.plan_bytes is None


def test_attention_is_one_kernel_with_its_products_counted() -> None:
    model = _typed(attention_net(batch=2, heads=2, length=64, size=32))
    engine = parse_target("tensorrt-rtx:sm89").compile(model, profile_for(model), keep_plan=True)
    (attention,) = [k for k in engine.kernels if k.type is KernelType.ATTENTION]
    assert attention.flops == 2 * (2 * 2) * 64 * 64 * (32 + 32)
    assert {"n_s0", "n_p", "n_o0"} <= set(attention.nodes)
    products = sorted(k.flops for k in engine.kernels if k.type is KernelType.GEMM)
    # One merged Q, K, V product of width 192, and the output projection of width 64.
    assert products == [2 * 128 * 64 * 64, 2 * 128 * 64 * 192]
    assert engine.plan_bytes is not None and len(engine.plan_bytes) == engine.engine_bytes


def test_the_compilers_own_words_reach_the_user() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[1, 4] x, float16[1, 4] z) => (float[1, 4] y) { y = Add(x, z) }"""
    )
    with pytest.raises(TargetError, match="must have same input types.*Float and Half") as raised:
        parse_target("tensorrt-rtx:sm89").compile(model, profile_for(model))
    assert "Cuda" not in str(raised.value)


def test_fp8_needs_sm89() -> None:
    with pytest.raises(TargetError, match="tensorrt-rtx:sm80 has no fp8 tensor cores.*sm89"):
        parse_target("tensorrt-rtx:sm80").storage_formats("fp8")
    assert parse_target("tensorrt-rtx:sm89").storage_formats("fp8")[0].name == "fp8"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorrt-rtx:sm90", "builds for sm75, sm80"),
        ("tensorrt-rtx:gpu", "builds for sm75"),
        ("tensorrt-rtx", "compiler:device"),
        ("tvm:sm89", "unknown compiler 'tvm'"),
    ],
)
def test_a_target_that_does_not_exist_is_named(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_target(text)
