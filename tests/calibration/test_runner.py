from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from fuseq.calibration.batches import Batch, Source
from fuseq.calibration.collectors import chooser_named
from fuseq.calibration.histogram import BINS
from fuseq.calibration.ranges import EMPTY, Problem, Range
from fuseq.calibration.runner import collect, collect_magnitudes
from fuseq.calibration.sources import open_source
from fuseq.errors import CalibrationError, ModelError, OptionError
from fuseq.formats import FP8, INT8, UINT8, Format
from fuseq.model import load
from tests.calibration.test_collectors import histogram_of

NET = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3, H, W] x) => (float[N, 4] y) {
  c1 = Conv <pads = [1, 1, 1, 1]> (x, w1)
  r1 = Relu(c1)
  c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
  s = Sigmoid(c2)
  m = Mul(c2, s)
  a = Add(m, r1)
  p = GlobalAveragePool(a)
  f = Flatten(p)
  y = MatMul(f, w3)
}"""
TENSORS = ("x", "c1", "r1", "c2", "s", "m", "a", "p", "f", "y")


def net_proto() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = parser.parse_model(NET)
    for name, shape in {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 4)}.items():
        array = rng.normal(0, 0.2, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model)


def net() -> ir.Model:
    return ir.from_proto(net_proto())


def images(count: int = 5, side: int = 16) -> list[Batch]:
    rng = np.random.default_rng(1)
    return [
        {"x": rng.standard_normal((1 + i % 2, 3, side + i, side)).astype(np.float32)}
        for i in range(count)
    ]


def reference_values(
    model: onnx.ModelProto, names: Sequence[str], batches: Sequence[Batch]
) -> dict[str, np.ndarray]:
    """All values of each tensor over all batches, by the ONNX reference implementation."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inputs = {value.name for value in model.graph.input}
    del copy.graph.output[:]
    wanted = [name for name in names if name not in inputs]
    copy.graph.output.extend(onnx.helper.make_value_info(name, onnx.TypeProto()) for name in wanted)
    evaluator = ReferenceEvaluator(copy)
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for batch in batches:
        for name, array in zip(wanted, evaluator.run(None, dict(batch)), strict=True):
            found[name].append(np.asarray(array, np.float64).ravel())
        for name in set(names) & inputs:
            found[name].append(batch[name].astype(np.float64).ravel())
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def source_of(batches: Sequence[Batch], model: ir.Model | None = None) -> Source:
    return open_source(list(batches), model or net())


def int8(names: Sequence[str]) -> dict[str, Format]:
    return dict.fromkeys(names, INT8)


def test_max_is_the_reference_range_of_ragged_batches() -> None:
    batches = images()
    found = collect(net(), TENSORS, source_of(batches), formats=int8(TENSORS))
    values = reference_values(net_proto(), TENSORS, batches)
    for name in TENSORS:
        span = found.ranges[name]
        np.testing.assert_allclose(span.maximum, values[name].max(), rtol=1e-5, atol=1e-6)
        smallest = 0.0 if name in ("r1", "s") else values[name].min()
        np.testing.assert_allclose(span.minimum, smallest, rtol=1e-5, atol=1e-6)
    assert found.batches == 5 and found.notes == () and found.magnitudes == {}


def test_range_of_the_input_is_exact() -> None:
    batches = images()
    span = collect(net(), ["x"], source_of(batches), formats=int8(["x"])).ranges["x"]
    assert span.minimum == float(min(b["x"].min() for b in batches))
    assert span.maximum == float(max(b["x"].max() for b in batches))


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_histogram_methods_match_histograms_of_reference_values(method: str) -> None:
    batches = images()
    formats = {**int8(TENSORS), "r1": UINT8, "c2": FP8, "m": UINT8}
    found = collect(net(), TENSORS, source_of(batches), method, formats=formats)
    values = reference_values(net_proto(), TENSORS, batches)
    chooser = chooser_named(method)
    assert chooser is not None
    for name in ("x", "c1", "r1", "c2", "m", "a"):
        wanted = chooser(histogram_of(values[name]), formats[name])
        step = 12 * np.abs(values[name]).max() / BINS  # a value may fall into the next bin
        assert abs(found.ranges[name].maximum - wanted.maximum) <= step
        assert abs(found.ranges[name].minimum - wanted.minimum) <= step or name == "r1"


