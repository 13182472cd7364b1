"""The whole way on small nets: one folder, one set of numbers, nothing done twice."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rich.console import Console

from fuseq.cli.main import run
from fuseq.deployment import stages
from fuseq.deployment.options import DeployOptions
from fuseq.deployment.running import STAGES, Deployed, deploy
from fuseq.errors import CalibrationError, ModelError, OptionError, TargetError
from fuseq.evaluate.compare import CompareOptions, compare
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan
from fuseq.report import document_json
from fuseq.report.document import Document
from fuseq.report.engine_rows import engine_of
from fuseq.report.summary import engines_table, reasons_table, sentences
from fuseq.targets import parse_target
from fuseq.targets.base import ShapeProfile
from tests.graphs import attention_net, conv_net, normal

TARGET = "tensorrt:sm80"
DATA = normal(5, 16, 8, 8, scale=1.0)


def options(**changes: Any) -> DeployOptions:
    quantize = QuantizeOptions(format="int8", target=TARGET, policy="full", batch=1)
    return dataclasses.replace(DeployOptions(quantize=quantize), **changes)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    ir.save(conv_net(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", DATA)
    return tmp_path


def deployed(folder: Path, **changes: Any) -> Deployed:
    return deploy(
        folder / "net.onnx",
        folder / "out",
        calib=str(folder / "data.npy"),
        options=options(**changes),
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("deploy")
    ir.save(conv_net(), folder / "net.onnx")
    np.save(folder / "data.npy", DATA)
    return deployed(folder)


def test_the_folder_holds_everything(result: Deployed) -> None:
    names = {path.name for path in result.folder.iterdir()}
    assert names == {
        ".fuseq", "model.onnx", "float.onnx", "plan.json", "scales.safetensors", "report.json",
        "report.html",
    }  # fmt: skip
    listed = {row.path: row for row in result.document.files}
    assert set(listed) == {"model.onnx", "float.onnx", "plan.json", "scales.safetensors"}
    for row in listed.values():
        assert row.file_bytes == (result.folder / row.path).stat().st_size
    assert result.document == document_json.load(result.folder / "report.json")
    assert result.kept == ()
    assert result.exit_code == 0


def test_engines_are_those_that_the_target_makes_of_the_files(result: Deployed) -> None:
    target = parse_target(TARGET)
    for row, file in zip(result.document.engines, ("float.onnx", "model.onnx"), strict=True):
        engine = target.compile(ir.load(result.folder / file), ShapeProfile({"x": (1, 16, 8, 8)}))
        assert engine_of(row).kernels == engine.kernels
        assert row.predicted_us == engine.predicted_us
        assert row.activation_bytes == engine.activation_bytes
        assert row.model_bytes == (result.folder / file).stat().st_size
        assert row.simulated
        assert f"--onnx={file}" in row.trtexec
        assert "--shapes" not in row.trtexec  # every input is static
    assert [row.label for row in result.document.engines] == ["FP16", "INT8"]


def test_closeness_is_that_of_compare(result: Deployed) -> None:
    model = result.folder.parent / "net.onnx"
    chosen = CompareOptions(names=("net.onnx", "quantized"))
    row = compare(
        model, result.folder / "model.onnx", data=str(model.parent / "data.npy"), options=chosen
    )
    assert result.document.comparisons[1] == row
    assert result.document.comparisons[0].other == "float"
    assert result.document.comparisons[0].tensors == ()
    worst = max(row.tensors, key=lambda tensor: tensor.relative or 0.0)
    assert result.document.modules[0].worst_tensor == worst.name
    assert result.document.modules[0].worst_relative == worst.relative


def test_every_layer_has_its_precision_and_reason(result: Deployed) -> None:
    """K23, K99: a table of what runs in which precision, and what is still float, and why."""
    plan = Plan.load(result.folder / "plan.json")
    rows = {row.name: row for row in result.document.layers}
    assert set(rows) == {region.name for region in plan.regions}
    for region in plan.regions:
        assert rows[region.name].reason == region.reason
        assert rows[region.name].quantized == region.quantized
    convolutions = [row for row in rows.values() if row.op_type == "Conv"]
    assert {row.engine_precision for row in convolutions if row.quantized} == {"int8"}
    assert len([row for row in convolutions if row.quantized]) == 3


def shown(document: Document) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(engines_table(document))
    console.print(reasons_table(document.layers))
    for sentence in sentences(document):
        console.print(sentence)
    return console.export_text()


def test_terminal_json_and_page_show_the_same_numbers(result: Deployed) -> None:
    document = result.document
    text = shown(document)
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    data = json.loads((result.folder / "report.json").read_text(encoding="utf-8"))
    (row,) = [line for line in text.splitlines() if line.startswith("INT8")]
    cells = row.split()
    engine = data["engines"][1]
    output = data["comparisons"][1]["outputs"][0]
    assert cells[1:] == [
        f"{engine['model_bytes'] / 1e6:.1f}", f"{engine['engine_bytes'] / 1e6:.1f}",
        str(len(engine["kernels"])), str(engine["alone_kernels"]),
        f"{engine['activation_bytes'] / 1e6:.1f}", f"{engine['predicted_us']:.1f}",
        f"{output['cosine_mean']:.4f}", f"{output['sqnr_db']:.1f}",
    ]  # fmt: skip
    exact = set(re.findall(r'<data [^>]*value="([^"]*)"', page))
    numbers = [
        engine["predicted_us"], engine["engine_bytes"], engine["model_bytes"],
        engine["activation_bytes"], len(engine["kernels"]), engine["alone_kernels"],
        output["cosine_mean"], output["sqnr_db"], output["relative"],
        *(kernel["predicted_us"] for kernel in engine["kernels"]),
        *(tensor["relative"] for tensor in data["comparisons"][1]["tensors"]),
    ]  # fmt: skip
    assert {repr(number) for number in numbers} <= exact
    speedup = data["timings"][1]["speedup"]
    assert f"predicted {speedup:.2f} times as fast" in text
    assert speedup == data["engines"][0]["predicted_us"] / engine["predicted_us"]
    assert not any(timing["measured"] for timing in data["timings"])


def test_the_same_again_does_nothing(net: Path) -> None:
    first = deployed(net)
    before = {
        path.name: path.stat().st_mtime_ns for path in (net / "out").iterdir() if path.is_file()
    }
    again = deployed(net)
    assert again.kept == tuple(STAGES)
    assert again.document == first.document
    after = {
        path.name: path.stat().st_mtime_ns for path in (net / "out").iterdir() if path.is_file()
    }
    assert after == before


@pytest.mark.parametrize(
    ("change", "redone"),
    [
        ({"samples": 2}, {"compare", "report"}),
        ({"seconds": 1.0}, {"bench"}),
        ({"quantize": QuantizeOptions(target=TARGET, policy="full", batch=2)}, set(STAGES)),
    ],
)
def test_only_what_changed_is_redone(net: Path, change: dict[str, Any], redone: set[str]) -> None:
    if "quantize" in change:  # another batch needs a model that takes it
        model = conv_net()
        for value in (*model.graph.inputs, *model.graph.outputs):
            value.shape = ir.Shape(["N", *value.shape[1:]])  # type: ignore[index]
        ir.save(model, net / "net.onnx")
    deployed(net)
    again = deployed(net, **change)
    assert set(STAGES) - set(again.kept) - redone <= {"report"}
    assert redone.isdisjoint(set(again.kept))


@pytest.mark.parametrize("what", ["data", "weights"])
def test_other_content_is_noticed_whatever_the_name(net: Path, what: str) -> None:
    first = deployed(net)
    if what == "data":
        np.save(net / "data.npy", 2 * DATA)
    else:
        model = conv_net()
        weight = model.graph.initializers["w1"]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.5), name="w1")
        ir.save(model, net / "net.onnx")
    again = deployed(net)
    assert "quantize" not in again.kept
    assert again.document.comparisons != first.document.comparisons


def test_an_interrupt_keeps_what_is_finished(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stages, "compare", interrupt)
        with pytest.raises(KeyboardInterrupt):
            deployed(net)
    assert not (net / "out/report.json").exists()
    again = deployed(net)
    assert again.kept == ("quantize", "float-engine", "engine", "check")


def test_python_data_is_known_by_its_content(net: Path) -> None:
    def arrays(scale: float) -> list[dict[str, np.ndarray]]:
        return [{"x": DATA[i : i + 1] * np.float32(scale)} for i in range(3)]

    def go(calib: object) -> Deployed:
        return deploy(net / "net.onnx", net / "out", calib=calib, options=options())

    go(arrays(1.0))
    assert go(arrays(1.0)).kept == tuple(STAGES)
    assert "quantize" not in go(arrays(2.0)).kept


def test_a_cpu_is_measured(net: Path) -> None:
    chosen = QuantizeOptions(format="int8", target="onnxruntime:cpu", policy="full", batch=1)
    document = deployed(net, quantize=chosen, seconds=0.1).document
    measured = {row.engine: row for row in document.timings if row.measured}
    assert set(measured) == {"float", "quantized"}
    assert measured["float"].speedup == 1.0
    assert (measured["quantized"].iterations or 0) >= 10
    assert [engine.label for engine in document.engines] == ["FP32", "INT8"]
    assert all(engine.measured_us and engine.predicted_us is None for engine in document.engines)
    assert document.missing == ()
    assert "measured by onnxruntime:cpu" in shown(document)
    assert not list((net / "out").glob("*.engine"))


def test_nothing_quantized_is_said(net: Path) -> None:
    chosen = QuantizeOptions(format="int8", target=TARGET, policy="full", batch=1, exclude=("*",))
    document = deployed(net, quantize=chosen).document
    assert not any(row.quantized for row in document.layers)
    assert "Nothing is quantized: every layer is in float" in shown(document)
    assert document.engines[0].predicted_us == document.engines[1].predicted_us


@pytest.mark.skipif(parse_target("tensorrt-rtx:sm89").missing() is not None, reason="no compiler")
def test_engines_are_written_and_are_what_the_compiler_made(net: Path) -> None:
    chosen = QuantizeOptions(format="fp8", target="tensorrt-rtx:sm89", policy="full", batch=1)
    document = deployed(net, quantize=chosen).document
    assert [engine.engine_file for engine in document.engines] == ["float.engine", "model.engine"]
    for engine in document.engines:
        data = (net / "out" / engine.engine_file).read_bytes()
        assert len(data) == engine.engine_bytes
        assert data[:4] == b"vtrt"
    assert [row.role for row in document.files].count("engine") == 2
    assert [engine.label for engine in document.engines] == ["FP16", "FP8"]
    assert "tensorrt_rtx --onnx=model.onnx" in document.engines[1].trtexec


def test_another_metric_of_the_same_name_is_asked_again(in_folder: Path) -> None:
    def go(body: str) -> Deployed:
        (in_folder / "mine_again.py").write_text(f"def number(pairs):\n    return {body}\n")
        sys.modules.pop("mine_again", None)
        importlib.invalidate_caches()
        return deployed(in_folder, metric="mine_again:number")

    assert go("sum(1 for _ in pairs)").document.comparisons[1].metrics[0].other == 5.0
    assert "compare" in go("sum(1 for _ in pairs)").kept
    again = go("sum(10 for _ in pairs)")
    assert "compare" not in again.kept
    assert again.document.comparisons[1].metrics[0].other == 50.0


def test_attention_is_told_by_module_and_layer(tmp_path: Path) -> None:
    ir.save(attention_net(), tmp_path / "net.onnx")
    data = [{"x": normal(1, 16, 64, seed=seed, scale=1.0)} for seed in range(3)]
    chosen = QuantizeOptions(format="fp8", target="tensorrt:sm89", policy="full", batch=1)
    document = deploy(
        tmp_path / "net.onnx", tmp_path / "out", calib=data, options=DeployOptions(quantize=chosen)
    ).document
    graph = document.graphs[1]
    kernels = document.engines[1].kernels
    for node in graph.nodes:
        if node.kernel is not None:
            assert node.name in kernels[node.kernel].nodes
    scales = [tensor for tensor in graph.tensors if tensor.dtype == "fp8" and tensor.scale]
    assert scales
    assert all(tensor.scale_count == 1 for tensor in scales)


def test_nothing_is_left_of_what_is_refused(net: Path) -> None:
    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (TargetError, {"quantize": QuantizeOptions(format="fp8", target="tensorrt:sm80")}),
        (OptionError, {"samples": 0}),
    ]
    for error, change in cases:
        with pytest.raises(error):
            deployed(net, **change)
    with pytest.raises(CalibrationError):
        deploy(net / "net.onnx", net / "out", calib=str(net / "none.npy"), options=options())
    with pytest.raises(ModelError):
        deploy(net / "none.onnx", net / "out", calib="random", options=options())
    assert not (net / "out").exists()


def test_a_quantized_file_is_refused(result: Deployed) -> None:
    with pytest.raises(
        ModelError, match=r"quantized already \(\d+ quantization nodes,.*`fuseq fix`"
    ):
        deploy(result.folder / "model.onnx", result.folder.parent / "again", calib="random")


@pytest.fixture
def in_folder(net: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(net)
    yield net


def test_the_command(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["net.onnx", "--calib", "data.npy", "--format", "int8", "--target", TARGET]
    arguments += ["--policy", "full", "--batch", "1"]
    assert run(["deploy", *arguments]) == 0
    told = capsys.readouterr()
    assert "The INT8 engine is predicted" in told.out
    assert "net-int8-tensorrt-sm80/, first report.html" in told.out
    assert "tensorrt:sm80 was not timed: " in told.out
    assert run(["deploy", *arguments, "--json"]) == 0
    told = capsys.readouterr()
    text = (in_folder / "net-int8-tensorrt-sm80/report.json").read_text(encoding="utf-8")
    assert json.loads(told.out) == json.loads(text)


def test_quantize_options_mean_the_same_here(in_folder: Path) -> None:
    arguments = ["net.onnx", "--calib", "data.npy", "--target", TARGET, "--policy", "full"]
    more = ["--batch", "1", "--rounding", "gptq", "--bias-correction"]
    assert run(["quantize", *arguments, *more, "-o", "quantized.onnx"]) == 0
    assert run(["deploy", *arguments, *more, "--out", "refined"]) == 0
    assert run(["deploy", *arguments, "--batch", "1", "--out", "plain"]) == 0
    refined = (in_folder / "refined/model.onnx").read_bytes()
    assert refined == (in_folder / "quantized.onnx").read_bytes()
    assert refined != (in_folder / "plain/model.onnx").read_bytes()
