"""Files that no exporter should write: check, check --fix and fix end in one sentence, in bounded CPU time."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuseq.cli.main import run

TARGET = ("--target", "tensorrt:sm80", "--batch", "1")
COMMANDS = {
    "check": lambda file: ["check", file, *TARGET],
    "check --fix": lambda file: ["check", file, *TARGET, "--unsafe-fixes", "--fix", "-o", "o.onnx"],
    "fix": lambda file: ["fix", file, *TARGET, "-o", "o.onnx"],
    "fix --keep-placement": lambda file: ["fix", file, *TARGET, "--keep-placement", "-o", "o.onnx"],
}
LIMIT_S = 60.0


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fail when this process computes for longer; waiting on a busy machine does not count."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"over {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def node(kind: str, inputs: list[str], output: str, name: str, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=name, **attributes)


def save(nodes: list[onnx.NodeProto], **weights: np.ndarray) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Path("h.onnx").write_bytes(model.SerializeToString())


def pair(source: str, out: str, name: str, scale: str = "s") -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [source, scale, "z"], f"{out}_q", f"{name}_q"),
        node("DequantizeLinear", [f"{out}_q", scale, "z"], out, f"{name}_dq"),
    ]


S, Z = np.float32(0.1), np.int8(0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    with cpu_limit(LIMIT_S):
        code = run(COMMANDS[command]("h.onnx"))
    out = capsys.readouterr()
    assert "Traceback" not in out.err and "\x1b" not in out.out + out.err
    return code, out.out, out.err


def refused(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """The one sentence of a file that cannot be used; nothing is written."""
    code, _, err = said(capsys, command)
    assert code == 2 and err.count("\n") == 1 and err.startswith("error: "), err
    assert not Path("o.onnx").exists()
    return err


each_command = pytest.mark.parametrize("command", list(COMMANDS))


@each_command
@pytest.mark.parametrize("length", [1, 2_000])
def test_a_cycle(capsys: pytest.CaptureFixture[str], command: str, length: int) -> None:
    nodes = [node("Add", ["x", f"a{length}"], "a0", "start"), *pair("a0", "y", "p")]
    nodes += [node("Relu", [f"a{i}"], f"a{i + 1}", f"n{i}") for i in range(length)]
    save(nodes, s=S, z=Z)
    err = refused(capsys, command)
    assert "cycle" in err and "'start'" in err


@each_command
def test_a_missing_initializer(capsys: pytest.CaptureFixture[str], command: str) -> None:
    save([*pair("x", "d", "p"), node("Add", ["d", "w"], "y", "n1")], s=S, z=Z)
    assert "'n1' (Add) reads 'w', which no node, input or initializer makes" in refused(
        capsys, command
    )


@each_command
def test_a_missing_scale(capsys: pytest.CaptureFixture[str], command: str) -> None:
    save(pair("x", "y", "p"), z=Z)
    assert "'p_q' (QuantizeLinear) reads 's'" in refused(capsys, command)


@each_command
def test_a_tensor_that_two_nodes_make(capsys: pytest.CaptureFixture[str], command: str) -> None:
    save([*pair("x", "d", "p"), node("Relu", ["x"], "d", "m"), node("Relu", ["d"], "y", "n")],
         s=S, z=Z)  # fmt: skip
    assert "'d' is redeclared" in refused(capsys, command)


@each_command
def test_nodes_of_one_name(capsys: pytest.CaptureFixture[str], command: str) -> None:
    save([*pair("x", "d", "n"), *pair("d", "e", "n"), node("Relu", ["e"], "y", "n_q")], s=S, z=Z)
    assert said(capsys, command)[0] in (0, 1)


@each_command
def test_names_of_control_characters_and_markup(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    name = "a\x1b[31m\n::error::[bold red]<script>"
    save([*pair("x", name, name), node("Sigmoid", [name], "y", name)], s=S, z=np.int8(3))
    code, out, _ = said(capsys, command)
    assert code in (0, 1) and "\n::error::" not in out


@each_command
@pytest.mark.parametrize(
    "scale",
    [
        np.full(3, 0.1, np.float32),
        np.full((2, 2), 0.1, np.float32),
        np.zeros((0,), np.float32),
        np.full((1, 1, 1, 1, 1), 0.1, np.float32),
    ],
    ids=lambda s: str(s.shape),
)
def test_scales_whose_shape_does_not_fit(
    capsys: pytest.CaptureFixture[str], command: str, scale: np.ndarray
) -> None:
    save([*pair("x", "d", "p"), node("Relu", ["d"], "y", "r")], s=scale, z=Z)
    code, out, err = said(capsys, command)
    assert code in (0, 1, 2) and (code != 2 or err.count("\n") == 1)
    if scale.size == 3:
        assert "3 " in out + err and ("4 elements" in out + err or "FQ304" in out + err)


@each_command
def test_a_weight_whose_scales_do_not_fit(capsys: pytest.CaptureFixture[str], command: str) -> None:
    weight = np.ones((4, 4), np.int8)
    save(
        [
            *pair("x", "d", "p"),
            node("DequantizeLinear", ["w", "t"], "e", "wd", axis=1),
            node("MatMul", ["d", "e"], "y", "m"),
        ],
        s=S, z=Z, w=weight, t=np.full(3, 0.1, np.float32),
    )  # fmt: skip
    code, out, err = said(capsys, command)
    assert code in (0, 1, 2) and (code != 2 or err.count("\n") == 1)
    assert "wd" in out + err or command.startswith("fix")  # fix leaves the node as it is


@pytest.mark.slow
def test_a_hundred_thousand_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    count = 100_000
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    save([node("Relu", [names[i]], names[i + 1], f"n{i}") for i in range(count)])
    code, out, _ = said(capsys, "check")
    assert code == 0 and f"not compiled: {count} nodes, the limit is 20000" in out
    for command in ("check --fix", "fix", "fix --keep-placement"):
        assert f"{count} nodes; 30000 are the most that are mended" in refused(capsys, command)


def test_a_plugin_that_is_called_as_a_product(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = helper.make_node("Conv", ["x"], ["d"], name="c", domain="trt")
    save([plugin, *pair("d", "e", "p"), node("Relu", ["e"], "y", "r")], s=S, z=Z)
    for command in COMMANDS:
        code, _, err = said(capsys, command)
        assert code in (0, 1, 2) and "IndexError" not in err
        Path("o.onnx").unlink(missing_ok=True)