def test_full_percentile_gives_the_max_range() -> None:
    batches = images()
    by_max = collect(net(), TENSORS, source_of(batches), formats=int8(TENSORS)).ranges
    whole = collect(
        net(), TENSORS, source_of(batches), "percentile:100", formats=int8(TENSORS)
    ).ranges
    for name in TENSORS:
        np.testing.assert_allclose(whole[name].amax, by_max[name].amax, rtol=1e-6)


@pytest.mark.parametrize("method", ["max", "entropy"])
def test_same_result_whatever_the_threads(method: str) -> None:
    batches = images(7)
    one, four = (
        collect(net(), TENSORS, source_of(batches), method, formats=int8(TENSORS), threads=n)
        for n in (1, 4)
    )
    assert one.ranges == four.ranges


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_half_models_run_in_fp32(half: Any) -> None:
    model = net()
    kind = ir.DataType.from_numpy(np.dtype(half))
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy().astype(half), name=value.name)
        value.dtype = kind
    for node in model.graph:
        node.outputs[0].dtype = kind
    model.graph.inputs[0].dtype = kind
    before = ir.to_proto(model).SerializeToString()
    batches = [{"x": batch["x"].astype(half)} for batch in images()]
    found = collect(model, TENSORS, source_of(batches, model), "mse", formats=int8(TENSORS))
    assert ir.to_proto(model).SerializeToString() == before
    float_model = net_proto()
    for tensor in float_model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(half).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    wide = [{"x": batch["x"].astype(np.float32)} for batch in batches]
    same = collect(
        ir.from_proto(float_model), TENSORS, source_of(wide), "mse", formats=int8(TENSORS)
    )
    assert found.ranges == same.ranges


def test_double_tensors() -> None:
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            parser.parse_model(
                """<ir_version: 10, opset_import: ["" : 21]>
                net (double[N] x) => (double[N] y) { d = Add(x, x) y = Neg(d) }"""
            )
        )
    )
    batches = [{"x": np.array([1.0, -3.0])}, {"x": np.array([2.5])}]
    found = collect(model, ["d", "y"], source_of(batches, model), "mse", formats=int8(["d", "y"]))
    assert found.ranges["d"].minimum == pytest.approx(-6, rel=0.02)
    magnitudes = collect_magnitudes(model, source_of(batches, model))
    assert magnitudes == {"x": Range(-3, 2.5), "d": Range(-6, 5), "y": Range(-5, 6)}


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    onnx.save(
        net_proto(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0,
        location="m.data",
    )  # fmt: skip
    model = ir.load(tmp_path / "m.onnx")
    batches = images()
    found = collect(model, TENSORS, source_of(batches), formats=int8(TENSORS))
    assert found.ranges == collect(net(), TENSORS, source_of(batches), formats=int8(TENSORS)).ranges
    assert isinstance(model.graph.initializers["w1"].const_value, ir.ExternalTensor)


def test_a_large_models_weights_are_mapped_once_and_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ONNX Runtime maps is not held open beside it; ranges are those of a small model."""
    onnx.save(
        net_proto(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0,
        location="m.data",
    )  # fmt: skip
    monkeypatch.setattr("fuseq.calibration.session._PREPACKED_BYTES", 0)
    model, batches = ir.load(tmp_path / "m.onnx"), images()
    found = collect(model, TENSORS, source_of(batches), formats=int8(TENSORS)).ranges
    usual = collect(net(), TENSORS, source_of(batches), formats=int8(TENSORS)).ranges
    for name in TENSORS:
        ends = found[name].minimum, found[name].maximum
        np.testing.assert_allclose(ends, (usual[name].minimum, usual[name].maximum), rtol=1e-5)
    for name, value in model.graph.initializers.items():
        assert isinstance(value.const_value, ir.ExternalTensor)
        np.testing.assert_array_equal(
            value.const_value.numpy(), net().graph.initializers[name].const_value.numpy()
        )


def test_model_over_2_gib_is_not_read_into_memory(tmp_path: Path) -> None:
    """The file is sparse: it takes no room on the disk."""
    rows, columns = 600_000, 1000
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (int64[N] i) => (float[N, 1000] y) { g = Gather(w, i) y = Add(g, g) }"""
    )
    weight = onnx.TensorProto(
        name="w", data_type=1, dims=[rows, columns], data_location=onnx.TensorProto.EXTERNAL
    )
    for key, text in {
        "location": "w.data",
        "offset": "0",
        "length": str(rows * columns * 4),
    }.items():
        weight.external_data.add(key=key, value=text)
    proto.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(rows * columns * 4)
        file.seek(columns * 4 * (rows - 1))
        file.write(np.full(columns, 3, np.float32).tobytes())
    model = load(tmp_path / "m.onnx")
    process = psutil.Process()
    before = process.memory_info().rss
    source = source_of([{"i": np.array([0, rows - 1])}], model)
    found = collect(model, ["y"], source, "mse", formats=int8(["y"]))
    assert found.ranges["y"].maximum == pytest.approx(6, rel=0.02)
    assert (process.memory_info().rss - before) / 2**20 < 200


