"""The page of `make bench`: what was run where, the sums, and a table for each model, format and target."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from environments import PYTHON, REQUIREMENTS
from side_by_side import markdown

Line = dict[str, Any]
Table = dict[str, Any]
CPU = "onnxruntime:cpu"
LEVEL = 1.02
"""A CPU time within this factor of the fastest counts as level with it."""

GPU_COLUMNS = (
    ("tool", "tool"),
    ("kernels", "kernels"),
    ("alone", "alone"),
    ("stranded", "stranded"),
    ("activation MB", "activation_mb"),
    ("engine MB", "engine_mb"),
    ("predicted us", "predicted_us"),
    ("SQNR dB", "sqnr_db"),
    ("cosine", "cosine"),
    ("agree", "agreement"),
    ("quantize s", "quantize_s"),
    ("CPU s", "cpu_s"),
    ("peak MB", "peak_mb"),
)
CPU_COLUMNS = (
    ("tool", "tool"),
    ("CPU ms", "cpu_ms"),
    ("float / this", "cpu_speedup"),
    ("cosine", "cpu_cosine"),
    ("agree", "cpu_agreement"),
    ("file MB", "file_mb"),
    ("quantize s", "quantize_s"),
    ("CPU s", "cpu_s"),
    ("peak MB", "peak_mb"),
)

HEAD = """# Benchmarks beside other tools

Written by `make bench`; not edited by hand. {day}; {cpu}, {cores} cores, {memory} GB of memory, where {load}
programs wanted to run at a time (of the last 15 minutes); fuseq {fuseq}, TensorRT-RTX {rtx}, ONNX Runtime {ort}.

Every tool gets the same float model and the same 16 calibration images (64 sentences for MiniLM), in steps
of eight, in an environment of its own (Python {python}): {versions}.
Each file is compiled by the same compiler. **alone**: kernels that only quantize, dequantize or change the
type; **stranded**: those among them around which the engine is predicted slower than without them;
**predicted us**: fuseq's cost model ([how far to trust it](cost-model.md)), no GPU ran. **SQNR, cosine, agree**: against the float
model, held-out data, only where the weights are real; agree is the share of the same first class, or of the
same nearest sentence. **quantize s** is the clock's and **CPU s** the processor's time without imports, **peak MB** the
process' largest memory. On the CPU, files take turns with the float model, {threads}; **float / this** over 1 is faster than
FP32. A tool that fails keeps its row, and its words stand below the table.
"""


def machine(threads: int) -> dict[str, Any]:
    """What the page says about where it was made."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    cpu = names[0].partition(":")[2].strip() if names else platform.processor()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "day": datetime.datetime.now(datetime.timezone.utc).strftime("%d %B %Y"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory": round(memory),
        "load": round(os.getloadavg()[2]),
        "threads": f"{threads} threads" if threads > 1 else "one thread, by the processor's time",
        "fuseq": importlib.metadata.version("fuseq"),
        "rtx": importlib.metadata.version("tensorrt_rtx_cu13_libs"),
        "ort": importlib.metadata.version("onnxruntime"),
    }


def page(about: dict[str, Any], tables: list[Table]) -> str:
    """The whole page."""
    named = ("nvidia-modelopt", "onnxruntime==", "nncf", "torchao", "aimet-onnx")
    pins = [one for wanted in REQUIREMENTS.values() for one in wanted if one.startswith(named)]
    versions = ", ".join(sorted({one.replace("==", " ") for one in pins if "==" in one}))
    parts = [HEAD.format(**about, python=PYTHON, versions=versions), *_sums(tables)]
    for model in dict.fromkeys(one["model"] for one in tables):
        parts.append(f"\n## {model}\n")
        for one in tables:
            if one["model"] == model:
                parts.append(_section(one))
    return "\n".join(parts) + "\n"


