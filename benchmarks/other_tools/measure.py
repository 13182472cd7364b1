"""Time one quantization and its peak memory, and print the result as one line of JSON.

Imported by the scripts beside it, each of which runs in its own tool's environment; so this file
needs the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

Job = Callable[[], object]


def parser(doc: str, formats: tuple[str, ...], methods: tuple[str, ...]) -> argparse.ArgumentParser:
    """Arguments that every tool takes: model, data, output, format, method, batch."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("model", help="ONNX file, or the model's name for a PyTorch tool")
    made.add_argument(
        "data", type=Path, help=".npz with one array per input, first axis the samples"
    )
    made.add_argument("output", type=Path)
    made.add_argument("--format", choices=formats, default=formats[0])
    made.add_argument("--method", choices=methods, default=methods[0])
    made.add_argument("--batch", type=int, default=8, help="samples per calibration step")
    return made


def peak_mb() -> float:
    """Peak resident memory of this process and its finished children, in 10^6 bytes (Linux: KiB)."""
    kib = [
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return max(kib) * 1024 / 1e6


def cpu_seconds() -> float:
    """Processor seconds, user and system, of this process and its finished children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def report(tool: str, settings: dict[str, object], output: Path, prepare: Callable[[], Job]) -> int:
    """Run ``prepare()()``; imports belong in ``prepare``, reading and writing files in the job.

    The tool's own output goes to stderr. A tool that fails keeps its row: whatever it raises
    becomes ``error``, which is why everything is caught here. Returns the exit code, 0 or 1.
    """
    row: dict[str, object] = {"tool": tool, **settings, "output": str(output), "error": None}
    output.parent.mkdir(parents=True, exist_ok=True)
    begin, cpu_begin = time.perf_counter(), cpu_seconds()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            job = prepare()
            row["import_s"] = round(time.perf_counter() - begin, 2)
            row["import_peak_mb"] = round(peak_mb())
            begin, cpu_begin = time.perf_counter(), cpu_seconds()
            job()
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        row["error"] = f"{type(error).__name__}: {first[:300]}"
    row["quantize_s"] = round(time.perf_counter() - begin, 2)
    row["cpu_s"] = round(cpu_seconds() - cpu_begin, 2)
    row["peak_mb"] = round(peak_mb())
    data = output.with_name(output.name + ".data")
    written = [file for file in (output, data) if file.is_file()]
    row["file_mb"] = round(sum(file.stat().st_size for file in written) / 1e6, 2)
    line = json.dumps(row)
    print(line, flush=True)
    output.with_suffix(".json").write_text(line + "\n")
    return 1 if row["error"] else 0