def test_magnitudes_of_all_float_tensors() -> None:
    batches = images()
    both = collect(
        net(), ["a"], source_of(batches), "entropy", formats=int8(["a"]), all_tensors=True
    )
    assert set(both.magnitudes) == set(TENSORS)
    values = reference_values(net_proto(), TENSORS, batches)
    for name, span in both.magnitudes.items():
        np.testing.assert_allclose(span.amax, np.abs(values[name]).max(), rtol=1e-5)
    assert both.ranges["a"].amax <= both.magnitudes["a"].amax
    alone = collect_magnitudes(net(), source_of(batches))
    assert alone == both.magnitudes


BRANCHES = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N] x) => (float[N] y) {
  zero = Mul(x, nothing)
  large = Div(x, nothing)
  shape = Shape(x)
  some = Slice(x, first, first)
  none = Relu(some)
  total = ReduceSum <keepdims = 0> (x)
  cond = Greater(total, top)
  y = If (cond) <
    then_branch = g1 () => (float[N] t) { inside = Neg(x) t = Neg(inside) },
    else_branch = g2 () => (float[N] e) { e = Add(x, x) }
  >
}"""


def branches() -> ir.Model:
    model = parser.parse_model(BRANCHES)
    constants = {
        "nothing": np.zeros((), np.float32),
        "first": np.zeros(1, np.int64),
        "top": np.float32(1e9).reshape(()),
    }
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


@pytest.mark.parametrize("method", ["max", "entropy"])
def test_what_has_no_scale_is_named_and_calibration_goes_on(method: str) -> None:
    model = branches()
    batches = [{"x": np.array([1.0, -2.0], np.float32)}]
    names = ["x", "zero", "large", "inside", "absent", "some", "none", "total"]
    found = collect(model, names, source_of(batches, model), method, formats=int8(names))
    problems = {name: span.problem for name, span in found.ranges.items()}
    assert problems == {
        "x": None,
        "zero": Problem.ZERO,
        "large": Problem.NOT_FINITE,
        "inside": Problem.NEVER_SEEN,
        "absent": Problem.NEVER_SEEN,
        "some": Problem.NEVER_SEEN,
        "none": Problem.NEVER_SEEN,
        "total": None,
    }
    assert found.ranges["none"] == found.ranges["some"] == EMPTY
    assert found.notes == (
        "never seen in calibration, so it has no scale and stays float: 'inside', 'absent', "
        "'some', 'none'.",
        "always 0 in calibration, so it has no scale and stays float: 'zero'.",
        "not finite in calibration, so it has no scale and stays float: 'large'.",
    )


def test_nan_in_an_output_is_told_and_histograms_survive_it() -> None:
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            parser.parse_model(
                """<ir_version: 10, opset_import: ["" : 21]>
                net (float[N] x) => (float[N] y) { l = Log(x) y = Add(l, x) }"""
            )
        )
    )
    x = np.linspace(1, 3, 999, dtype=np.float32)
    x[500] = -1.0
    found = collect(
        model, ["x", "l"], source_of([{"x": x}], model), "entropy", formats=int8(["x", "l"])
    )
    assert "output 'y' holds NaN" in found.notes[0]
    assert found.ranges["x"].maximum == pytest.approx(3.0, rel=0.02)


def test_data_that_is_all_zero_is_refused() -> None:
    zeros = [{"x": np.zeros((1, 3, 16, 16), np.float32)}]
    with pytest.raises(CalibrationError, match="all 0: input 'x' of a list has no other value"):
        collect(net(), ["a"], source_of(zeros), formats=int8(["a"]))
    collect(net(), ["a"], source_of([*zeros, *images(1)]), formats=int8(["a"]))


def test_a_zero_input_is_right_beside_another_unless_it_is_quantized() -> None:
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            parser.parse_model(
                """<ir_version: 10, opset_import: ["" : 21]>
                net (float[N] x, float[N] state) => (float[N] y) { y = Add(x, state) }"""
            )
        )
    )
    batch = [{"x": np.ones(3, np.float32), "state": np.zeros(3, np.float32)}]
    assert collect(model, ["y"], source_of(batch, model), formats=int8(["y"])).batches == 1
    with pytest.raises(CalibrationError, match="'state'"):
        collect(model, ["state"], source_of(batch, model), formats=int8(["state"]))


def test_no_batches() -> None:
    with pytest.raises(CalibrationError, match="calibration data is empty: a list gave no batch"):
        collect(net(), ["a"], source_of([]), formats=int8(["a"]))


def test_batch_that_the_graph_cannot_take() -> None:
    model = ir.from_proto(
        parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21]>
            net (float[N, M] x, int64[K] i) => (float[K, M] y) { y = Gather(x, i) }"""
        )
    )
    batch = {"x": np.ones((2, 2), np.float32), "i": np.array([7])}
    with pytest.raises(CalibrationError, match=r"x \[2, 2\], i \[1\].*Gather.*idx=7"):
        collect(model, ["y"], source_of([batch], model), formats=int8(["y"]))


