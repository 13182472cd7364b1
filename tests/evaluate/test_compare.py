"""Two models tensor by tensor: checked against onnx's reference evaluator and NumPy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from fuseq.errors import CalibrationError, ModelError, OptionError
from fuseq.evaluate import compare_streaming
from fuseq.evaluate.compare import CompareOptions, compare
from fuseq.options import QuantizeOptions
from fuseq.quantizing import quantize
from tests.graphs import conv_net, from_text, normal

DATA = normal(6, 16, 8, 8, scale=1.0)


def batches(count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{"x": DATA[i : i + 1]} for i in range(count)]


def quantized(**options: Any) -> ir.Model:
    chosen = QuantizeOptions(target="tensorrt:sm80", policy="full", batch=1, **options)
    return quantize(conv_net(), calib=batches(), options=chosen).model


def reference_values(model: ir.Model, names: list[str]) -> dict[str, np.ndarray]:
    """Values over all batches, by onnx's own evaluator; independent of ONNX Runtime."""
    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(values[name] for name in names)
    evaluator = ReferenceEvaluator(ir.to_proto(copy))
    parts: list[Any] = [evaluator.run(None, batch) for batch in batches()]
    return {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}


def test_every_number_is_that_of_the_reference_evaluator() -> None:
    model, other = conv_net(), quantized(format="int8", precision="fp32")
    row = compare(model, other, data=batches())
    names = [tensor.name for tensor in row.tensors]
    assert names == ["r0", "c1", "r1", "c2", "s", "r2", "p", "y"]
    exact, near = reference_values(model, names), reference_values(other, names)
    for tensor in row.tensors:
        a, b = exact[tensor.name].astype(np.float64), near[tensor.name].astype(np.float64)
        noise = np.linalg.norm(a - b)
        assert tensor.matched == "name"
        if tensor.name == "r0":  # nothing is quantized before it
            assert tensor.identical
            continue
        assert tensor.relative == pytest.approx(noise / np.linalg.norm(a), rel=1e-3)
        assert tensor.max_abs == pytest.approx(np.abs(a - b).max(), rel=1e-2)
    (output,) = row.outputs
    flat = [exact["y"].reshape(6, -1), near["y"].reshape(6, -1)]
    norms = np.linalg.norm(flat[0], axis=1) * np.linalg.norm(flat[1], axis=1)
    cosines = (flat[0] * flat[1]).sum(axis=1) / norms
    assert output.cosine_mean == pytest.approx(cosines.mean(), abs=1e-5)
    assert output.cosine_min == pytest.approx(cosines.min(), abs=1e-5)
    assert (output.samples, output.kind, output.top1) == (6, "values", None)


@pytest.mark.parametrize(("fmt", "least"), [("fp8", 0.01), ("int8", 0.002)])
def test_half_precision_files_are_compared(fmt: str, least: float) -> None:
    target = "tensorrt:sm89"
    options = QuantizeOptions(format=fmt, target=target, policy="full", batch=1)
    other = quantize(conv_net(), calib=batches(), options=options).model
    row = compare(conv_net(), other, data=batches())
    (last,) = [tensor for tensor in row.tensors if tensor.name == "y"]
    assert last.relative is not None
    assert least < last.relative < 0.1
    assert row.runner == "onnxruntime:cpu, as written"


def test_groups_change_memory_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of one tensor: every tensor is a group of its own, and the data is read for each."""
    other = quantized(format="int8")
    whole = compare(conv_net(), other, data=batches())
    monkeypatch.setattr(compare_streaming.grouped, "__defaults__", (1,))
    seen: list[tuple[int, int | None]] = []
    parts = compare(
        conv_net(),
        other,
        data=batches(),
        report=lambda stage, done, total: seen.append((done, total)),
    )
    assert parts.tensors == whole.tensors
    assert parts.outputs == whole.outputs
    assert seen[-1] == (6 * len(whole.tensors), 6 * len(whole.tensors))


def test_renamed_tensors_are_found_by_where_they_come_from() -> None:
    other = quantized(format="int8", precision="fp32")
    for node in other.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.name = f"renamed_{value.name}"
    row = compare(conv_net(), other, data=batches())
    found = {tensor.name: (tensor.other, tensor.matched) for tensor in row.tensors}
    assert found == {
        **{
            name: (f"renamed_{name}", "provenance")
            for name in ("r0", "c1", "r1", "c2", "s", "r2", "p")
        },
        "y": ("y", "name"),
    }


def broken_at(name: str, factor: float) -> ir.Model:
    """The INT8 net with one weight's scale wrong, as a compiler that reads the wrong axis would have it."""
    model = quantized(format="int8", precision="fp32")
    node = next(node for node in model.graph if any(v.name == name for v in node.outputs))
    weight = node.inputs[1].producer()  # type: ignore[union-attr]
    scale = weight.inputs[1]  # type: ignore[union-attr]
    assert scale is not None and scale.const_value is not None
    array = scale.const_value.numpy() * np.float32(factor)
    scale.const_value = ir.tensor(array, name=scale.name)
    return model