def _section(one: Table) -> str:
    on_cpu = one["target"] == CPU
    gpus = [row["gpu"] for row in one["rows"] if row.get("gpu")]
    gpu = f" ({gpus[0]})" if gpus else ""
    title = f"### {one['format'].upper()}, {one['target']}{gpu}, batch {one['batch']}\n"
    rows = [_shown(row, on_cpu) for row in one["rows"]]
    return f"{title}\n{markdown(rows, CPU_COLUMNS if on_cpu else GPU_COLUMNS)}\n"


def _shown(row: Line, on_cpu: bool) -> Line:
    """A row whose error is the one of this table: quantizing, then compiling or running."""
    where = "cpu_error" if on_cpu else "fidelity_error"
    return {**row, "error": row.get("error") or row.get(where), "fidelity_error": None}


def _sums(tables: list[Table]) -> list[str]:
    """Sentences that count, over all tables, where fuseq stands; what was not run is not counted."""
    gpu = [one for one in tables if one["target"] != CPU]
    cpu = [one for one in tables if one["target"] == CPU]
    lines = ["## In numbers\n"]
    lines.append(_count("Predicted time lowest, or level", gpu, "predicted_us", _default_gpu, 1.0))
    lines.append(_count("Processor seconds to quantize lowest", gpu, "cpu_s", _default_gpu, 1.0))
    lines.append(_count("Peak memory lowest", gpu, "peak_mb", _default_gpu, 1.0))
    lines.append(_count("CPU time lowest, within 2 %", cpu, "cpu_ms", _default_cpu, LEVEL))
    lines.append(_times_faster(gpu))
    own = [row for one in gpu for row in one["rows"] if _is_fuseq(row) and "stranded" in row]
    if own:
        lines.append(
            f"- Stranded Q/DQ of fuseq's files: {sum(row['stranded'] or 0 for row in own)} "
            f"in {len(own)} engines."
        )
    return [line for line in lines if line]


def _count(
    what: str, tables: list[Table], key: str, ours: Callable[[Line], bool], level: float
) -> str:
    """``- what: 3 of 4 tables; not in ...``."""
    won, lost = 0, []
    for one in tables:
        own = [row[key] for row in one["rows"] if ours(row) and row.get(key)]
        others = [row[key] for row in _others(one) if row.get(key)]
        if not own or not others:
            continue
        if min(own) <= level * min(others):
            won += 1
        else:
            name = f"{one['model']} {one['format']} {one['target']}"
            lost.append(f"{name} ({min(own):.4g} against {min(others):.4g})")
    if not won and not lost:
        return ""
    missed = f"; not {', '.join(lost)}" if lost else ""
    return f"- {what}: fuseq in {won} of {won + len(lost)} tables{missed}."


def _times_faster(tables: list[Table]) -> str:
    """ModelOpt's ONNX quantizer over fuseq, processor seconds and clock, geometric means over tables."""
    means = []
    for key in ("cpu_s", "quantize_s"):
        ratios = []
        for one in tables:
            own = [row[key] for row in one["rows"] if _default_gpu(row) and row.get(key)]
            theirs = [
                row[key]
                for row in _others(one)
                if row["tool"].startswith("modelopt-onnx") and row.get(key)
            ]
            if own and theirs:
                ratios.append(min(theirs) / min(own))
        if ratios:
            means.append(math.exp(sum(map(math.log, ratios)) / len(ratios)))
    if len(means) < 2:
        return ""
    return (
        f"- ModelOpt's ONNX quantizer takes {means[0]:.2f} times fuseq's processor seconds, "
        f"{means[1]:.2f} times its time by the clock (geometric means over the tables)."
    )


def _others(one: Table) -> Iterable[Line]:
    """Rows of other tools that ended well."""
    return [r for r in one["rows"][1:] if not _is_fuseq(r) and not r.get("error")]


def _is_fuseq(row: Line) -> bool:
    return str(row["tool"]).startswith("fuseq")


def _default_gpu(row: Line) -> bool:
    """What fuseq does unasked: the policy that pays, method max."""
    return _is_fuseq(row) and row.get("policy") == "pays" and row.get("target") != CPU


def _default_cpu(row: Line) -> bool:
    return _is_fuseq(row) and row.get("policy") == "pays" and row.get("target") == CPU
