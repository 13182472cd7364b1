"""Cases that users met, where they touch ``check`` (K numbers: the case list), each with its right outcome."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.checks.finding import Finding
from fuseq.checks.running import CheckOptions, check_model
from tests.checks import examples
from tests.checks.examples import RTX, SAME, SHAPE, TRT, W, conv
from tests.targets.tensorrt_models import net


def found(
    model: ir.Model, folder: Path, target: str = TRT, compiles: bool = False
) -> list[Finding]:
    """All findings, batch 1."""
    ir.save(model, folder / "model.onnx")
    options = CheckOptions(targets=(target,), compiles=compiles, batch=1)
    return list(check_model(folder / "model.onnx", options).findings)


def codes(
    model: ir.Model, folder: Path, target: str = TRT, compiles: bool = False
) -> dict[str, list[str]]:
    """Nodes by code."""
    result: dict[str, list[str]] = {}
    for finding in found(model, folder, target, compiles):
        result.setdefault(finding.code, []).append(finding.node)
    return result


def test_k1_shortcut_without_a_pair(tmp_path: Path) -> None:
    (finding,) = found(examples.residual("x0"), tmp_path)
    assert (finding.code, finding.tensor) == ("FQ103", "x0")
    assert finding.node.startswith("Add_s")
    assert found(examples.residual("xd"), tmp_path) == []
    # TensorRT-RTX fuses the float branch as it is: nothing to mend there
    assert "FQ103" not in codes(examples.residual("x0"), tmp_path, RTX)


def resize(behind: str) -> ir.Model:
    return conv(
        f"""
        xd = Pair<0.1>(x)
        u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                    nearest_mode = "floor"> (xd, , scales)
        ud = Pair<{behind}>(u)
        w = {W}
        y = Conv {SAME} (ud, w)""",
        out="float[1, 32, 16, 16]",
        constants="<float[4] scales = {1, 1, 2, 2}>",
    )


def test_k3_resize_with_two_scales(tmp_path: Path) -> None:
    (finding,) = found(resize("0.2"), tmp_path)
    assert finding.code == "FQ107" and finding.node.startswith("Resize_u")
    assert found(resize("0.1"), tmp_path) == []


def test_k5_pairs_before_every_conv_are_no_fault_where_they_fuse(tmp_path: Path) -> None:
    assert found(examples.big_convs(2), tmp_path, TRT, compiles=True) == []


def test_k7_and_k9_pair_on_the_convolutions_edge(tmp_path: Path) -> None:
    model = examples.residual("xd", "ce", "ce = Pair<0.4>(c2)")
    (finding,) = found(model, tmp_path)
    assert (finding.code, finding.tensor) == ("FQ112", "c2")
    other = conv(
        f"""
        xd = Pair<0.1>(x)
        w1 = {W}
        c = Conv {SAME} (xd, w1)
        ce = Pair<0.4>(c)
        p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (xd)
        s = Add(ce, p)
        sd = Pair<0.2>(s)
        w2 = {W}
        y = Conv {SAME} (sd, w2)"""
    )
    (finding,) = found(other, tmp_path)
    assert (finding.code, finding.tensor) == ("FQ112", "c")


def test_k13_concat_with_a_branch_that_stays_float(tmp_path: Path) -> None:
    model = conv(
        """
        xd = Pair<0.1>(x)
        wt = Zeros<32, 32, 2, 2> ()
        t = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (x, wt)
        wu = Weight<32, 32, 1, 1> ()
        u0 = Conv <kernel_shape = [1, 1]> (xd, wu)
        u1 = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                     nearest_mode = "floor"> (u0, , scales)
        u = Pair<0.1>(u1)
        j = Concat <axis = 1> (t, u)
        jd = Pair<0.1>(j)
        w = Weight<32, 64, 3, 3> ()
        y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (jd, w)""",
        out="float[1, 32, 16, 16]",
        constants="<float[4] scales = {1, 1, 2, 2}>",
    )
    by_code = codes(model, tmp_path)
    assert [node.split("_")[0] for node in by_code["FQ104"]] == ["Concat"]
    tensors = [finding.tensor for finding in found(model, tmp_path) if finding.code == "FQ104"]
    assert tensors == ["t"]


def test_k15_two_convolutions_with_a_pair_each(tmp_path: Path) -> None:
    (finding,) = found(examples.shared("0.2"), tmp_path)
    assert (finding.code, finding.tensor) == ("FQ113", "x")


def test_k17_pools_in_front_of_a_concat(tmp_path: Path) -> None:
    model = conv(
        """
        x0 = Relu(x)
        a = Pair<0.1>(x0)
        p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x0)
        j = Concat <axis = 1> (a, p)
        jd = Pair<0.1>(j)
        w = Weight<32, 64, 3, 3> ()
        y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (jd, w)"""
    )
    (finding,) = found(model, tmp_path)
    assert (finding.code, finding.tensor) == ("FQ104", "p")


def test_k19_add_behind_silu_reads_float(tmp_path: Path) -> None:
    def model(left: str, right: str, pair: str = "") -> ir.Model:
        return conv(
            f"""
            xd = Pair<0.1>(x)
            w1 = {W}
            c = Conv {SAME} (xd, w1)
            g = Sigmoid(c)
            m = Mul(c, g)
            md = Pair<0.1>(m)
            t = Tanh(x)
            {pair}
            s = Add({left}, {right})
            sd = Pair<0.1>(s)
            w2 = {W}
            y = Conv {SAME} (sd, w2)"""
        )

    (finding,) = [f for f in found(model("md", "t"), tmp_path) if f.node.startswith("Add_")]
    assert (finding.code, finding.tensor) == ("FQ104", "t")
    assert codes(model("md", "td", "td = Pair<0.1>(t)"), tmp_path) == {}


def depthwise_silu() -> ir.Model:
    return conv(
        """
        xd = Pair<0.1>(x)
        w = Weight<32, 1, 3, 3> ()
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 32> (xd, w)
        g = Sigmoid(c)
        m = Mul(c, g)
        y = Identity(m)"""
    )


def test_k25_depthwise_with_silu(tmp_path: Path) -> None:
    (finding,) = found(depthwise_silu(), tmp_path)
    assert finding.code == "FQ109" and "fuses Sigmoid" in finding.message
    assert "FQ109" not in codes(examples.depthwise(32), tmp_path)  # TensorRT has that kernel


def test_k27_depthwise_without_an_implementation(tmp_path: Path) -> None:
    assert len(codes(examples.depthwise(32), tmp_path, RTX)["FQ109"]) == 1


def test_k29_no_gain_is_said_before_building(tmp_path: Path) -> None:
    findings = found(examples.rounded_for_nothing(), tmp_path, TRT, compiles=True)
    (slower,) = [finding for finding in findings if finding.code == "FQ501"]
    assert slower.cost.us is not None and slower.cost.us > 0 and not slower.confirmed


@pytest.mark.parametrize(
    ("pairs", "missing"), [("qkv", "softmax output"), ("qkp", "V"), ("p", "Q, K, V")]
)
def test_k33_attention_with_some_of_its_pairs(tmp_path: Path, pairs: str, missing: str) -> None:
    (finding,) = found(examples.attention(pairs), tmp_path, RTX)
    assert finding.code == "FQ106" and f"no pair on {missing}," in finding.message


def test_k33_all_pairs_or_none(tmp_path: Path) -> None:
    assert found(examples.attention("qkpv"), tmp_path, RTX) == []
    # a file with other pairs, here on the result, whose attention has none
    assert "FQ106" not in codes(examples.attention("y"), tmp_path, RTX)
    assert "FQ106" in codes(examples.attention("qy"), tmp_path, RTX)


def test_k35_int8_attention_has_no_fused_kernel(tmp_path: Path) -> None:
    model = net(
        "(float[1, 4, 64, 64] q, float[1, 4, 64, 64] k, float[1, 4, 64, 64] v)"
        " => (float[1, 4, 64, 64] y)",
        """
        qd = Pair<0.1>(q)
        kd = Pair<0.1>(k)
        s = MatMul(qd, kd)
        p = Softmax <axis = -1> (s)
        pd = Pair<0.1>(p)
        vd = Pair<0.1>(v)
        y = MatMul(pd, vd)""",
    )
    (finding,) = found(model, tmp_path, TRT)
    assert finding.code == "FQ106" and "INT8" in finding.message
    assert found(model, tmp_path, RTX) == []  # it depends on the graph: only the engine tells
    pytest.importorskip("tensorrt_rtx_bindings")
    (finding,) = [f for f in found(model, tmp_path, RTX, compiles=True) if f.code == "FQ106"]
    assert finding.confirmed and "all four pairs" in finding.message


@pytest.mark.parametrize(("axis", "expected"), [(0, []), (1, ["FQ303"])])
def test_k39_scales_are_followed_through_a_transpose(
    tmp_path: Path, axis: int, expected: list[str]
) -> None:
    model = net(
        "(float[1, 16, 64] x) => (float[1, 16, 64] y)",
        """
        xd = Pair<0.1>(x)
        w0 = Weight<64, 64> ()
        w = Transpose <perm = [1, 0]> (w0)
        y = MatMul(xd, w)""",
    )
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.outputs[0].name == "w0":
            node.attributes["axis"] = ir.AttrInt64("axis", axis)
    assert list(codes(model, tmp_path)) == expected


def test_k41_pairs_on_normalization_inputs(tmp_path: Path) -> None:
    by_code = codes(examples.normalization(True), tmp_path)
    assert len(by_code["FQ105"]) == 1
    assert "FQ105" not in codes(examples.normalization(False), tmp_path)


def test_k51_message_names_the_bias_and_the_fix(tmp_path: Path) -> None:
    (finding,) = found(examples.biased(True), tmp_path)
    assert finding.code == "FQ203" and finding.tensor == "bq"
    assert "bias of Conv_y" in finding.message and "fuseq fix" in finding.fix


def test_k53_scale_of_zero_names_the_layer(tmp_path: Path) -> None:
    (finding,) = [f for f in found(examples.scaled(0.0), tmp_path) if f.code == "FQ301"]
    assert finding.node.startswith("QuantizeLinear_xd") and finding.tensor == "xd_scale"


def test_k57_zero_points(tmp_path: Path) -> None:
    (finding,) = found(examples.zero_point(3), tmp_path)
    assert finding.code == "FQ202" and "zero point 3" in finding.message
    # ONNX Runtime's kernels take them
    assert "FQ202" not in codes(examples.zero_point(3), tmp_path, "onnxruntime:cpu")


def test_k67_half_scale_beside_a_float_tensor(tmp_path: Path) -> None:
    assert "FQ201" in codes(examples.half_scale(), tmp_path)
    assert found(examples.quantized_conv(), tmp_path) == []


def test_k69_a_format_that_one_gpu_of_two_has(tmp_path: Path) -> None:
    ir.save(examples.fp8_conv(), tmp_path / "model.onnx")
    options = CheckOptions(targets=("tensorrt:sm80", "tensorrt:sm89"), batch=1, select=("FQ2",))
    result = check_model(tmp_path / "model.onnx", options)
    assert [row.builds for row in result.targets] == [False, True]
    assert [(f.code, f.target) for f in result.findings] == [("FQ206", "tensorrt:sm80")]
    assert "sm80" in result.targets[0].words and "fp8" in result.targets[0].words


def test_a_float_model_has_no_finding(tmp_path: Path) -> None:
    model = conv(f"w = Zeros<32, 32, 3, 3> ()\nc = Conv {SAME} (x, w)\ny = Relu(c)", out=SHAPE)
    for target in (TRT, RTX, "onnxruntime:cpu"):
        assert found(model, tmp_path, target) == []


def test_k95_pairs_are_never_silently_something_else(tmp_path: Path) -> None:
    """There is no switch to forget: what the file says runs, or the target says no."""
    ir.save(examples.quantized_conv(), tmp_path / "int8.onnx")
    result = check_model(tmp_path / "int8.onnx", CheckOptions(targets=(TRT,), batch=1))
    (row,) = result.targets
    assert row.builds and row.engine is not None
    assert [k.compute_dtype for k in row.engine.kernels if "Conv_y_3" in k.nodes] == ["int8"]
    ir.save(examples.fp8_conv(), tmp_path / "fp8.onnx")
    result = check_model(tmp_path / "fp8.onnx", CheckOptions(targets=(TRT,), batch=1))
    assert result.targets[0].builds is False and result.exit_code == 1
    assert "fp8 begins with sm89, the target is sm80" in result.targets[0].words
