"""A net of which INT8 ruins one layer: the constraint gives that layer, and no other, more bits."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import fuseq
from fuseq.cli.main import run
from fuseq.options import QuantizeOptions
from fuseq.searching import Searched, SearchOptions, search
from fuseq.trials.constraint import Constraint
from fuseq.trials.tradeoff import formats_of
from tests.graphs import from_text, named, normal

X = normal(4, 64, 28, 28, seed=5, scale=1.0)
LAYERS = 7


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Channel 0 behind the first convolution is large, and the second one does not read it."""
    weights = {f"w{n}": normal(64, 64, 3, 3, seed=n, scale=0.06) for n in range(LAYERS)}
    weights["w0"][0] *= 400
    weights["w1"][:, 0] = 0
    steps = ["h0 = Identity(x)"] + [
        line
        for n in range(LAYERS)
        for line in (
            f"c{n} = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (h{n}, w{n})",
            f"h{n + 1} = Relu(c{n})",
        )
    ]
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[4, 64, 28, 28] x) => (float[4, 64, 28, 28] y) {{
    {chr(10).join(steps)}
    y = Identity(h{LAYERS}) }}"""
    file = tmp_path_factory.mktemp("tradeoff") / "chain.onnx"
    fuseq.save(named(from_text(text, **weights)), file)
    return file


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: what one has compiled and run, the others read."""
    return tmp_path_factory.mktemp("cache")


def _search(model: Path, cache: Path, target: str, least: float | None) -> Searched:
    constraint = Constraint("cosine", least) if least is not None else None
    how = SearchOptions(trials=6, cache=str(cache), executor="serial", constraint=constraint)
    options = QuantizeOptions(target=target, batch=4)
    return search(model, calib=[{"x": X}], options=options, how=how)


def test_the_ruined_layer_returns_to_float(model: Path, cache: Path) -> None:
    found = _search(model, cache, "tensorrt:sm80", 0.99)
    assert found.tradeoff is not None
    free = {r.name for r in found.tradeoff.unconstrained.plan.regions if r.quantized}
    kept = {r.name for r in found.plan.regions if r.quantized}
    assert "n_c1" in free
    assert kept
    assert "n_c1" not in kept
    assert found.tradeoff.unconstrained.score < 0.9
    assert found.tradeoff.chosen.score >= 0.99
    assert found.engine.predicted_us == pytest.approx(found.tradeoff.chosen.value)
    assert found.engine.predicted_us < found.float_engine.predicted_us


def test_where_fp8_exists_the_layer_tries_it_among_int8(model: Path, cache: Path) -> None:
    found = _search(model, cache, "tensorrt:sm89", 0.99)
    assert found.tradeoff is not None
    mixed = [p for p in found.tradeoff.points if {"int8", "fp8"} <= formats_of(p.plan).keys()]
    assert mixed
    best = max(mixed, key=lambda point: point.score)
    formats = {entry.region: entry.format for entry in best.plan.tensors}
    assert formats["n_c1"] == "fp8"
    assert best.score >= 0.99 > found.tradeoff.unconstrained.score
    assert found.tradeoff.chosen.value <= best.value


def test_the_curve_goes_from_the_fastest_to_float(model: Path, cache: Path) -> None:
    found = _search(model, cache, "tensorrt:sm80", 0.99)
    assert found.tradeoff is not None
    front = found.tradeoff.pareto
    assert front[0] is found.tradeoff.unconstrained
    assert [p.value for p in front] == sorted(p.value for p in front)
    assert [p.score for p in front] == sorted(p.score for p in front)
    assert front[-1].score == pytest.approx(1.0)


def test_a_bar_that_is_kept_anyway_changes_nothing(model: Path, cache: Path) -> None:
    found = _search(model, cache, "tensorrt:sm80", 1e-9)
    assert found.tradeoff is not None
    assert found.tradeoff.bar == 1e-9
    free = found.tradeoff.unconstrained
    assert free.score == 0.0  # every output is 0: cosine 0 misses even this bar
    assert found.tradeoff.chosen.score >= 0.99


def test_the_command_draws_the_curve(
    model: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    plot = tmp_path / "curve.svg"
    command = ["search", str(model), "--calib", str(tmp_path / "x.npy"), "--json", "--trials", "6"]
    command += ["--target", "tensorrt:sm80", "--batch", "4", "--executor", "serial"]
    command += ["--cache", str(cache), "--min-cosine", "0.99"]
    assert run([*command, "--curve-out", str(plot), "-o", str(tmp_path / "out.onnx")]) == 0
    numbers = json.loads(capsys.readouterr().out)["tradeoff"]
    assert numbers["kept"]
    assert numbers["chosen"]["score"] >= 0.99
    circles = ET.parse(plot).getroot().findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(numbers["pareto"])
    assert sum(c.get("fill") == "#c0392b" for c in circles) == 1


def test_a_curve_without_a_constraint_is_refused_at_once(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", str(model), "--calib", "random", "--curve-out", "a.svg"]) == 2
    assert "--curve-out needs a constraint" in capsys.readouterr().err