def test_k105_the_first_tensor_that_differs_is_named() -> None:
    row = compare(quantized(format="int8", precision="fp32"), broken_at("c2", 0.2), data=batches())
    assert row.first_jump == "c2"
    assert row.jump_reason.startswith("relative error 80.0 % after 0.0 % before it, made by Conv")
    assert [tensor.name for tensor in row.tensors if tensor.jump] == ["c2"]
    same = {tensor.name: tensor.identical for tensor in row.tensors}
    assert [name for name in ("r0", "c1", "r1", "c2", "s", "r2", "p", "y") if same[name]] == [
        "r0", "c1", "r1",
    ]  # fmt: skip


def test_k105_recorded_by_an_engine_elsewhere(tmp_path: Path) -> None:
    """The engine's tensors come as a file; the layer from which on it detects nothing is named."""
    names = ["r1", "c2", "s", "r2", "p", "y"]
    values = reference_values(conv_net(), names)
    for name in ("s", "r2", "p", "y"):
        values[name] = np.zeros_like(values[name])
    np.savez(tmp_path / "engine.npz", **values)  # type: ignore[arg-type]
    row = compare(conv_net(), tmp_path / "engine.npz", data=batches())
    assert row.first_jump == "s"
    assert "relative error 100.0 %" in row.jump_reason
    assert [tensor.name for tensor in row.tensors] == names
    assert row.outputs[0].relative == 1.0


def test_outputs_that_trtexec_exported(tmp_path: Path) -> None:
    y = reference_values(conv_net(), ["y"])["y"]
    text = (
        '[{"name": "y", "dimensions": "' + "x".join(map(str, y.shape)) + '", "values": '
        + str([float(value) for value in y.ravel()]) + "}]"
    )  # fmt: skip
    (tmp_path / "out.json").write_text(text)
    row = compare(conv_net(), tmp_path / "out.json", data=batches())
    assert row.outputs[0].relative is not None
    assert row.outputs[0].relative < 1e-6
    more = [*batches(), {"x": DATA[:1]}]
    with pytest.raises(ModelError, match="holds 6 rows and the data has more"):
        compare(conv_net(), tmp_path / "out.json", data=more)
    (tmp_path / "out.json").write_text('[{"name": "y"}]')
    with pytest.raises(ModelError, match=r"not what `trtexec --exportOutput` writes"):
        compare(conv_net(), tmp_path / "out.json", data=batches())


def linear(weight: np.ndarray, output: str = "logits") -> ir.Model:
    rows, columns = weight.shape
    return from_text(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, {rows}] x) => (float[N, {columns}] {output}) {{ {output} = MatMul(x, w) }}""",
        w=weight,
    )


def test_classes_and_embeddings_have_their_agreements() -> None:
    weight = normal(8, 10, seed=3, scale=1.0)
    noisy = weight + normal(8, 10, seed=4, scale=0.7)
    x = normal(40, 8, seed=5, scale=1.0)
    data = [{"x": x[:16]}, {"x": x[16:]}]
    (classes,) = compare(linear(weight), linear(noisy), data=data).outputs
    a, b = x @ weight, x @ noisy
    assert classes.kind == "classes"
    assert classes.top1 == pytest.approx((a.argmax(1) == b.argmax(1)).mean())
    assert 0.3 < classes.top1 < 1  # type: ignore[operator]
    five = np.argsort(-b, axis=1)[:, :5]
    assert classes.top5 == pytest.approx((five == a.argmax(1)[:, None]).any(1).mean())
    assert classes.nearest is None

    (found,) = compare(linear(weight, "embedding"), linear(noisy, "embedding"), data=data).outputs
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b)]
    nearest = [(u @ u.T - 9 * np.eye(40)).argmax(1) for u in units]
    assert found.kind == "embedding"
    assert found.nearest == pytest.approx((nearest[0] == nearest[1]).mean())
    assert (found.top1, found.top5) == (None, None)
    options = CompareOptions(outputs_are="values")
    (values,) = compare(linear(weight), linear(noisy), data=data, options=options).outputs
    assert (values.kind, values.top1, values.nearest) == ("values", None, None)


def test_a_users_metric_sees_inputs_and_outputs_in_order() -> None:
    weight = normal(8, 4, seed=3, scale=1.0)
    data = [{"x": normal(2, 8, seed=seed)} for seed in range(3)]

    def mean_first(pairs: Iterator[tuple[dict[str, Any], dict[str, Any]]]) -> float:
        return float(
            np.mean([outputs["logits"][0, 0] / inputs["x"][0, 0] for inputs, outputs in pairs])
        )

    options = CompareOptions(metric=mean_first)
    row = compare(linear(weight), linear(2 * weight), data=data, options=options)
    expected = np.mean([(batch["x"] @ weight)[0, 0] / batch["x"][0, 0] for batch in data])
    (metric,) = row.metrics
    assert metric.name == "mean_first"
    assert metric.reference == pytest.approx(expected, rel=1e-4)
    assert metric.other == pytest.approx(2 * expected, rel=1e-4)
    with pytest.raises(OptionError, match="return one number"):
        compare(
            linear(weight), linear(weight), data=data,
            options=CompareOptions(metric=lambda pairs: "good"),
        )  # fmt: skip


def test_a_difference_that_heals_is_no_jump() -> None:
    """The two use the name m for different things; what is computed from it is the same."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 4] x) => (float[N, 4] y) <float two = {{2.0}}> {{ {body} }}"""
    first = from_text(text.format(body="m = Mul(x, two)  h = Add(m, m)  y = Relu(h)"))
    second = from_text(
        text.format(body="m = Add(x, x) n = Neg(m) k = Neg(n) h = Add(k, k) y = Relu(h)")
    )
    same = compare(first, second, data=[{"x": normal(2, 4, scale=1.0)}])
    assert [tensor.name for tensor in same.tensors] == ["m", "h", "y"]
    odd = from_text(text.format(body="q = Mul(x, two)  h = Add(q, q)  m = Neg(h)  y = Relu(h)"))
    row = compare(first, odd, data=[{"x": normal(2, 4, scale=1.0)}])
    assert row.tensors[0].name == "m"
    assert row.tensors[0].relative == pytest.approx(3.0)
    assert row.first_jump == ""