def test_model_that_onnx_runtime_cannot_open() -> None:
    model = ir.from_proto(
        parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21, "my.own" : 1]>
            net (float[N] x) => (float[N] y) { y = my.own.Thing(x) }"""
        )
    )
    batch = [{"x": np.ones(2, np.float32)}]
    with pytest.raises(ModelError, match="cannot open the float model.*Thing"):
        collect(model, ["x"], source_of(batch, model), formats=int8(["x"]))


def test_unknown_method() -> None:
    with pytest.raises(OptionError, match="choose one of max"):
        collect(net(), ["a"], source_of(images()), "minmax", formats=int8(["a"]))


def test_progress_counts_batches() -> None:
    told: list[tuple[int, int | None]] = []
    source = source_of(images(3))
    for method in ("mse", "max"):
        collect(
            net(), ["a"], source, method, formats=int8(["a"]), threads=1,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
    assert told == [(1, None), (2, None), (3, 3), (1, 3), (2, 3), (3, 3)]


def test_scalar_input() -> None:
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            parser.parse_model(
                """<ir_version: 10, opset_import: ["" : 21]>
                net (float[N] x, float f) => (float[N] y) { y = Mul(x, f) }"""
            )
        )
    )
    batch = [{"x": np.ones(3, np.float32), "f": np.float32(4)}]
    assert collect(model, ["y"], source_of(batch, model), formats=int8(["y"])).ranges["y"] == Range(
        4, 4
    )


def test_old_opset_gets_histograms_too() -> None:
    proto = parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 11]>
        net (float[N] x) => (float[N] y) { a = Abs(x) y = Add(a, x) }"""
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    x = np.linspace(-2, 6, 1000, dtype=np.float32)
    span = collect(
        model, ["y"], source_of([{"x": x}], model), "percentile:99", formats=int8(["y"])
    ).ranges["y"]
    assert span.maximum == pytest.approx(np.percentile(np.maximum(2 * x, 0), 99), abs=0.01)
    assert model.opset_imports[""] == 11


