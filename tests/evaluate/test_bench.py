"""Several models timed in one run; what cannot run here is predicted and said to be missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir
import pytest

from fuseq.errors import OptionError
from fuseq.evaluate.bench import (
    BenchOptions,
    BenchRow,
    bench,
    findings_of,
    measured_rows,
)
from fuseq.evaluate.bench_statistics import Ratio, spread
from fuseq.targets.engine_runtime.cuda import gpu_missing
from fuseq.targets.trtexec import Timed
from fuseq.targets.turns import Sample, take_turns
from tests.graphs import conv_net, from_text, named, normal

SHORT = Timed(warmup_ms=0.0, seconds=0.02, iterations=6)


def products(count: int) -> ir.Model:
    """A chain of ``count`` matrix products."""
    lines = "".join(f"x{i + 1} = MatMul(x{i}, w)\n" for i in range(count))
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 256] x0) => (float[N, 256] x{count}) {{ {lines} }}"""
    return named(from_text(text, w=normal(256, 256)))


def test_rounds_take_turns_and_the_first_rotates() -> None:
    order: list[str] = []
    runs = [lambda name=name: order.append(name) for name in "abc"]  # type: ignore[misc]
    rounds = take_turns(runs, seconds=0.0, iterations=3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"  # the first three warm up
    assert [len(samples) for samples in rounds] == [3, 3, 3]
    assert take_turns(runs, seconds=60.0, iterations=1, most=2)[2:] == ()


def test_samples_keep_the_device_time_of_their_run() -> None:
    rounds = take_turns([lambda: 1.5, lambda: None], seconds=0.0, iterations=2)
    assert [sample.device_ms for sample in rounds[1]] == [1.5, None]


def test_cpu_models_are_measured_in_one_run() -> None:
    result = bench({"one": products(1), "nine": products(9)}, BenchOptions(timed=SHORT, batch=4))
    assert result.exit_code == 0
    assert result.missing == ()
    one, nine = result.rows
    assert (one.name, one.batch) == ("one", 4)
    assert one.host is not None
    assert nine.host is not None
    assert one.host.runs == nine.host.runs == len(one.rounds_ms) >= 6
    assert one.host == spread(one.rounds_ms)
    assert one.device is None
    assert one.predicted_us is None
    assert one.ratio == Ratio(1.0, 1.0, 1.0)
    assert nine.ratio is not None
    assert nine.ratio.median < 1.0  # nine products take longer than one
    assert one.throughput_per_s == pytest.approx(1e3 / one.host.mean_ms)


def test_one_thread_is_timed_by_the_processor_too() -> None:
    options = BenchOptions(timed=SHORT, batch=4, threads=1)
    result = bench({"one": products(1), "nine": products(9)}, options)
    nine = result.rows[1]
    assert nine.host is not None
    assert nine.device is not None
    assert nine.device.runs == nine.host.runs
    assert 0 < nine.device.min_ms <= nine.host.max_ms
    assert nine.device == spread(nine.rounds_ms)
    assert result.notes[0].endswith("processor time, and ratios are its")


def test_torch_cuda_without_a_gpu_measures_nothing_and_is_not_ok() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = bench({"one": products(1)}, BenchOptions(target="torch:cuda", timed=SHORT))
    assert result.exit_code == 1
    assert result.missing[0].startswith("torch:cuda: nothing was measured (PyTorch sees no NVIDIA")


def test_rows_take_the_devices_time_where_it_is_known() -> None:
    rounds = [(Sample(3.0, 2.0), Sample(2.0, 1.0)), (Sample(5.0, 2.0), Sample(2.0, 0.5))]
    slow, fast = measured_rows([BenchRow("s", "", 8), BenchRow("f", "", 8)], rounds)
    assert slow.host is not None
    assert slow.device is not None
    assert (slow.host.mean_ms, slow.device.mean_ms, slow.median_ms) == (4.0, 2.0, 2.0)
    assert fast.ratio is not None
    assert fast.ratio.median == 3.0  # of 2 / 1 and 2 / 0.5
    assert slow.throughput_per_s == 2 / 8.0 * 1e3


def test_without_a_gpu_it_predicts_says_so_and_is_not_ok(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    ir.save(conv_net(), file)
    result = bench({"net": file}, BenchOptions(target="tensorrt:sm80", timed=SHORT))
    (row,) = result.rows
    assert result.exit_code == 1
    (missing,) = result.missing
    assert missing.startswith("tensorrt:sm80: nothing was measured (no GPU here")
    assert missing.endswith("times are predicted.")
    assert row.host is row.device is row.ratio is None
    assert row.engine is not None
    assert row.predicted_us == row.engine.predicted_us > 0
    assert row.trtexec.startswith(f"trtexec --onnx={file} --stronglyTyped --saveEngine=")
    assert "--shapes" not in row.trtexec  # every input is static


@pytest.mark.skipif(gpu_missing() is None, reason="there is a GPU")
def test_an_engine_file_without_a_gpu_is_only_named(tmp_path: Path) -> None:
    engine = tmp_path / "net.engine"
    engine.write_bytes(b"ftrt" + bytes(60))
    options = BenchOptions(shapes={"x": (4, 8)}, timed=SHORT)
    result = bench({"net": engine}, options)
    (row,) = result.rows
    assert (result.target, result.exit_code) == ("tensorrt", 1)
    assert "the command times it where there is one" in result.missing[0]
    assert (row.engine, row.predicted_us, row.host, row.batch) == (None, None, None, 4)
    assert row.trtexec.startswith(f"trtexec --loadEngine={engine} --shapes=x:4x8 ")
    with pytest.raises(
        OptionError, match="is an engine of tensorrt, which onnxruntime:cpu does not"
    ):
        bench({"net": engine, "model": products(1)}, options)


def test_a_model_that_is_not_faster_is_a_finding() -> None:
    base = BenchRow("fp16", "", 1, predicted_us=100.0, predicted_ratio=1.0)
    same = dataclasses.replace(base, name="int8", predicted_us=101.0, predicted_ratio=100 / 101)
    worse = dataclasses.replace(base, name="naive", predicted_us=200.0, predicted_ratio=0.5)
    better = dataclasses.replace(base, name="good", predicted_us=50.0, predicted_ratio=2.0)
    no_gain, slower = findings_of([base, same, worse, better])
    assert no_gain.startswith("int8 is no faster than fp16: 0.99 times its speed (predicted)")
    assert slower.startswith("naive is slower than fp16: 0.50 times its speed (predicted)")


def test_a_measured_loss_needs_its_whole_interval_below_one() -> None:
    base = BenchRow("fp32", "", 1)
    lost = dataclasses.replace(base, name="int8", ratio=Ratio(0.8, 0.75, 0.9))
    unsure = dataclasses.replace(base, name="maybe", ratio=Ratio(0.9, 0.7, 1.1))
    (finding,) = findings_of([base, lost, unsure])
    assert finding.startswith("int8 is 1.25 times slower than fp32 (measured)")


def test_outliers_are_reported_with_the_model() -> None:
    rounds = [(Sample(2.0),)] * 20 + [(Sample(70.0),)]
    (row,) = measured_rows([BenchRow("m", "", 1)], rounds)
    (finding,) = findings_of([row])
    assert "m: 1 of 21 runs took over" in finding
    assert "the longest 70.000 ms against a median of 2.000" in finding


def test_options_that_cannot_be_timed_are_refused() -> None:
    with pytest.raises(OptionError, match="--batch 0"):
        BenchOptions(batch=0)
    with pytest.raises(OptionError, match="iterations 1 or more"):
        BenchOptions(timed=Timed(iterations=0))
    with pytest.raises(OptionError, match="--streams 4: onnxruntime:cpu runs one inference"):
        bench({"m": products(1)}, BenchOptions(timed=Timed(streams=4)))
    with pytest.raises(OptionError, match="no model to time"):
        bench({})
