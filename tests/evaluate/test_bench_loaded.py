"""Times of trtexec from another machine: all three files, with exact values."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fuseq.cli.main import run
from fuseq.errors import OptionError
from fuseq.evaluate.bench_loaded import load_times

ROOT = Path(__file__).resolve().parents[2]
TREX = Path(
    os.environ.get("FUSEQ_TREX_DATA", ROOT.parent / "shared" / "data" / "trt-engine-explorer")
)


def write(folder: Path, name: str, document: object) -> Path:
    (folder / name).write_text(json.dumps(document))
    return folder / name


def times(folder: Path, name: str, compute: list[float]) -> Path:
    return write(
        folder,
        name,
        [
            {
                "startEnqMs": 10.0 * i,
                "endEnqMs": 10.0 * i + 0.1,
                "startH2dMs": 10.0 * i,
                "startComputeMs": 10.0 * i + 1,
                "endComputeMs": 10.0 * i + 1 + ms,
                "endD2hMs": 10.0 * i + 2 + ms,
                "computeMs": ms,
                "latencyMs": ms + 2,
            }
            for i, ms in enumerate(compute)
        ],
    )


def test_export_times_of_two_engines(tmp_path: Path) -> None:
    files = {
        "fp16": times(tmp_path, "a.json", [2.0, 2.0, 2.0, 2.0, 70.0]),
        "int8": times(tmp_path, "b.json", [1.0, 1.2, 1.0, 1.1, 1.0]),
    }
    result = load_times(files)
    fp16, int8 = result.rows
    assert (result.target, result.exit_code) == ("trtexec", 0)
    assert fp16.device is not None
    assert fp16.host is not None
    assert (fp16.device.median_ms, fp16.device.max_ms, fp16.host.median_ms) == (2.0, 70.0, 4.0)
    assert fp16.rounds_ms == (2.0, 2.0, 2.0, 2.0, 70.0)
    assert fp16.throughput_per_s == pytest.approx(5e3 / 112.0)  # five in 0 to 40 + 2 + 70 ms
    assert int8.ratio is not None
    assert (int8.ratio.median, int8.ratio.low) == (2.0, None)
    (finding,) = result.findings
    assert finding.startswith("fp16: 1 of 5 runs took over 3.000 ms, the longest 70.000 ms")


def test_an_engine_slower_than_the_first_is_a_finding(tmp_path: Path) -> None:
    result = load_times(
        {"fp16": times(tmp_path, "a.json", [1.0] * 5), "qat": times(tmp_path, "b.json", [2.0] * 5)}
    )
    assert result.findings[0].startswith("qat is 2.00 times slower than fp16 (measured)")


def test_export_profile_is_the_sum_of_its_layers(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "p.json",
        [{"count": 50}, {"name": "a", "averageMs": 0.25}, {"name": "b", "averageMs": 0.5}],
    )
    (row,) = load_times({"p": file}).rows
    assert row.device is not None
    assert (row.device.median_ms, row.device.runs) == (0.75, 50)
    assert "sum of 2 layers' averages over 50 profiled runs" in row.notes[0]


def test_command_prints_what_the_json_holds(capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    a, b = times(tmp_path, "a.json", [2.0] * 4), times(tmp_path, "b.json", [1.0] * 4)
    command = ["bench", "--load-times", f"fp16={a}", "--load-times", f"int8={b}"]
    assert run([*command, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in numbers["models"]] == ["fp16", "int8"]
    assert numbers["models"][1]["ratio"] == {"median": 2.0, "low": None, "high": None}
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "device median ms" in shown
    assert "2.000" in shown
    assert run(["bench", str(a), "--load-times", str(b)]) == 2
    assert "leave out the models" in capsys.readouterr().err
    assert run(["bench", "--load-times", str(a), "--load-times", f"a.json={b}"]) == 2
    assert "names 'a.json' twice" in capsys.readouterr().err
    with pytest.raises(OptionError):
        load_times({})


@pytest.mark.skipif(not TREX.is_dir(), reason=f"no TREx engines at {TREX}")
def test_a100_ratios_are_the_published_ones() -> None:
    names = ("fp16", "qat", "qat-residual", "qat-residual-qgap")
    result = load_times({n: TREX / f"resnet18-a100-{n}.profile.metadata.json" for n in names})
    medians = [row.device.median_ms if row.device else None for row in result.rows]
    assert medians == pytest.approx([0.862, 0.883, 0.546, 0.500], abs=5e-4)
    ratios = [row.ratio.median if row.ratio else None for row in result.rows]
    assert ratios == pytest.approx([1.0, 0.977, 1.579, 1.725], abs=1e-3)
    (finding,) = result.findings
    assert finding.startswith("qat is 1.02 times slower than fp16 (measured)")
