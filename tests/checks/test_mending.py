"""check --fix: each mendable rule's example is mended, values stay as promised, bad fixes are taken back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.checks import mending
from fuseq.checks.all_rules import RULES
from fuseq.checks.finding import Finding
from fuseq.checks.mending import MendResult, mend_model
from fuseq.checks.rule import Rule
from fuseq.checks.running import CheckOptions
from fuseq.targets.base import Engine, ShapeProfile
from fuseq.targets.tensorrt.target import TensorRtSimulated
from tests.checks import examples
from tests.checks.examples import EXAMPLES, SAME, TRT, W, conv
from tests.graphs import from_text, named, normal
from tests.quantized_nets import run_as_written

PAGES = Path(__file__).parents[2] / "docs" / "rules"
MENDABLE = [rule for rule in RULES if rule.mend is not None]


def qlinear_conv() -> ir.Model:
    """QOperator format: Q, QLinearConv with an INT32 bias, DQ."""
    rng = np.random.default_rng(0)
    return named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            net (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
            <float s = {0.02}, uint8 z = {120}, float r = {0.05}, uint8 o = {3}, int8 wz = {0}> {
              q = QuantizeLinear(x, s, z)
              c = QLinearConv <kernel_shape = [1, 1]> (q, s, z, w, t, wz, r, o, b)
              y = DequantizeLinear(c, r, o)
            }""",
            w=rng.integers(-63, 64, (8, 8, 1, 1)).astype(np.int8),  # more saturates on AVX2
            t=np.float32(0.01),
            b=rng.integers(-500, 500, 8).astype(np.int32),
        )
    )


FOR_MENDING: dict[str, Callable[[], ir.Model]] = {
    "FQ103": lambda: conv(  # the branch has a pair for another reader
        f"x0 = Relu(x)\nxd = Pair<0.1>(x0)\nw1 = {W}\nc1 = Conv {SAME} (xd, w1)\nr1 = Relu(c1)\n"
        f"d1 = Pair<0.1>(r1)\nw2 = {W}\nc2 = Conv {SAME} (d1, w2)\ns = Add(c2, x0)\nr = Relu(s)\n"
        f"d3 = Pair<0.1>(r)\nw3 = {W}\ny = Conv {SAME} (d3, w3)"
    ),
    "FQ204": qlinear_conv,
}


def filled(model: ir.Model) -> ir.Model:
    """Weights of zeros become random ones: the examples are made to be looked at, not run."""
    rng = np.random.default_rng(7)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.size < 64:
            continue
        if tensor.dtype in (ir.DataType.FLOAT, ir.DataType.INT8):
            array = rng.integers(-100, 100, tuple(tensor.shape.numpy()))
            whole = tensor.dtype == ir.DataType.INT8
            made = array.astype(np.int8) if whole else (array / 100).astype(np.float32)
            value.const_value = ir.Tensor(made, name=value.name)
    return model


def mend(
    model: ir.Model,
    folder: Path,
    code: str = "",
    *targets: str,
    unsafe: bool = True,
    compiles: bool = False,
) -> MendResult:
    ir.save(model, folder / "model.onnx")
    options = CheckOptions(
        targets=targets or (TRT,), batch=1, compiles=compiles, select=(code,) if code else ()
    )
    return mend_model(folder / "model.onnx", options, unsafe=unsafe)


@pytest.mark.parametrize("rule", MENDABLE, ids=lambda rule: rule.code)
def test_the_example_of_the_rule_is_mended(rule: Rule, tmp_path: Path) -> None:
    example = EXAMPLES[rule.code]
    model = FOR_MENDING.get(rule.code, example.faulty)()
    result = mend(model, tmp_path, rule.code, example.target, compiles=example.compiles)
    assert result.before.findings and result.after.findings == (), result.notes
    assert {each.finding.code for each in result.mended} == {rule.code}
    assert all(each.done for each in result.mended) and result.diff
    assert mend(result.model, tmp_path, rule.code, example.target).mended == ()


@pytest.mark.parametrize("rule", MENDABLE, ids=lambda rule: rule.code)
def test_unsafe_fixes_are_made_when_asked_for_alone(rule: Rule, tmp_path: Path) -> None:
    example = EXAMPLES[rule.code]
    model = FOR_MENDING.get(rule.code, example.faulty)()
    result = mend(
        model, tmp_path, rule.code, example.target, unsafe=False, compiles=example.compiles
    )
    assert bool(result.mended) == (rule.fixable.kind == "safe")
    if rule.fixable.kind != "safe":
        assert result.after is result.before and result.diff == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_page_says_what_check_fix_does(rule: Rule) -> None:
    text = (PAGES / rule.page).read_text(encoding="utf-8")
    flag = "--fix" if rule.fixable.kind == "safe" else "--fix --unsafe-fixes"
    if rule.mend is None:
        assert "`fuseq check --fix` has no single fix for it." in text
        assert rule.fixable.kind != "safe"  # a safe fix that check --fix does not make is none
    else:
        assert f"`fuseq check {flag}` makes it." in text


