"""Compile every tool's file with the same compiler and print them side by side.

    python side_by_side.py ZOO DATA OUT --target tensorrt-rtx:sm89 --batch 8 --batch 64

OUT is the folder that quantize_all.py filled: OUT/<tool>/<model>-<format>[-variant].onnx with a .json
beside each. A tool that failed keeps its row, with its own words. The first row of each table is the
float model, typed FP16 for a GPU. Runs in fuseq's environment (fuseq[rtx], onnxruntime). Writes side_by_side.json
in OUT; a compile whose file did not change since is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fidelity import fidelity
from quantize_all import DATA_OF

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
COLUMNS = (
    ("tool", "tool"),
    ("file MB", "file_mb"),
    ("engine MB", "engine_mb"),
    ("kernels", "kernels"),
    ("alone", "alone"),
    ("stranded", "stranded"),
    ("activation MB", "activation_mb"),
    ("predicted us", "predicted_us"),
    ("quantize s", "quantize_s"),
    ("CPU s", "cpu_s"),
    ("peak MB", "peak_mb"),
    ("SQNR dB", "sqnr_db"),
    ("cosine", "cosine"),
    ("agree", "agreement"),
    ("cosine, CPU kernels", "cpu_cosine"),
    ("agree, CPU kernels", "cpu_agreement"),
)
REAL_WEIGHTS = {
    "efficientnet_lite0": ("heldout.npz", "top1_agreement"),
    "minilm": ("heldout_minilm.npz", "nearest_agreement"),
}
"""Models for which closeness to the float model means something: held-out data and what agrees."""

CPU_TOOLS = ("ort-static", "nncf-onnx", "torchao-pt2e", "aimet-onnx", "fuseq")
"""Tools whose files are made for ONNX Runtime's or OpenVINO's integer kernels on a CPU."""


class Cache:
    """Results of earlier runs, by what was asked and the age of the file; saved after each new one.

    A crash is not kept: the next run tries again.
    """

    def __init__(self, file: Path, fresh: bool) -> None:
        self.file = file
        known = file.is_file() and not fresh
        self.rows: dict[str, Row] = json.loads(file.read_text()) if known else {}

    def get(self, key: str, model: Path) -> Row | None:
        row = self.rows.get(key)
        return row if row and row.get("mtime") == model.stat().st_mtime else None

    def put(self, key: str, model: Path, row: Row) -> Row:
        stamped = {**row, "mtime": model.stat().st_mtime}
        if row.get("crashed"):
            return stamped
        self.rows[key] = stamped
        self.file.write_text(json.dumps(self.rows, indent=1))
        return stamped


def compile_row(file: Path, target: str, batch: int, data: Path, fp16: bool) -> Row:
    """Compile in a process of its own; a crash becomes the row's error."""
    command = [sys.executable, str(HERE / "compile_one.py"), str(file), "--target", target]
    command += ["--batch", str(batch), "--data", str(data), *(["--fp16"] if fp16 else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        error = f"ended with code {done.returncode}: {last[:300]}"
        return {"error": error, "crashed": True}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def quantization(result: Path) -> Row:
    """What the tool's own run said, and the label that its row gets."""
    row: Row = json.loads(result.read_text())
    settings = [str(row[k]) for k in ("preset", "setting", "method", "policy") if k in row]
    if row.get("precision", "fp16") != "fp16":
        settings.append(str(row["precision"]))
    row["tool"] = " ".join([row["tool"], *settings])
    return row


def closeness(model: str, zoo: Path, data: Path, file: Path) -> Row:
    """Fidelity of a file whose model has real weights; the error where it does not run."""
    cpu = file.parent.name in CPU_TOOLS
    heldout, agreement = REAL_WEIGHTS[model]
    try:
        both = fidelity(zoo / f"{model}.onnx", file, data / heldout, cpu=cpu)
    except Exception as error:  # ONNX Runtime's own classes; a file that does not run keeps its row
        return {"fidelity_error": str(error).splitlines()[0][:300]}
    row: Row = {**both["reference"], "agreement": both["reference"][agreement]}
    if cpu:
        row |= {"cpu_cosine": both["cpu"]["cosine"], "cpu_agreement": both["cpu"][agreement]}
    return row


def table(model: str, number_format: str, target: str, batch: int, options: Any) -> list[Row]:
    """Rows of one table: the FP16 baseline, then every tool that has a result for it."""
    cache: Cache = options.cache
    data = options.data / DATA_OF.get(model, "calib.npz")
    baseline = options.zoo / f"{model}.onnx"
    gpu = not target.startswith("onnxruntime")
    files = [(baseline, {"tool": f"{'FP16' if gpu else 'FP32'}, no Q/DQ"}, gpu)]
    for result in sorted(options.out.glob(f"*/{model}-{number_format}*.json")):
        row = quantization(result)
        if wanted_target(row, target) and wanted_batch(row, batch):
            files.append((result.with_suffix(".onnx"), row, False))
    rows = []
    for file, said, fp16 in files:
        row = {"model": model, "format": number_format, "target": target, "at_batch": batch, **said}
        if file.is_file():
            key = f"{file}|{target}|{batch}"
            made = cache.get(key, file)
            if made is None:
                print(f"compiling {file} for {target}, batch {batch}", file=sys.stderr)
                made = cache.put(key, file, compile_row(file, target, batch, data, fp16))
            row |= {k: v for k, v in made.items() if k != "mtime"}
            if model in REAL_WEIGHTS and file != baseline and options.fidelity:
                key = f"{file}|fidelity"
                made = cache.get(key, file)
                if made is None:
                    made = cache.put(key, file, closeness(model, options.zoo, options.data, file))
                row |= {k: v for k, v in made.items() if k != "mtime"}
        rows.append(row)
    return rows


def wanted_target(row: Row, target: str) -> bool:
    """fuseq decides per target, so its row stands in the tables of its own compiler and device."""
    return bool(row.get("target", target) == target)


def wanted_batch(row: Row, batch: int) -> bool:
    """fuseq decides per batch, so its row stands in the table of its batch alone."""
    return not row["tool"].startswith("fuseq") or bool(row.get("plan_batch", batch) == batch)


def markdown(rows: list[Row], wanted: tuple[tuple[str, str], ...] = COLUMNS) -> str:
    """A Markdown table of the columns that any row fills; errors become a line of their own."""
    columns = [(head, key) for head, key in wanted if any(row.get(key) is not None for row in rows)]
    lines = [
        "| " + " | ".join(head for head, _ in columns) + " |",
        "|" + " --- |" * len(columns),
        *("| " + " | ".join(cell(row.get(key)) for _, key in columns) + " |" for row in rows),
    ]
    failed: dict[str, list[str]] = {}
    for row in rows:
        error = row.get("error") or row.get("fidelity_error")
        if error:
            failed.setdefault(str(error)[:300], []).append(row["tool"])
    lines += [f"\n{', '.join(tools)}: {error}" for error, tools in failed.items()]
    return "\n".join(lines)


def cell(value: object) -> str:
    """Text of a cell: numbers over 100 without decimals, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.4g}"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", action="append", help="default: tensorrt-rtx:sm89")
    parser.add_argument("--batch", action="append", type=int, help="default: 8")
    parser.add_argument("--format", action="append", choices=("int8", "fp8"), help="default: both")
    parser.add_argument("--model", action="append", help="default: every model in ZOO")
    parser.add_argument("--fresh", action="store_true", help="compile and compare everything again")
    parser.add_argument("--no-fidelity", dest="fidelity", action="store_false")
    options = parser.parse_args()
    options.cache = Cache(options.out / "side_by_side_cache.json", options.fresh)
    models = options.model or sorted(file.stem for file in options.zoo.glob("*.onnx"))
    everything: list[Row] = []
    for model in models:
        for target in options.target or ["tensorrt-rtx:sm89"]:
            for batch in options.batch or [8]:
                for number_format in options.format or ["int8", "fp8"]:
                    rows = table(model, number_format, target, batch, options)
                    everything += rows
                    if len(rows) > 1:
                        print(f"\n### {model}, {number_format}, {target}, batch {batch}\n")
                        print(markdown(rows), flush=True)
    (options.out / "side_by_side.json").write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
