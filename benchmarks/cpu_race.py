"""Time every tool's file of one model on ONNX Runtime's CPU provider beside the float model, taking turns.

    python cpu_race.py FLOAT.onnx CALIB.npz FILE.onnx ... [--batch 8] [--seconds 6] [--threads 1]

Prints one line of JSON: by file, ``cpu_ms`` (median), ``cpu_speedup`` (median over the rounds of the float
model's time / its own), or ``cpu_error`` in ONNX Runtime's words. With one thread the processor's time
counts, which other programs do not lengthen; with more, the clock's. FLOAT's own line has speedup 1.
"""

# ruff: noqa: PLC0415 - what is imported can fail, and the failure is a row
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

Line = dict[str, Any]
WARMUP_MS = 500.0


def inputs_of(file: Path, data: Path, batch: int) -> dict[str, np.ndarray]:
    """The first ``batch`` samples under the file's own input names and float type."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    wanted = InferenceSession(str(file), options, providers=["CPUExecutionProvider"]).get_inputs()
    with np.load(data) as stored:
        arrays = {name: stored[name][:batch] for name in stored.files}
    names = [one.name if one.name in arrays else list(arrays)[n] for n, one in enumerate(wanted)]
    return {
        one.name: arrays[name].astype(np.float16) if "float16" in one.type else arrays[name]
        for one, name in zip(wanted, names, strict=True)
    }


def race(files: list[Path], data: Path, batch: int, seconds: float, threads: int) -> list[Line]:
    """Lines of ``files``, the first of which is the float model; all of them run."""
    from fuseq.targets.onnxruntime.timing import pinned_runs
    from fuseq.targets.turns import take_turns

    feeds = {str(file): inputs_of(file, data, batch) for file in files}
    with pinned_runs({str(file): file for file in files}, feeds, threads) as runs:
        rounds = take_turns(
            list(runs.values()), seconds=seconds * len(files), warmup_ms=WARMUP_MS * len(files)
        )
    times = [
        [sample.host_ms if sample.device_ms is None else sample.device_ms for sample in one]
        for one in zip(*rounds, strict=True)
    ]
    return [
        {
            "cpu_ms": round(statistics.median(own), 2),
            "cpu_speedup": round(
                statistics.median(a / b for a, b in zip(times[0], own, strict=True)), 3
            ),
            "cpu_threads": threads,
            "cpu_rounds": len(rounds),
        }
        for own in times
    ]


def trial(file: Path, options: argparse.Namespace) -> str:
    """Run a file alone in a process of its own; why it does not run, "" if it does."""
    command = [sys.executable, __file__, str(file), str(options.data), "--seconds", "0"]
    command += ["--batch", str(options.batch), "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"does not run on the CPU: {last[:300]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("float_model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each file")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    errors = {file: trial(file, options) for file in options.files}
    running = [options.float_model, *(file for file in options.files if not errors[file])]
    lines = race(running, options.data, options.batch, options.seconds, options.threads)
    made: dict[str, Line] = {str(f): line for f, line in zip(running, lines, strict=True)}
    made |= {str(file): {"cpu_error": error} for file, error in errors.items() if error}
    json.dump(made, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
