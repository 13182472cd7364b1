"""Whatever the planner plans for a target, the target's compiler or fusion model takes."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.calibration.tensor_scales import constant_scales, placeholder_scales
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan
from fuseq.planning import compile_quantized, everything, open_job
from tests.graphs import attention_net, from_text, named, normal
from tests.targets.tensorrt_models import mobilenet_v2, resnet18

SIMULATED = [
    ("tensorrt:sm75", "int8"),
    ("tensorrt:sm80", "int8"),
    ("tensorrt:sm89", "int8"),
    ("tensorrt:sm89", "fp8"),
    ("tensorrt:sm90", "fp8"),
    ("tensorrt:sm120", "fp8"),
]


def compiled(model: ir.Model, target: str, fmt: str) -> Plan:
    """Plan everything, apply it with made-up scales, compile; raises TargetError if refused."""
    job = open_job(model, QuantizeOptions(target=target, format=fmt, policy="full", batch=1))
    plan = everything(job)
    scales = {
        **constant_scales(plan, job.model, job.precision),
        **placeholder_scales(plan, job.precision),
    }
    compile_quantized(job, plan, scales)
    return plan


def two_convolutions(
    channels: int, middle: int, groups: int, window: int, activation: str, transposed: bool
) -> ir.Model:
    """Conv (or ConvTranspose), activation, Add of itself, grouped Conv."""
    op = "ConvTranspose" if transposed else "Conv"
    pad = window // 2
    attributes = f"<kernel_shape = [{window}, {window}], pads = [{pad}, {pad}, {pad}, {pad}]>"
    silu = "g = Sigmoid(c)\n a = Mul(c, g)" if activation == "Silu" else f"a = {activation}(c)"
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[1, {channels}, 8, 8] x) => (float[1, {middle}, 8, 8] y) {{
      c = {op} {attributes} (x, w1)
      {silu}
      s = Add(a, c)
      y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = {groups}> (s, w2)
    }}"""
    first = (channels, middle) if transposed else (middle, channels)
    return named(
        from_text(
            text,
            w1=normal(*first, window, window, seed=1),
            w2=normal(middle, middle // groups, 3, 3, seed=2),
        )
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SIMULATED),
    st.sampled_from([1, 3, 8, 16, 20, 24, 32, 40]),
    st.sampled_from([(16, 1), (24, 1), (24, 24), (32, 2), (48, 3), (12, 4), (64, 4)]),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from(["Relu", "Silu", "HardSwish", "Tanh"]),
    st.booleans(),
)
def test_convolutions(
    target: tuple[str, str],
    channels: int,
    middle: tuple[int, int],
    window: int,
    activation: str,
    transposed: bool,
) -> None:
    compiled(two_convolutions(channels, *middle, window, activation, transposed), *target)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(SIMULATED),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([7, 16, 50]),
    st.sampled_from([8, 24, 32]),
)
def test_attention(target: tuple[str, str], heads: int, length: int, size: int) -> None:
    compiled(attention_net(1, heads, length, size), *target)


@pytest.mark.parametrize("target", SIMULATED, ids=" ".join)
def test_networks(target: tuple[str, str]) -> None:
    for network in (resnet18(1), mobilenet_v2(1)):
        assert compiled(network, *target).tensors


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
@pytest.mark.parametrize("channels", [3, 24])
def test_tensorrt_rtx(channels: int, fmt: str) -> None:
    for groups in (1, 24):
        model = two_convolutions(channels, 24, groups, 3, "Relu", transposed=False)
        compiled(model, "tensorrt-rtx:sm89", fmt)


def reason_of(plan: Plan, name: str) -> str:
    return next(region.reason for region in plan.regions if region.name == name)


def test_fp8_convolutions_say_which_number_has_no_kernel() -> None:
    def first(channels: int, window: int = 3) -> str:
        model = two_convolutions(channels, 32, 1, window, "Relu", transposed=False)
        return reason_of(compiled(model, "tensorrt:sm89", "fp8"), "n_c")

    assert first(24) == "float: no fp8 kernel takes 24 input channels, no multiple of 16"
    assert first(3) == "float: no fp8 kernel takes 3 input channels; 16 are the least"
    assert first(32, 7) == "float: no fp8 kernel takes a window of 49 positions; 32 are the most"
    assert first(32) == "quantized: the conv block n_c runs in fp8"


def test_fp8_groups_stay_float_on_full_tensorrt_alone() -> None:
    model = two_convolutions(32, 32, 2, 3, "Relu", transposed=False)
    grouped = reason_of(compiled(model, "tensorrt:sm89", "fp8"), "n_y")
    assert grouped == "float: TensorRT has no optimized FP8 kernels for grouped convolutions"
    assert "int8" in reason_of(compiled(model, "tensorrt:sm89", "int8"), "n_y")


def test_the_channels_of_a_transposed_convolution_are_its_first_axis() -> None:
    model = two_convolutions(24, 32, 1, 3, "Relu", transposed=True)
    reason = reason_of(compiled(model, "tensorrt:sm89", "fp8"), "n_c")
    assert reason == "float: no fp8 kernel takes 24 input channels, no multiple of 16"
