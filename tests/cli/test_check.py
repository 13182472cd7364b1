"""The command ``fuseq check``: formats, exit codes, settings, several targets, engines, hostile files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuseq.checks.all_rules import RULES
from fuseq.cli.main import run
from tests.checks import examples

QUIET = ("--no-compile", "--target", "tensorrt:sm80")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ir.save(examples.biased(True), tmp_path / "bad.onnx")
    ir.save(examples.quantized_conv(), tmp_path / "good.onnx")
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["check", *arguments])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, "good.onnx", *QUIET)[0] == 0
    assert check(capsys, "bad.onnx", *QUIET)[0] == 1
    assert check(capsys, "gone.onnx", *QUIET)[0] == 2
    assert check(capsys)[0] == 2
    assert check(capsys, "good.onnx", "--batch", "0")[0] == 2
    assert check(capsys, "good.onnx", "--profile", "p.json")[0] == 2


def test_text_names_node_tensor_and_fix_and_always_the_coverage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = check(capsys, "bad.onnx", *QUIET)
    assert "FQ203 error quantized-bias: DequantizeLinear_b" in out and "(tensor bq)" in out
    assert "fix (safe): store the bias in float" in out
    assert "coverage: 1 of 1 layers with weights are quantized (100 % of the multiply-adds)" in out
    _, out, _ = check(capsys, "good.onnx", *QUIET)
    assert "0 findings" in out and "coverage: 1 of 1" in out


def test_source_line_of_the_users_model(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    model = examples.half_quantized()
    for node in model.graph:
        if node.op_type == "Conv":
            node.metadata_props["fuseq.source"] = "net.py:7 in forward: return self.conv(x)"
    ir.save(model, folder / "lines.onnx")
    _, out, _ = check(capsys, "lines.onnx", *QUIET)
    assert "    net.py:7 in forward: return self.conv(x)" in out
    _, out, _ = check(capsys, "lines.onnx", *QUIET, "--format", "github")
    assert out.startswith("::warning file=net.py,line=7,title=FQ102 half-quantized-layer::Conv_y")


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    _, out, _ = check(capsys, *arguments)
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = document(capsys, "bad.onnx", *QUIET, "--format", "json")
    (finding,) = numbers["findings"]
    assert finding["code"] == "FQ203" and finding["confirmed"] is False
    assert finding["cost"] == {"us": None, "nbytes": None, "measured": False}
    assert numbers["coverage"]["quantized"] == 1
    assert numbers["targets"][0]["builds"] is None


def test_sarif(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = document(capsys, "bad.onnx", *QUIET, "--format", "sarif")
    assert numbers["version"] == "2.1.0"
    (sarif_run,) = numbers["runs"]
    assert [rule["id"] for rule in sarif_run["tool"]["driver"]["rules"]] == [r.code for r in RULES]
    (result,) = sarif_run["results"]
    assert result["ruleId"] == "FQ203" and result["level"] == "error"
    location = result["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "bad.onnx"
    assert location["logicalLocations"][0]["name"].startswith("DequantizeLinear_b")


def test_select_and_ignore(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, "bad.onnx", *QUIET, "--select", "FQ1,FQ3")[0] == 0
    assert check(capsys, "bad.onnx", *QUIET, "--ignore", "fq203")[0] == 0
    code, _, err = check(capsys, "bad.onnx", *QUIET, "--select", "XY1")
    assert code == 2 and "'XY1'" in err


@pytest.mark.parametrize("word", ["FQ106", "broken-attention", "fq106"])
def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str], word: str) -> None:
    code, out, _ = check(capsys, "--explain", word)
    assert code == 0 and out.startswith("# FQ106 broken-attention") and "## Fix safety" in out


def test_explain_an_unknown_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = check(capsys, "--explain", "FQ999")
    assert code == 2 and "'FQ999'" in err


@pytest.mark.parametrize(
    ("name", "head"), [("fuseq.toml", ""), ("pyproject.toml", "[tool.fuseq]\n")]
)
def test_settings(capsys: pytest.CaptureFixture[str], folder: Path, name: str, head: str) -> None:
    (folder / name).write_text(f'{head}ignore = ["FQ203"]\ntarget = ["tensorrt:sm89"]\n')
    code, out, err = check(capsys, "bad.onnx", "--no-compile")
    assert code == 0 and "tensorrt:sm89" in out and name in err


def test_settings_of_layers_meant_to_stay_float(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    ir.save(examples.coverage(False), folder / "half.onnx")
    assert check(capsys, "half.onnx", *QUIET)[0] == 1
    (folder / "fuseq.toml").write_text('keep-float = ["Conv_y*"]\n')
    assert check(capsys, "half.onnx", *QUIET)[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ignore = 3", "ignore is 3"),
        ("colour = 'red'", "colour = 'red' is no setting"),
        ("batch = true", "batch = True is no setting"),
        ("= broken", "cannot be read as TOML"),
    ],
)
def test_settings_that_are_not_allowed(
    capsys: pytest.CaptureFixture[str], folder: Path, text: str, said: str
) -> None:
    (folder / "fuseq.toml").write_text(text)
    code, _, err = check(capsys, "good.onnx", *QUIET)
    assert code == 2 and said in err and "fuseq.toml" in err


def test_several_targets_give_a_matrix(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    ir.save(examples.fp8_conv(), folder / "fp8.onnx")
    arguments = ("fp8.onnx", "--target", "tensorrt:sm80,tensorrt:sm89", "--batch", "1")
    numbers = document(capsys, *arguments, "--format", "json")
    assert [(row["target"], row["builds"]) for row in numbers["targets"]] == [
        ("tensorrt:sm80", False),
        ("tensorrt:sm89", True),
    ]
    code, out, _ = check(capsys, *arguments)
    assert code == 1 and "tensorrt:sm80: node 'QuantizeLinear_xd" in out


def test_findings_of_the_real_compiler_are_confirmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    arguments = ("bad.onnx", "--target", "tensorrt-rtx:sm89", "--batch", "1", "--format", "json")
    numbers = document(capsys, *arguments)
    assert numbers["targets"][0]["builds"] is False
    confirmed = {f["code"]: f["confirmed"] for f in numbers["findings"]}
    assert confirmed["FQ203"] is True


def layer(name: str, kind: str, reads: str, writes: str, types: tuple[str, str]) -> dict[str, Any]:
    """A layer as trtexec writes it (TensorRT 8 spelling)."""

    def tensor(tensor_name: str, word: str) -> dict[str, Any]:
        return {"Name": tensor_name, "Dimensions": [1, 32, 8, 8], "Format/Datatype": word}

    return {
        "Name": name,
        "LayerType": kind,
        "Inputs": [tensor(reads, types[0])],
        "Outputs": [tensor(writes, types[1])],
        **({"Origin": "QDQ"} if kind == "Reformat" else {}),
    }


def engine_files(folder: Path) -> None:
    half, int8 = "Row major linear FP16 format", "Row major Int8 format"
    layers = [
        layer("QuantizeLinear_0", "Reformat", "x", "a", ("Row major linear FP32", int8)),
        layer("Conv_1", "CaskConvolution", "a", "b", (int8, half)),
        layer("QuantizeLinear_2", "Reformat", "b", "c", (half, int8)),
        layer("Conv_3", "CaskConvolution", "c", "y", (int8, half)),
    ]
    (folder / "graph.json").write_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}))
    times = [{"count": 10}]
    times += [{"name": item["Name"], "averageMs": 0.01 * (i + 1)} for i, item in enumerate(layers)]
    (folder / "profile.json").write_text(json.dumps(times))


def test_an_engine_of_trtexec_names_what_ran_alone(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    engine_files(folder)
    numbers = document(
        capsys, "--layer-info", "graph.json", "--profile", "profile.json", "--format", "json"
    )
    found = [(f["node"], f["severity"], f["cost"]["us"]) for f in numbers["findings"]]
    assert found == [("QuantizeLinear_0", "note", 10.0), ("QuantizeLinear_2", "warning", 30.0)]
    assert all(f["confirmed"] and f["cost"]["measured"] for f in numbers["findings"])
    code, out, _ = check(capsys, "graph.json")  # the same as the argument, without times
    assert code == 1 and "QuantizeLinear_2" in out and "ms measured" not in out


def test_an_engine_with_its_model_runs_the_rules_about_fusion(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    engine_files(folder)
    ir.save(examples.residual("x0"), folder / "net.onnx")
    arguments = ("net.onnx", "--layer-info", "graph.json", "--format", "json", "--select", "FQ103")
    named = document(capsys, *arguments, "--target", "tensorrt:sm80")
    assert [f["code"] for f in named["findings"]] == ["FQ103"] and named["notes"] == []
    assumed = document(capsys, *arguments)
    assert assumed["findings"] == named["findings"]
    assert assumed["notes"] == ["fusion rules of tensorrt:sm89 are assumed; --target names another"]
    mended = (*arguments[1:], "--target", "tensorrt:sm80")
    ir.save(examples.residual("xd"), folder / "mended.onnx")
    assert document(capsys, "mended.onnx", *mended)["findings"] == []


@pytest.mark.parametrize(
    "content", ["[1]", "{}", '{"Layers": 3}', "{", '{"Layers": [{"Name": 1}]}']
)
def test_json_that_is_no_engine(
    capsys: pytest.CaptureFixture[str], folder: Path, content: str
) -> None:
    (folder / "graph.json").write_text(content)
    code, _, err = check(capsys, "graph.json")
    assert code == 2 and err.startswith("error: graph.json")


def save_nodes(file: Path, nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    file.write_bytes(model.SerializeToString())


def node(kind: str, inputs: list[str], output: str, name: str) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=name)


def test_a_cyclic_graph(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    save_nodes(
        folder / "h.onnx",
        [node("Add", ["x", "b"], "a", "n1"), node("Relu", ["a"], "b", "n2"),
         node("Relu", ["b"], "y", "n3")],
    )  # fmt: skip
    code, _, err = check(capsys, "h.onnx", *QUIET)
    assert code == 2 and err.count("\n") == 1 and "'n1'" in err and "cycle" in err


def test_a_missing_initializer(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    save_nodes(folder / "h.onnx", [node("Add", ["x", "w"], "y", "n1")])
    code, _, err = check(capsys, "h.onnx", *QUIET)
    assert code == 2 and err.count("\n") == 1 and "reads 'w', which no node" in err


def test_duplicated_names(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    twice = [node("Relu", ["x"], "t", "n"), node("Relu", ["t"], "y", "n")]
    save_nodes(folder / "h.onnx", twice)
    assert check(capsys, "h.onnx", *QUIET)[0] == 0
    save_nodes(folder / "h.onnx", [twice[0], node("Relu", ["x"], "t", "m"), twice[1]])
    code, _, err = check(capsys, "h.onnx", *QUIET)
    assert code == 2 and err.count("\n") == 1 and "'t' is redeclared" in err


def test_names_with_control_characters_and_markup(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    scale = numpy_helper.from_array(np.array([0.1, 0.2, 0.3], np.float32), "s")
    save_nodes(
        folder / "h.onnx",
        [
            node("QuantizeLinear", ["x", "s"], "q", "a\x1b[31m\n::error::[bold red]"),
            node("DequantizeLinear", ["q", "s"], "y", "d"),
        ],
        scale,
    )
    for form in ("text", "json", "sarif", "github"):
        code, out, err = check(capsys, "h.onnx", *QUIET, "--format", form, "--select", "FQ304")
        assert code == 1 and "\x1b" not in out + err
        if form == "text":
            assert "[bold red]" in out and "3 scales" in out
        if form == "github":
            assert all(line.startswith("::error file=h.onnx,title=") for line in out.splitlines())


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([("QuantizeLinear", ["x"], "q"), ("DequantizeLinear", ["q", "x"], "y")], "1 inputs"),
        ([("QuantizeLinear", ["x", "x"], "q"), ("DequantizeLinear", ["q", "x"], "y")], ""),
        ([("Conv", ["x"], "y")], "1 inputs"),
        ([("Softmax", [""], "y")], "0 inputs"),
        ([("Concat", [""], "y")], "0 inputs"),
    ],
)
def test_operators_without_inputs_or_scales(
    nodes: list[tuple[str, list[str], str]],
    said: str,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
) -> None:
    made = [node(kind, read, written, f"n{i}") for i, (kind, read, written) in enumerate(nodes)]
    save_nodes(folder / "h.onnx", made)
    code, _, err = check(capsys, "h.onnx", *QUIET)
    if said:
        assert code == 2 and f"has {said}" in err and "the operator takes at least" in err
    else:
        assert code in (0, 1) and err == ""


def test_an_operator_of_nobody_is_read(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    save_nodes(
        folder / "h.onnx", [helper.make_node("Nope", ["x"], ["y"], name="n", domain="strange")]
    )
    code, _, err = check(capsys, "h.onnx", *QUIET)
    assert code in (0, 1) and err == ""


def test_a_graph_of_very_many_nodes_is_not_compiled(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    count = 20_001
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    nodes = [node("Relu", [names[i]], names[i + 1], f"n{i}") for i in range(count)]
    save_nodes(folder / "h.onnx", nodes)
    code, out, _ = check(capsys, "h.onnx", "--target", "tensorrt:sm80")
    assert code == 0 and "not compiled: 20001 nodes, the limit is 20000" in out