def test_values_that_turn_nan_are_a_jump() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 4] x) => (float[N, 4] y) <float low = {{{low}}}> {{
      a = Abs(x)  b = Sub(a, low)  c = Log(b)  y = Neg(c) }}"""
    data = [{"x": np.array([[0.5, 1, 2, 3]], np.float32)}]
    row = compare(from_text(text.format(low="0.1")), from_text(text.format(low="0.6")), data=data)
    assert [tensor.name for tensor in row.tensors if tensor.not_finite] == ["c", "y"]
    assert row.first_jump in ("b", "c")
    assert row.outputs[0].not_finite == 1
    assert row.outputs[0].cosine_mean is None
    assert all(math.isfinite(t.relative) for t in row.tensors if t.relative is not None)


def test_inputs_of_other_names_are_taken_by_place() -> None:
    weight = normal(8, 4, seed=3)
    other = linear(weight)
    other.graph.inputs[0].name = "image"
    row = compare(linear(weight), other, data=[{"x": normal(2, 8)}])
    assert row.outputs[0].identical


def test_a_fixed_batch_of_the_other_cuts_the_data() -> None:
    weight = normal(8, 4, seed=3)
    other = linear(weight)
    other.graph.inputs[0].shape = ir.Shape([4, 8])
    row = compare(linear(weight), other, data=[{"x": normal(8, 8)}])
    assert (row.samples, row.outputs[0].identical) == (8, True)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("missing.onnx", "does not exist"),
        ("inputs.onnx", r"has the inputs \['x', 'z'\]"),
        ("outputs.onnx", r"has the outputs \['a', 'b'\]"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, other: str, words: str) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g ({inputs}) => ({outputs}) {{ {body} }}"""
    two_in = text.format(inputs="float[N, 8] x, float[N, 8] z", outputs="float[N, 8] logits",
                         body="logits = Add(x, z)")  # fmt: skip
    two_out = text.format(inputs="float[N, 8] x", outputs="float[N, 8] a, float[N, 8] b",
                          body="a = Neg(x)  b = Abs(x)")  # fmt: skip
    ir.save(from_text(two_in), tmp_path / "inputs.onnx")
    ir.save(from_text(two_out), tmp_path / "outputs.onnx")
    with pytest.raises(ModelError, match=words):
        compare(linear(normal(8, 4)), tmp_path / other, data=[{"x": normal(2, 8)}])


def test_no_data_is_refused() -> None:
    with pytest.raises(CalibrationError, match="no batch"):
        compare(linear(normal(8, 4)), linear(normal(8, 4)), data=[])


def test_models_are_not_changed() -> None:
    model, other = conv_net(), quantized(format="int8")
    before = [ir.to_proto(each).SerializeToString() for each in (model, other)]
    compare(model, other, data=batches(2))
    assert [ir.to_proto(each).SerializeToString() for each in (model, other)] == before


def test_the_row_is_plain_data() -> None:
    row = compare(conv_net(), quantized(format="int8"), data=batches(2))
    for tensor in row.tensors:
        for value in dataclasses.asdict(tensor).values():
            assert type(value) in (str, int, float, bool, tuple, type(None))