def test_data_is_read_once() -> None:
    passes = 0

    def make() -> Iterator[Batch]:
        nonlocal passes
        passes += 1
        yield from images()

    source = open_source(make, net())
    source.keep = False
    collect(net(), TENSORS, source, "entropy", formats=int8(TENSORS), all_tensors=True)
    assert passes == 1


@pytest.mark.parametrize("scale", [1e-36, 1e-20, 1.0, 1e20, 3e38])
def test_histograms_of_every_magnitude(scale: float) -> None:
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            parser.parse_model(
                """<ir_version: 10, opset_import: ["" : 21]>
                net (float[N] x) => (float[N] y) { y = Identity(x) }"""
            )
        )
    )
    values = np.linspace(-0.5, 1, 10_001) * scale
    parts = [values[:3000], values[3000:3001], values[3001:]]
    source = source_of([{"x": part.astype(np.float32)} for part in parts], model)
    found = collect(model, ["x"], source, "percentile:90", formats={"x": UINT8}).ranges["x"]
    if scale == 1e-36:  # bins end at 2**-100: all values are in bin 0
        assert found.problem is None
        return
    assert found.minimum == pytest.approx(np.percentile(values, 5), abs=scale / 1000)
    assert found.maximum == pytest.approx(np.percentile(values, 95), abs=scale / 1000)


@pytest.mark.parametrize("method", ["max", "entropy"])
def test_memory_does_not_grow_with_batches(method: str) -> None:
    """200 batches of 0.13 MB, each of them new; 160 of them kept would be 20 MB."""
    process, rng = psutil.Process(), np.random.default_rng(0)
    resident: list[int] = []

    def make() -> Iterator[Batch]:
        for number in range(200):
            resident.append(process.memory_info().rss)
            yield {"x": rng.standard_normal((1, 3, 100 + number % 7, 108), dtype=np.float32)}

    source = open_source(make, net())
    source.keep = False
    collect(net(), ["x", "c1"], source, method, formats=int8(["x", "c1"]))
    assert (max(resident) - resident[40]) / 2**20 < 10


def test_activations_are_freed_while_a_batch_runs() -> None:
    """40 layers of 4 MB: with statistics in the wrong order all 160 MB would be alive at once."""
    lines = [f"t{n + 1} = Relu(u{n}) u{n + 1} = Add(t{n + 1}, c)" for n in range(40)]
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[N] x) => (float[N] y) { u0 = Abs(x) """
        + " ".join(lines)
        + " y = Neg(u40) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(-0.01).reshape(()), "c"))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    names = [f"t{n + 1}" for n in range(40)]
    x = np.linspace(0.1, 9, 2**20, dtype=np.float32)
    before = psutil.Process().memory_info().rss
    peak = 0

    def watch(done: int, total: int | None) -> None:
        nonlocal peak
        peak = max(peak, psutil.Process().memory_info().rss)

    source = open_source([{"x": x}], model)
    collect(model, names, source, formats=int8(names), progress=watch, threads=1)
    assert 0 < (peak - before) / 2**20 < 60
