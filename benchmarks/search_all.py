"""``fuseq search`` over models, formats and targets, beside FP16, the rules' plan and other tools' files.

    python search_all.py ZOO DATA OTHER OUT.json --trials 40 --model resnet50 --target tensorrt-rtx:sm89

Writes OUT.json after every cell, so that it can be stopped and run again; a cell that is there is not
run again. ``--others`` compiles the other tools' files that rows do not have yet, and nothing else;
``--table`` prints the Markdown table of what is there. Predicted times by fuseq's cost model, the
same for every tool's file; an other tool's best file is the fastest of all its variants.
"""

# ruff: noqa: PLC0415 - compiling is imported where it is needed: --table needs nothing
from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODELS = (
    "efficientnet_b0", "efficientnet_lite0", "mobilenetv2", "mobilenetv3", "resnet50", "vit_s16",
    "convnext_t", "swin_t", "yolov8n", "ppocr_detection", "occupancy", "clip_text",
)  # fmt: skip
TARGETS = (*(f"tensorrt-rtx:sm{n}" for n in (89, 80, 120, 86)), "tensorrt:sm80")
NO_FP8 = ("sm80", "sm86")
TOOLS = ("modelopt-onnx", "modelopt-torch", "nncf-onnx", "ort-static")
OWN_DATA = ("clip_image", "clip_text", "minilm", "yolov8n", "ppocr_detection", "occupancy")
SHAPES = {"yolov8n": {"images": (3, 320, 320)}, "ppocr_detection": {"x": (3, 320, 320)},
          "minilm": {"input_ids": (128,), "attention_mask": (128,)}}  # fmt: skip
"""Sizes of an input besides the batch, where the file leaves them open."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", action="append")
    parser.add_argument("--target", action="append")
    parser.add_argument("--format", action="append")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--budget", type=float)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--cache", default=None)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.is_file() else []
    if given.others:
        for row in rows:
            others(given, row)
            keep(given.out, rows)
    elif not given.table:
        search_rows(given, rows)
    print(table(rows))
    return 0


def search_rows(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Run the cells that are not there, all models of one target and format before the next."""
    for target in given.target or TARGETS:
        for fmt in given.format or ("int8", "fp8"):
            if fmt == "fp8" and target.endswith(NO_FP8):
                continue
            for model in given.model or MODELS:
                done = {(row["model"], row["format"], row["target"]) for row in rows}
                if (model, fmt, target) not in done:
                    rows.append(cell(given, model, fmt, target))
                    keep(given.out, rows)
                    shown = {k: v for k, v in rows[-1].items() if k != "curve"}
                    print(json.dumps(shown), flush=True)


def keep(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows whole or not at all."""
    beside = out.with_suffix(".tmp")
    beside.write_text(json.dumps(rows, indent=1))
    os.replace(beside, out)


def cell(given: argparse.Namespace, model: str, fmt: str, target: str) -> dict[str, Any]:
    """One search."""
    from fuseq.errors import FuseqError
    from fuseq.options import QuantizeOptions
    from fuseq.searching import SearchOptions, search

    row: dict[str, Any] = {"model": model, "format": fmt, "target": target, "batch": given.batch}
    data = given.data / (f"calib_{model}.npz" if model in OWN_DATA else "calib.npz")
    shapes = {name: (given.batch, *shape) for name, shape in SHAPES.get(model, {}).items()}
    options = QuantizeOptions(format=fmt, target=target, batch=given.batch, shapes=shapes, limit=2)
    how = SearchOptions(
        seconds=given.budget, trials=None if given.budget else given.trials,
        executor=given.executor, cache=given.cache or str(given.out.parent / ".fuseq-cache"),
    )  # fmt: skip
    try:
        found = search(given.zoo / f"{model}.onnx", calib=str(data), options=options, how=how)
    except FuseqError as error:
        return {**row, "error": str(error)}
    row |= {
        "float_us": found.float_engine.predicted_us,
        "rules_us": found.rule_engine.predicted_us,
        "search_us": found.engine.predicted_us,
        "float_kernels": len(found.float_engine.kernels),
        "search_kernels": len(found.engine.kernels),
        "alone": len(found.engine.alone),
        "steps": [f"{step.says} ({step.gain:.1f} us)" for step in found.steps],
        "trials": found.trials,
        "clock_s": round(found.seconds, 1),
        "curve": [[round(s, 1), round(v, 2)] for s, v in found.curve],
    }
    return row | {"other": {}}


def others(given: argparse.Namespace, row: dict[str, Any]) -> None:
    """Add predicted microseconds of each other tool's file, each compiled in a process of its own."""
    model, fmt = row["model"], row["format"]
    data = given.data / f"calib_{model}.npz"
    for tool in TOOLS if "error" not in row else ():
        for file in sorted((given.other / tool).glob(f"{model}-{fmt}*.onnx")):
            if (name := f"{tool}/{file.stem}") in row["other"]:
                continue
            script = Path(__file__).with_name("compile_one.py")
            command = [sys.executable, str(script), str(file), "--target", row["target"]]
            command += ["--batch", str(given.batch)]
            command += ["--data", str(data)] if model in SHAPES else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            try:
                result = json.loads(done.stdout.splitlines()[-1])
            except (IndexError, json.JSONDecodeError):
                result = {"error": done.stderr[-300:] or "crashed"}
            row["other"][name] = result.get("predicted_us") or str(result.get("error"))[:200]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one row a cell, then the geometric means."""
    head = "| model | format | target | FP16 us | rules us | search us | to FP16 | to rules | best other us | to it |"
    lines = [head, "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    ratios: dict[str, list[float]] = {"FP16": [], "rules": [], "best other": []}
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['format']} | {row['target']} | {row['error']} |")
            continue
        other = min((v for v in row["other"].values() if isinstance(v, float)), default=None)
        us = row["search_us"]
        ratios["FP16"].append(row["float_us"] / us)
        ratios["rules"].append(row["rules_us"] / us)
        beside = "| - | - |"
        if other is not None:
            ratios["best other"].append(other / us)
            beside = f"| {other:.1f} | {other / us:.2f} |"
        lines.append(
            f"| {row['model']} | {row['format']} | {row['target'].partition(':')[2]} "
            f"| {row['float_us']:.1f} | {row['rules_us']:.1f} | {us:.1f} "
            f"| {row['float_us'] / us:.3f} | {row['rules_us'] / us:.3f} {beside}"
        )
    lines.append("")
    for name, values in ratios.items():
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            better = sum(value > 1.0005 for value in values)
            lines.append(
                f"- against {name}: geometric mean {mean:.3f} over {len(values)} cells, better in {better}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
