"""INT8 on this CPU: every tool's file of ten models, timed in turns with FP32, in one command.

    python cpu_table.py ZOO DATA OUT --python ort=ENV/bin/python --python nncf=ENV/bin/python \\
        --python fuseq=ENV/bin/python [--model NAME ...] [--threads N] [--seconds 30]

ZOO and DATA are what zoo.py, calib_data.py and cpu_models.py made. Files that OUT lacks are made first (one
process each, quantize_all.py's rows); then each model's files take turns, threads pinned. Prints a table a
model and a last one that says who is fastest; writes OUT/cpu_table-<threads>.json. A tool that fails, or whose
file does not run, keeps its row. With one thread the processor's time counts, which other programs do not
lengthen; with more, the clock's: then the machine must be quiet. ``ratio``: FP32's shortest run / the tool's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fuseq.errors import FuseqError
from fuseq.evaluate.closeness import cosine
from fuseq.targets.onnxruntime.session import open_session, run_session, session_options
from fuseq.targets.onnxruntime.timing import time_models
from quantize_all import DATA_OF, Row, fuseq_onnx, nncf_onnx, ort_static, run

MODELS = (
    *("efficientnet_lite0", "efficientnet_b0", "mobilenetv2", "mobilenetv3", "resnet50"),
    *("vit_s16", "minilm", "yolov8n", "ppocr_detection", "ppocr_recognition"),
)
BATCHES = {"yolov8n": 1, "ppocr_detection": 1}
"""Samples in a run; 8 for the others."""

UNKNOWN_SHAPES = ("minilm", "yolov8n", "ppocr_detection", "ppocr_recognition")
"""Models on which ONNX Runtime's own shape inference stops: "Incomplete symbolic shape inference"."""

CLOSE = 1.02
"""Within 2 per cent of the fastest."""

Line = dict[str, Any]


def rows_of(model: str) -> list[Row]:
    """Every tool that makes ONNX files for a CPU; ONNX Runtime's in each setting that could be best."""
    settings = ("best", "u8s8", "default", "u8u8", "s8s8")
    dynamic = Row("ort-dynamic", "ort", "ort_dynamic.py", model, "int8")
    return [
        fuseq_onnx(model, "int8", "onnxruntime:cpu", BATCHES.get(model, 8)),
        *(_ort(model, setting) for setting in settings),
        dynamic,
        *(nncf_onnx(model, preset) for preset in ("mixed", "performance")),
    ]


def _ort(model: str, setting: str) -> Row:
    row = ort_static(model, setting, "minmax")
    if model not in UNKNOWN_SHAPES:
        return row
    return Row(
        *(row.tool, row.environment, row.script, model, "int8", row.variant),
        (*row.arguments, "--skip-symbolic-shape"),
    )


def feeds_of(model: str, data: Path) -> dict[str, np.ndarray]:
    """One run's inputs."""
    with np.load(data / DATA_OF.get(model, "calib.npz")) as arrays:
        return {name: arrays[name][: BATCHES.get(model, 8)] for name in arrays.files}


def outputs_of(file: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | str:
    """What a file computes, or why it does not run."""
    try:
        return list(run_session(open_session(file, session_options(1)), feeds).values())
    except FuseqError as error:
        return str(error)[:200]


def timed(model: str, options: argparse.Namespace) -> list[Line]:
    """A line each: FP32 first, then every row of the model, those that failed with their error."""
    feeds = feeds_of(model, options.data)
    floating = options.zoo / f"{model}.onnx"
    exact = outputs_of(floating, feeds)
    if isinstance(exact, str):
        return [{"tool": "FP32", "error": exact}]
    lines: dict[str, Line] = {"FP32": {"tool": "FP32", "file": str(floating), "cosine": 1.0}}
    for row in rows_of(model):
        file = options.out / f"{row.name}.onnx"
        line: Line = {"tool": " ".join(filter(None, (row.tool, row.variant))), "file": str(file)}
        lines[row.name] = line
        if not file.is_file():
            line["error"] = said(file.with_suffix(".json"))
            continue
        found = outputs_of(file, feeds)
        if isinstance(found, str):
            line["error"] = found
        else:
            line["cosine"] = round(float(cosine(exact[0], found[0]).mean()), 5)
    running = {name: Path(line["file"]) for name, line in lines.items() if "error" not in line}
    times = time_models(
        running, feeds, seconds=options.seconds, threads=options.threads, warmup=3,
        processor_time=options.threads == 1,
    )  # fmt: skip
    for each in times:
        ratio = times[0].best_ms / each.best_ms
        lines[each.name] |= {
            "best_ms": round(each.best_ms, 2), "median_ms": round(each.median_ms, 2),
            "ratio": round(ratio, 3), "ratio_of_rounds": round(each.speedup, 3),
            "rounds": each.rounds,
        }  # fmt: skip
    return list(lines.values())


def said(result: Path) -> str:
    """What the tool's own run said when it made no file."""
    if not result.is_file():
        return "not made: its environment was not given"
    return str(json.loads(result.read_text()).get("error") or "it wrote no file")


def table(model: str, lines: list[Line], threads: int) -> str:
    """Markdown of one model."""
    head = f"**{model}, batch {BATCHES.get(model, 8)}, {threads} thread(s)**\n\n"
    head += "| tool | shortest ms | median ms | ratio | ratio, median of rounds | cosine |\n"
    head += "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    made = []
    for line in lines:
        if "error" in line:
            made.append(f"| {line['tool']} | {line['error']} | | | | |")
        else:
            keys = ("tool", "best_ms", "median_ms", "ratio", "ratio_of_rounds", "cosine")
            made.append("| " + " | ".join(str(line[key]) for key in keys) + " |")
    return head + "\n".join(made) + "\n"


def verdict(tables: dict[str, list[Line]]) -> str:
    """fuseq beside the fastest other tool, a row a model, and the two counts that are asked for."""
    made = ["| model | fuseq | fastest other | fuseq / other |", "| --- | ---: | --- | ---: |"]
    close = slower = 0
    for model, lines in tables.items():
        ran = [line for line in lines[1:] if "ratio" in line]
        ours = next((line for line in ran if line["tool"].startswith("fuseq")), None)
        others = [line for line in ran if line is not ours]
        if ours is None:
            made.append(f"| {model} | failed | | |")
            continue
        best = max(others, key=lambda line: line["ratio"], default=None)
        share = ours["ratio"] / best["ratio"] if best else 1.0
        close += share * CLOSE >= 1
        slower += ours["ratio"] < 1 / CLOSE
        other = f"{best['tool']} {best['ratio']}" if best else "none ran"
        made.append(f"| {model} | {ours['ratio']} | {other} | {share:.3f} |")
    made.append("")
    made.append(
        f"Fastest or within 2 %: {close} of {len(tables)}; slower than FP32 by over 2 %: {slower}."
    )
    return "\n".join(made)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", action="append", default=[], help="environment=interpreter")
    parser.add_argument("--model", action="append", help="default: the ten of this script")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of timing, a model")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    pythons = dict(entry.split("=", 1) for entry in options.python)
    tables: dict[str, list[Line]] = {}
    for model in options.model or MODELS:
        for row in rows_of(model):
            if row.environment in pythons:
                run(row, pythons[row.environment], options.zoo, options.data, options.out)
        tables[model] = timed(model, options)
        print(table(model, tables[model], options.threads), flush=True)
        file = options.out / f"cpu_table-{options.threads}.json"
        file.write_text(json.dumps(tables, indent=1))
    print(verdict(tables))


if __name__ == "__main__":
    main()
