"""Sensitivity of a net with one input that INT8 ruins, against a NumPy computation of its own."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import fuseq
from fuseq.cli.main import run
from fuseq.evaluate.sensitivity import Sensitivity
from fuseq.options import QuantizeOptions
from fuseq.sensing import sensitivity
from tests.graphs import from_text, named, normal

OPTIONS = QuantizeOptions(format="int8", target="tensorrt:sm80", policy="full", batch=4)
W1, W2 = normal(32, 32, seed=1), normal(32, 32, seed=2)
X = normal(4, 32, seed=3, scale=1.0)
X[:, 0], W1[0] = 100.0, 0.0  # an input that does not count, but takes the range of all others


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[4, 32] x) => (float[4, 32] y) { h = MatMul(x, w1)
      r = Relu(h)
      y = MatMul(r, w2) }"""
    file = tmp_path_factory.mktemp("sensing") / "two.onnx"
    fuseq.save(named(from_text(text, w1=W1, w2=W2)), file)
    return file


def _measure(model: Path, cache: Path) -> Sensitivity:
    return sensitivity(model, calib=[{"x": X}], options=OPTIONS, executor="serial", cache=cache)


def _rounded(array: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(array / scale), -128, 127) * scale


def _half(scale: np.ndarray) -> np.ndarray:
    return scale.astype(np.float16).astype(np.float64)


def test_errors_are_those_that_numpy_computes(model: Path, tmp_path: Path) -> None:
    found = {region.region: region for region in _measure(model, tmp_path).regions}
    exact = np.maximum(X @ W1, 0) @ W2
    x_scale = _half(np.asarray(np.abs(X).max() / 127))
    w_scale = _half(np.abs(W1).max(axis=0) / 127)
    near = np.maximum(_rounded(X, x_scale) @ _rounded(W1, w_scale), 0) @ W2
    expected = np.square(exact - near).sum() / np.square(exact).sum()
    assert found["n_h"].alone == pytest.approx(expected, rel=0.02)


def test_the_ruined_layer_comes_first_and_company_tells_the_same(
    model: Path, tmp_path: Path
) -> None:
    found = _measure(model, tmp_path)
    worst, other = sorted(found.regions, key=lambda region: -region.alone)
    assert worst.region == "n_h"
    assert worst.company > 0
    assert found.whole == pytest.approx(worst.company + other.alone, rel=1e-6)
    assert found.samples == 4
    assert found.float_us is not None
    assert found.quantized_us is not None


def test_gains_add_up_to_the_difference_of_the_engines(model: Path, tmp_path: Path) -> None:
    found = _measure(model, tmp_path)
    assert found.float_us is not None
    assert found.quantized_us is not None
    saved = sum(region.saved_us or 0.0 for region in found.regions)
    assert saved == pytest.approx(found.float_us - found.quantized_us, abs=1e-6)


def test_the_command_writes_json_and_a_plot(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    plot = tmp_path / "plot.svg"
    command = ["sensitivity", str(model), "--calib", str(tmp_path / "x.npy"), "--json"]
    command += ["--target", "tensorrt:sm80", "--batch", "4", "--executor", "serial"]
    assert run([*command, "--cache", str(tmp_path / "cache"), "--plot", str(plot)]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert {region["region"] for region in numbers["regions"]} == {"n_h", "n_y"}
    circles = ET.parse(plot).getroot().findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 2