# Values: what the mended file computes, beside what the file computed.


def outputs(model: ir.Model, mended: ir.Model) -> tuple[np.ndarray, np.ndarray]:
    value = model.graph.inputs[0]
    shape = tuple(int(size) for size in value.shape.numpy())  # type: ignore[union-attr]
    feeds = {value.name or "": normal(*shape, scale=1.0)}
    return run_as_written(model, **feeds), run_as_written(mended, **feeds)


@pytest.mark.parametrize("code", ["FQ203", "FQ208", "FQ305"])
def test_another_spelling_computes_the_same_bits(code: str, tmp_path: Path) -> None:
    model = filled(EXAMPLES[code].faulty())
    before, after = outputs(model, mend(model, tmp_path, code, EXAMPLES[code].target).model)
    assert np.array_equal(before, after) and np.abs(before).max() > 0


def test_integer_operators_become_float_ones_between_pairs(tmp_path: Path) -> None:
    """QLinearConv rounds the sum of integers, the float Conv its product: one step apart at most."""
    model = qlinear_conv()
    result = mend(model, tmp_path, "FQ204")
    before, after = outputs(model, result.model)
    steps = np.abs(before - after) / np.float32(0.05)
    assert steps.max() <= 1.001 and (steps > 0.5).mean() < 0.01 and np.unique(before).size > 30


def test_a_pair_that_goes_gives_back_the_float_values(tmp_path: Path) -> None:
    model = filled(examples.normalization(True))
    result = mend(model, tmp_path, "FQ105")
    before, after = outputs(model, result.model)
    float_model = filled(examples.normalization(False))
    _, exact = outputs(float_model, float_model)
    assert not np.array_equal(before, exact) and np.allclose(after, exact, atol=1e-6)


def qdq(kind: str, zero: int, relu: bool) -> tuple[ir.Model, np.ndarray]:
    """Q -> DQ -> Conv whose quantizer is asymmetric; and the weight's float values."""
    w = np.random.default_rng(1).integers(-127, 128, (8, 8, 1, 1)).astype(np.int8)
    model = from_text(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float s = {{0.05}}, {kind} z = {{{zero}}}, float t = {{0.01}}> {{
          r = {"Relu" if relu else "Identity"}(x)
          q = QuantizeLinear(r, s, z)
          d = DequantizeLinear(q, s, z)
          v = DequantizeLinear(w, t)
          y = Conv <kernel_shape = [1, 1]> (d, v)
        }}""",
        w=w,
    )
    return named(model), w.astype(np.float64)[:, :, 0, 0] * np.float32(0.01)


def test_k57_uint8_around_128_moves_without_loss(tmp_path: Path) -> None:
    model, _ = qdq("uint8", 128, relu=False)
    result = mend(model, tmp_path, "FQ202")
    before, after = outputs(model, result.model)
    assert np.array_equal(before, after)
    assert result.mended[0].done == "int8 with zero point 0: the same integers less 128"


def test_k57_a_quantizer_that_cuts_at_zero_gets_a_clip(tmp_path: Path) -> None:
    model, weight = qdq("uint8", 0, relu=False)
    result = mend(model, tmp_path, "FQ202")
    assert "Clip" in [node.op_type for node in result.model.graph]
    x = normal(1, 8, 4, 4, scale=1.0)
    after = run_as_written(result.model, x=x)
    scale = np.float32(255 * np.float64(np.float32(0.05)) / 127)
    data = np.rint(np.clip(x.astype(np.float64), 0, 12.75) / scale).clip(-128, 127) * scale
    expected = np.einsum("oi,nihw->nohw", weight, data)
    assert np.allclose(after, expected, atol=1e-4)
    known, _ = qdq("uint8", 0, relu=True)
    assert "Clip" not in [n.op_type for n in mend(known, tmp_path, "FQ202").model.graph]


def test_dropping_a_pair_that_stands_for_a_relu_is_refused(tmp_path: Path) -> None:
    """The layer stays as it is: without its quantizer, negative values would come through."""
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float s = {0.05}, uint8 z = {0}> {
          q = QuantizeLinear(x, s, z)
          d = DequantizeLinear(q, s, z)
          y = Conv <kernel_shape = [1, 1]> (d, w)
        }""",
        w=normal(8, 8, 1, 1),
    )
    result = mend(named(model), tmp_path, "FQ102")
    assert result.before.findings and result.mended == ()
    assert [f.code for f in result.after.findings] == ["FQ102"]


