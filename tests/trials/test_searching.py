"""The whole search on small nets, judged by the simulator, which needs no compiler installed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import fuseq
from fuseq.errors import OptionError, TargetError
from fuseq.options import QuantizeOptions
from fuseq.searching import Searched, SearchOptions, search
from fuseq.trials.cache import compiled_keys
from tests.graphs import from_text, named, normal

OPTIONS = QuantizeOptions(format="int8", target="tensorrt:sm80", batch=8)


def tower(blocks: int = 4, channels: int = 64) -> ir.Model:
    """A stem and equal residual blocks of two convolutions."""
    lines = ["h0 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, ws)"]
    weights = {"ws": normal(channels, 16, 3, 3, seed=99)}
    for n in range(blocks):
        weights[f"wa{n}"] = normal(channels, channels, 3, 3, seed=2 * n)
        weights[f"wb{n}"] = normal(channels, channels, 3, 3, seed=2 * n + 1)
        lines += [
            f"a{n} = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (h{n}, wa{n})",
            f"r{n} = Relu(a{n})",
            f"b{n} = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r{n}, wb{n})",
            f"s{n} = Add(b{n}, h{n})",
            f"h{n + 1} = Relu(s{n})",
        ]
    body = "\n".join([*lines, f"y = GlobalAveragePool(h{blocks})"])
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[8, 16, 56, 56] x) => (float[8, {channels}, 1, 1] y) {{
    {body}
    }}"""
    return named(from_text(text, **weights))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("search") / "tower.onnx"
    fuseq.save(tower(), file)
    return file


def _data() -> list[dict[str, np.ndarray]]:
    return [{"x": normal(8, 16, 56, 56, seed=7, scale=1.0)}]


def _search(model: Path, cache: Path, *, trials: int = 12, **how: object) -> Searched:
    options = SearchOptions(trials=trials, cache=str(cache), executor="serial", **how)  # type: ignore[arg-type]
    return search(model, calib=_data(), options=OPTIONS, how=options)


def test_it_never_ends_worse_and_each_gain_is_recorded(model: Path, tmp_path: Path) -> None:
    found = _search(model, tmp_path)
    assert found.engine.predicted_us <= found.rule_engine.predicted_us
    assert found.engine.predicted_us <= found.float_engine.predicted_us
    values = [found.rule_engine.predicted_us, *(step.value for step in found.steps)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(found.engine.predicted_us)
    assert found.plan.prediction is not None
    assert found.plan.prediction.quantized_us == round(found.engine.predicted_us, 3)


def test_the_written_model_compiles_to_the_engine_that_was_promised(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    how = SearchOptions(trials=12, executor="serial")
    found = search(model, out, calib=_data(), options=OPTIONS, how=how)
    again = fuseq.compile_model(out, "tensorrt:sm80", batch=8)
    assert again.predicted_us == pytest.approx(found.engine.predicted_us)
    assert (tmp_path / ".fuseq-cache").is_dir()


def test_a_search_run_again_compiles_nothing_and_decides_the_same(
    model: Path, tmp_path: Path
) -> None:
    first = _search(model, tmp_path)
    compiled = compiled_keys(tmp_path)
    second = _search(model, tmp_path)
    assert compiled_keys(tmp_path) == compiled
    assert second.plan == first.plan
    assert second.seconds == first.seconds


def test_the_trials_are_the_budget(model: Path, tmp_path: Path) -> None:
    found = _search(model, tmp_path, trials=5)
    assert len(compiled_keys(tmp_path)) == found.trials
    assert found.trials <= 5 + 3  # a wave that has begun ends


def test_processes_decide_what_one_process_decides(model: Path, tmp_path: Path) -> None:
    alone = _search(model, tmp_path / "a", trials=8)
    how = SearchOptions(trials=8, cache=str(tmp_path / "b"), executor="processes:2")
    beside = search(model, calib=_data(), options=OPTIONS, how=how)
    assert beside.plan == alone.plan


@pytest.mark.parametrize("objective", ["bytes", "size"])
def test_another_objective_is_made_small(model: Path, tmp_path: Path, objective: str) -> None:
    found = _search(model, tmp_path, objective=objective)
    if objective == "bytes":
        before = found.rule_engine.activation_bytes + found.rule_engine.weights_bytes
        assert found.engine.activation_bytes + found.engine.weights_bytes <= before
    else:
        assert found.engine.engine_bytes <= found.rule_engine.engine_bytes


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from tests.trials.test_searching import _data, OPTIONS
from fuseq.searching import SearchOptions, search
search({model!r}, calib=_data(), options=OPTIONS,
       how=SearchOptions(trials=12, cache={cache!r}, executor="processes:2"))
"""


@pytest.mark.slow
def test_killed_in_the_middle_and_run_again(model: Path, tmp_path: Path) -> None:
    whole = _search(model, tmp_path / "whole")
    cache = tmp_path / "killed"
    root = str(Path(__file__).parents[2])
    script = KILLED.format(tests=root, model=str(model), cache=str(cache))
    process = subprocess.Popen([sys.executable, "-c", script], cwd=root)
    while len(compiled_keys(cache)) < 4 and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()
    again = _search(model, cache)
    compiled = compiled_keys(cache)
    assert len(set(compiled)) == len(compiled)
    assert again.plan == whole.plan


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_finds_the_same_plan(
    model: Path, tmp_path: Path, dask_cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, workers = dask_cluster
    alone = _search(model, tmp_path / "alone", trials=8)
    cache = tmp_path / "cluster"

    def kill() -> None:
        while len(compiled_keys(cache)) < 4:
            time.sleep(0.02)
        workers[0].kill()

    killing = threading.Thread(target=kill)
    killing.start()
    how = SearchOptions(trials=8, cache=str(cache), executor=f"dask://{address}")
    found = search(model, calib=_data(), options=OPTIONS, how=how)
    killing.join()
    assert workers[0].wait() != 0
    assert found.plan == alone.plan
    compiled = compiled_keys(cache)
    assert len(set(compiled)) == len(compiled) == found.trials


def test_a_target_that_is_measured_is_refused(model: Path, tmp_path: Path) -> None:
    options = QuantizeOptions(target="onnxruntime:cpu", batch=8)
    how = SearchOptions(cache=str(tmp_path))
    with pytest.raises(TargetError, match="times are measured"):
        search(model, calib=_data(), options=options, how=how)


def test_options_that_leave_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match="--budget"):
        SearchOptions(seconds=0)
    with pytest.raises(OptionError, match="--trials"):
        SearchOptions(trials=0)
    with pytest.raises(OptionError, match="--objective"):
        SearchOptions(objective="speed")  # type: ignore[arg-type]
