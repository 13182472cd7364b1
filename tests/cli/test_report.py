"""`fuseq report` and `--html`: page, JSON and terminal hold the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from fuseq.cli.main import run
from fuseq.report import document_json
from tests.graphs import conv_net
from tests.quantized_nets import naive_block
from tests.report.html.parsing import Page

TARGET = "tensorrt:sm80"


@pytest.fixture
def net(tmp_path: Path) -> str:
    ir.save(naive_block(), tmp_path / "int8.onnx")
    ir.save(conv_net(), tmp_path / "float.onnx")
    return str(tmp_path / "int8.onnx")


def values(page: Path) -> list[str]:
    """Exact values of every number on the page."""
    return [each["value"] for each in Page(page.read_text(encoding="utf-8")).all("data")]


def layer(name: str, kind: str, **more: Any) -> dict[str, Any]:
    fp16 = "Channel major FP16 format where channel % 8 == 0"
    int8 = "Thirty-two wide channel vectorized row major Int8 format"
    written = int8 if "QDQ" in name else fp16
    tensors = {"Inputs": [{"Name": "x", "Dimensions": [8, 64, 56, 56], "Format/Datatype": fp16}],
               "Outputs": [{"Name": f"{name}_y", "Dimensions": [8, 64, 56, 56], "Format/Datatype": written}]}  # fmt: skip
    return {"Name": name, "LayerType": kind, **tensors, **more}


def engine(folder: Path, name: str, times_ms: dict[str, float]) -> tuple[str, str]:
    """Layer list and profile as trtexec writes them; a layer whose name has QDQ is a quantizer."""
    layers = [
        layer(each, "Reformat", Origin="QDQ") if "QDQ" in each else layer(each, "CaskConvolution")
        for each in times_ms
    ]
    station = {"Name": "[trainStation1]", "LayerType": "TrainStation", "Inputs": [], "Outputs": []}
    graph, profile = folder / f"{name}.graph.json", folder / f"{name}.profile.json"
    graph.write_text(json.dumps({"Layers": [*layers, station], "Bindings": ["x"]}))
    records = [{"name": key, "averageMs": ms, "timeMs": ms * 10, "percentage": 1.0} for key, ms in times_ms.items()]  # fmt: skip
    profile.write_text(json.dumps([{"count": 10}, *records]))
    return str(graph), str(profile)


def test_the_page_names_the_command_that_made_it(net: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    made_by = "<span>made by</span> fuseq {}</li>"
    assert run(["report", net, "--target", TARGET, "-o", str(page)]) == 0
    assert made_by.format("report") in page.read_text(encoding="utf-8")
    assert run(["check", net, "--target", TARGET, "--html", str(page)]) == 1
    assert made_by.format("check") in page.read_text(encoding="utf-8")


def test_page_json_and_terminal_hold_the_same_numbers(
    capsys: pytest.CaptureFixture[str], net: str, tmp_path: Path
) -> None:
    page, file = tmp_path / "report.html", tmp_path / "report.json"
    assert run(["report", net, "--target", TARGET, "-o", str(page), "--json", str(file)]) == 0
    document = document_json.load(file)
    shown = values(page)
    capsys.readouterr()
    assert run(["compile", net, "--target", TARGET, "--json"]) == 0
    compiled = json.loads(capsys.readouterr().out)
    assert run(["compile", net, "--target", TARGET, "--kernels"]) == 0
    terminal = capsys.readouterr().out
    kernels = document.engines[-1].kernels
    assert [k.predicted_us for k in kernels] == [k["predicted_us"] for k in compiled["kernel_list"]]
    for kernel in kernels:
        assert repr(kernel.predicted_us) in shown
        assert f"{kernel.predicted_us:.1f}" in terminal
    assert repr(document.engines[-1].predicted_us) in shown
    assert repr(document.timings[-1].speedup) in shown


def test_a_document_gives_the_page_that_was_written_with_it(net: str, tmp_path: Path) -> None:
    page, file, again = (str(tmp_path / name) for name in ("a.html", "a.json", "b.html"))
    assert run(["report", net, "--target", TARGET, "-o", page, "--json", file]) == 0
    assert run(["report", file, "-o", again]) == 0
    assert Path(again).read_bytes() == Path(page).read_bytes()


def test_one_model_stands_beside_its_float_twin_and_several_beside_the_first(
    net: str, tmp_path: Path
) -> None:
    file, page = tmp_path / "a.json", str(tmp_path / "a.html")
    assert run(["report", net, "--target", TARGET, "-o", page, "--json", str(file)]) == 0
    alone = document_json.load(file)
    assert [e.label for e in alone.engines] == ["FP16, no Q/DQ", "INT8"]
    both = [str(tmp_path / "float.onnx"), net]
    assert run(["report", *both, "--target", TARGET, "-o", page, "--json", str(file)]) == 0
    beside = document_json.load(file)
    assert [e.label for e in beside.engines] == ["float", "INT8"]
    assert beside.engines[1].kernels == alone.engines[1].kernels
    assert [graph.engine for graph in beside.graphs] == [e.name for e in beside.engines]
    assert [row.path for row in beside.modules] == [row.path for row in alone.modules]


def test_measured_totals_of_engines_and_their_quantizers(tmp_path: Path) -> None:
    """K97 too: the TrainStation layer has no outputs and is no kernel."""
    before = engine(tmp_path, "fp16", {"conv1": 0.25, "conv2": 0.5})
    after = engine(tmp_path, "qat", {"conv1": 0.125, "Q1 QDQ": 0.375, "conv2": 0.25})
    page, file = tmp_path / "r.html", tmp_path / "r.json"
    sources = [before[0], after[0], "--profile", before[1], "--profile", after[1]]
    assert run(["report", *sources, "-o", str(page), "--json", str(file)]) == 0
    document = document_json.load(file)
    assert [e.measured_us for e in document.engines] == [750.0, 750.0]
    assert [k.name for k in document.engines[1].kernels if k.alone] == ["Q1 QDQ"]
    assert document.findings[0].node == "Q1 QDQ"
    assert (document.findings[0].cost_us, document.findings[0].cost_measured) == (375.0, True)
    text = Page(page.read_text(encoding="utf-8")).text
    assert "Q/DQ and casts375.0 \N{MICRO SIGN}s 50.0 %" in text
    assert "375.0" in values(page) and "750.0" in values(page)
    assert "trainStation" not in text


def test_what_does_not_fit_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph, profile = engine(tmp_path, "fp16", {"conv1": 0.25})
    assert run(["report", graph, graph, "--profile", profile]) == 2
    assert "--profile is given 1 times for 2 layer lists" in capsys.readouterr().err
    assert run(["report"]) == 2
    assert "nothing to report" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert run(["report", str(tmp_path / "bad.json")]) == 2
    assert "not JSON" in capsys.readouterr().err
    assert run(["report", str(tmp_path / "none.json")]) == 2
    assert run(["report", graph, "-o", str(tmp_path / "no" / "r.html")]) == 2
    assert "does not exist; make it" in " ".join(capsys.readouterr().err.split())


def test_check_bench_and_profile_write_the_page(
    capsys: pytest.CaptureFixture[str], net: str, tmp_path: Path
) -> None:
    page = tmp_path / "r.html"
    assert run(["check", net, "--target", TARGET, "--format", "json", "--html", str(page)]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    text = Page(page.read_text(encoding="utf-8")).text
    assert all(finding["message"][:40] in text for finding in found)
    assert run(["bench", net, "--target", TARGET, "--json", "--html", str(page)]) == 1
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert repr(row["predicted_us"] / 1e3) in values(page)
    assert run(["profile", net, "--target", TARGET, "--json", "--html", str(page)]) == 1
    profiled = json.loads(capsys.readouterr().out)
    assert repr(profiled["engines"][0]["kernels"][0]["predicted_us"]) in values(page)


def test_check_html_does_not_go_with_fix(
    capsys: pytest.CaptureFixture[str], net: str, tmp_path: Path
) -> None:
    assert run(["check", net, "--fix", "--html", str(tmp_path / "r.html")]) == 2
    assert "does not go with --fix" in capsys.readouterr().err