def test_weights_that_merge_take_the_largest_scale(tmp_path: Path) -> None:
    model = examples.two_linears(0.02)
    result = mend(model, tmp_path, "FQ108", EXAMPLES["FQ108"].target)
    scales = {
        float(node.inputs[1].const_value.numpy())  # type: ignore[union-attr]
        for node in result.model.graph
        if node.op_type == "DequantizeLinear" and node.inputs[0].const_value is not None  # type: ignore[union-attr]
    }
    assert scales == {float(np.float32(0.02))}


def test_a_missing_softmax_pair_gets_the_known_scale(tmp_path: Path) -> None:
    result = mend(examples.attention("qkv"), tmp_path, "FQ106", EXAMPLES["FQ106"].target)
    softmax = next(node for node in result.model.graph if node.op_type == "Softmax")
    (use,) = softmax.outputs[0].uses()
    assert use.node.op_type == "QuantizeLinear"
    assert float(use.node.inputs[1].const_value.numpy()) == np.float32(1 / 448)  # type: ignore[union-attr]
    assert [each.done for each in result.mended] == ["the softmax output got a pair of scale 1/448"]


@pytest.mark.parametrize("pairs", ["qkp", "p", "qv"])
def test_attention_that_lacks_a_scale_loses_its_other_pairs(pairs: str, tmp_path: Path) -> None:
    model = examples.attention(pairs)
    result = mend(model, tmp_path, "FQ106", EXAMPLES["FQ106"].target)
    assert result.after.findings == ()
    assert not any(node.op_type == "QuantizeLinear" for node in result.model.graph)


def test_a_float_input_of_a_concat_gets_the_scale_behind_it(tmp_path: Path) -> None:
    result = mend(examples.concat("b0"), tmp_path, "FQ104", EXAMPLES["FQ104"].target)
    concat = next(node for node in result.model.graph if node.op_type == "Concat")
    behind = next(use.node for use in concat.outputs[0].uses())
    scales = [value.producer().inputs[1].const_value.numpy() for value in concat.inputs]  # type: ignore[union-attr]
    assert behind.inputs[1].const_value.numpy() in scales  # type: ignore[union-attr]
    assert all(value.producer().op_type == "DequantizeLinear" for value in concat.inputs)  # type: ignore[union-attr]


def test_the_float_engine_is_compiled_once_for_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []
    real = TensorRtSimulated.compile

    def counted(self: TensorRtSimulated, model: ir.Model, profile: ShapeProfile) -> Engine:
        compiled.append(any(node.op_type == "QuantizeLinear" for node in model.graph))
        return real(self, model, profile)

    monkeypatch.setattr(TensorRtSimulated, "compile", counted)
    result = mend(examples.concat("b0"), tmp_path, "FQ104", compiles=True)
    assert len(result.mended) == 1
    assert compiled == [True, False, True]  # the file, its float twin, the mended file


# The guards.


def broken(model: ir.Model, finding: Finding) -> str:
    """A mend that makes the file illegal: an unsigned zero point that no TensorRT takes."""
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.inputs) > 1:
            node.op_type = "QLinearConv"
    return "broke it"


def with_mend(code: str, mend_it: Callable[[ir.Model, Finding], str]) -> tuple[Rule, ...]:
    return tuple(
        dataclasses.replace(rule, mend=mend_it) if rule.code == code else rule for rule in RULES
    )


def test_a_fix_that_does_not_build_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = with_mend("FQ305", broken)
    monkeypatch.setattr(mending, "RULES", rules)
    monkeypatch.setattr(
        mending, "rule_named", lambda code: next(r for r in rules if r.code == code)
    )
    result = mend(examples.stored_float(), tmp_path, "FQ305", compiles=True)
    assert result.mended == () and result.after is result.before
    (note,) = result.notes
    assert note.startswith("FQ305: 1 fixes were tried and taken back: tensorrt:sm80 does not build")


def test_placement_that_one_target_of_two_complains_about_stays(tmp_path: Path) -> None:
    model = examples.depthwise(32)
    both = mend(model, tmp_path, "FQ109", "tensorrt-rtx:sm89", "tensorrt:sm80")
    assert both.mended == ()
    assert both.notes == ("FQ109: 1 findings stay, because they are of tensorrt-rtx:sm89 alone",)
    one = mend(model, tmp_path, "FQ109", "tensorrt-rtx:sm89")
    assert [each.finding.code for each in one.mended] == ["FQ109"]


def test_the_input_is_only_read(tmp_path: Path) -> None:
    ir.save(examples.biased(True), tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    mend_model(tmp_path / "model.onnx", CheckOptions(targets=(TRT,), batch=1, compiles=False))
    assert (tmp_path / "model.onnx").read_bytes() == before
