"""Thousands of damaged files and options: a documented error or a result, nothing else.

Each case runs the command line in this process: its exit code is 0, 1 or 2, no other exception
leaves it, it ends within ten seconds of processor time, and nothing is written outside the output folder. `make test`
runs 2,000 cases, `make hostile` 50,000 (FUSEQ_HOSTILE_CASES says how many).
"""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq import QuantizeOptions, quantize
from fuseq.cli.main import run
from fuseq.model import save
from tests.graphs import attention_net, conv_net
from tests.hostile.mutations import Damage, damaged_bytes, damaged_graph, damaged_json

CASES = int(os.environ.get("FUSEQ_HOSTILE_CASES", "2000"))
CHUNKS = 10
LIMIT_S = 10.0
TARGET = "tensorrt:sm80"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Small files of each kind, as fuseq itself writes them."""
    folder = tmp_path_factory.mktemp("originals")
    options = QuantizeOptions(format="int8", target=TARGET, policy="full")
    found: dict[str, bytes] = {}
    for name, model in (("conv", conv_net()), ("attention", attention_net())):
        save(model, folder / f"{name}.onnx")
        found[f"{name}.onnx"] = (folder / f"{name}.onnx").read_bytes()
        result = quantize(model, folder / f"{name}.q.onnx", calib="random", options=options)
        found[f"{name}.q.onnx"] = (folder / f"{name}.q.onnx").read_bytes()
        found[f"{name}.plan.json"] = result.plan.to_json().encode()
    array = io.BytesIO()
    name, shape = input_of(conv_net())
    np.savez(array, **{name: np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)})
    found["calib.npz"] = array.getvalue()
    found["layers.json"] = LAYERS
    found["profile.json"] = PROFILE
    found["times.json"] = TIMES
    assert run(["report", str(folder / "conv.q.onnx"), "--target", TARGET, "--json",
                str(folder / "report.json"), "-o", str(folder / "page.html")]) == 0  # fmt: skip
    found["report.json"] = (folder / "report.json").read_bytes()
    return found


LAYERS = b"""{"Layers": [
 {"Name": "conv1 + relu", "LayerType": "CaskConvolution", "Inputs": [{"Name": "x", "Location":
  "Device", "Dimensions": [1, 16, 8, 8], "Format/Datatype": "Channel major INT8 format"}],
  "Outputs": [{"Name": "y", "Location": "Device", "Dimensions": [1, 16, 8, 8], "Format/Datatype":
  "Channel major INT8 format"}], "Weights": {"Type": "Int8", "Count": 2304}},
 {"Name": "q", "LayerType": "Reformat", "Inputs": [{"Name": "y", "Dimensions": [1, 16, 8, 8],
  "Format/Datatype": "FP16"}], "Outputs": [{"Name": "z", "Dimensions": [1, 16, 8, 8],
  "Format/Datatype": "INT8"}]}], "Bindings": ["x", "z"]}"""
PROFILE = b"""[{"count": 10}, {"name": "conv1 + relu", "timeMs": 1.0, "averageMs": 0.1,
 "percentage": 60.0}, {"name": "q", "timeMs": 0.5, "averageMs": 0.05, "percentage": 40.0}]"""

TIMES = b"""[{"startInMs": 1, "endInMs": 2, "startComputeMs": 1.1, "endComputeMs": 1.8, "startOutMs": 1.8,
 "endOutMs": 2, "inMs": 0.1, "computeMs": 0.7, "outMs": 0.2, "latencyMs": 1, "enqueueMs": 0.1}]"""


def input_of(model: ir.Model) -> tuple[str, tuple[int, ...]]:
    value = model.graph.inputs[0]
    assert value.shape is not None
    return value.name or "", tuple(int(size) for size in value.shape.numpy()[1:])


KINDS: dict[str, tuple[str, Damage, list[str], float]] = {
    # what is damaged, how, the command with {file} in it, share of the cases
    "bytes of a model": ("conv.q.onnx", damaged_bytes, ["check", "{file}", "--no-compile"], 0.15),
    "graph checked": ("conv.q.onnx", damaged_graph, ["check", "{file}", "--no-compile"], 0.2),
    "attention checked": (
        "attention.q.onnx", damaged_graph, ["check", "{file}", "--no-compile"], 0.1,
    ),
    "graph fixed": (
        "conv.q.onnx", damaged_graph, ["fix", "{file}", "-o", "{out}", "--target", TARGET], 0.1,
    ),
    "graph planned": ("attention.onnx", damaged_graph, ["plan", "{file}", "--target", TARGET], 0.1),
    "graph quantized": (
        "conv.onnx", damaged_graph,
        ["quantize", "{file}", "-o", "{out}", "--target", TARGET, "--calib", "random"], 0.05,
    ),
    "plan": (
        "conv.plan.json", damaged_json,
        ["quantize", "{conv.onnx}", "-o", "{out}", "--target", TARGET, "--calib", "random",
         "--plan-in", "{file}"], 0.1,
    ),
    "calibration": (
        "calib.npz", damaged_bytes,
        ["quantize", "{conv.onnx}", "-o", "{out}", "--target", TARGET, "--calib", "{file}"], 0.05,
    ),
    "layer list": ("layers.json", damaged_json, ["check", "--layer-info", "{file}"], 0.1),
    "document": ("report.json", damaged_json, ["report", "{file}", "-o", "{page}"], 0.05),
    "times": (
        "times.json", damaged_json,
        ["profile", "{layers.json}", "--profile", "{profile.json}", "--times", "{file}"], 0.03,
    ),
    "profile": (
        "profile.json", damaged_json,
        ["check", "--layer-info", "{layers.json}", "--profile", "{file}"], 0.05,
    ),
}  # fmt: skip


def files_under(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def chunks() -> Iterator[tuple[str, range]]:
    for kind, (_, _, _, share) in KINDS.items():
        count = max(CHUNKS, round(CASES * share))
        size = -(-count // CHUNKS)
        for start in range(0, count, size):
            yield kind, range(start, min(start + size, count))


@pytest.mark.parametrize(
    ("kind", "seeds"), list(chunks()), ids=[f"{kind} {seeds.start}" for kind, seeds in chunks()]
)
def test_a_damaged_file_ends_in_a_result_or_one_sentence(
    kind: str,
    seeds: range,
    originals: dict[str, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name, damage, command, _ = KINDS[kind]
    box, out = tmp_path / "box", tmp_path / "box" / "out"
    out.mkdir(parents=True)
    places = {f"{{{other}}}": box / other for other in originals}
    for other, data in originals.items():
        (box / other).write_bytes(data)
    for seed in seeds:
        chance = random.Random(f"{kind} {seed}")
        file = box / f"damaged{Path(name).suffix}"
        file.write_bytes(damage(chance, originals[name]))
        before = files_under(tmp_path)
        words = {**places, "{file}": file, "{out}": out / f"{seed}.onnx",
                 "{page}": out / f"{seed}.html"}  # fmt: skip
        began = time.process_time()
        code = run([str(words.get(word, word)) for word in command])
        elapsed_s = time.process_time() - began
        said = capfd.readouterr()
        assert code in (0, 1, 2), (kind, seed)
        assert elapsed_s < LIMIT_S, (kind, seed, elapsed_s)
        assert "Traceback" not in said.err + said.out, (kind, seed, said.err[-500:])
        assert "\x1b[31m" not in said.out + said.err, (kind, seed)
        if code == 2:
            assert said.err.strip().startswith(("error:", "Usage:", "note:")), (
                kind,
                seed,
                said.err,
            )
        new = files_under(tmp_path) - before
        assert all(path.is_relative_to(out) for path in new), (kind, seed, new)
        assert not (code == 2 and new), (kind, seed, new)
