"""``fuseq search --min-cosine 0.99`` on models with real weights, beside the search without it.

    python search_constraint.py ZOO DATA OUT.json --target tensorrt-rtx:sm89 --trials 12

Calibrated with the first samples of calib_*.npz, judged on the first of heldout_*.npz. Writes OUT.json
after every model; one that is there is not run again.
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from search_all import OWN_DATA, SHAPES

MODELS = ("yolov8n", "ppocr_detection", "efficientnet_lite0", "minilm")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", action="append")
    parser.add_argument("--format", default="int8")
    parser.add_argument("--target", default="tensorrt-rtx:sm89")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--rounding", default="nearest")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--least", type=float, default=0.99)
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.is_file() else []
    for model in given.model or MODELS:
        if model not in {row["model"] for row in rows}:
            rows.append(cell(given, model))
            beside = given.out.with_suffix(".tmp")
            beside.write_text(json.dumps(rows, indent=1))
            os.replace(beside, given.out)
            print(json.dumps(rows[-1]), flush=True)


def cell(given: argparse.Namespace, model: str) -> dict[str, Any]:
    """One search with the constraint; its row has the fastest plan without it too."""
    from fuseq.options import QuantizeOptions
    from fuseq.searching import SearchOptions, search
    from fuseq.trials.constraint import Constraint
    from fuseq.trials.tradeoff import formats_of

    suffix = f"_{model}" if model in OWN_DATA else ""
    held = np.load(given.data / f"heldout{suffix}.npz")
    judged = given.out.parent / f"judged{suffix or '_images'}.npz"
    np.savez(judged, **{name: held[name][: given.samples] for name in held.files})
    options = QuantizeOptions(
        format=given.format, target=given.target, batch=given.batch, limit=given.samples,
        shapes={name: (given.batch, *dims) for name, dims in SHAPES.get(model, {}).items()},
        rounding=given.rounding,
    )  # fmt: skip
    how = SearchOptions(
        trials=given.trials, executor="serial", cache=str(given.out.parent / "constraint-cache"),
        constraint=Constraint("cosine", given.least),
    )  # fmt: skip
    calib = given.data / f"calib{suffix}.npz"
    found = search(
        given.zoo / f"{model}.onnx", calib=str(calib), data=str(judged), options=options, how=how
    )
    curve = found.tradeoff
    assert curve is not None
    return {
        "model": model, "format": given.format, "target": given.target, "trials": found.trials,
        "float_us": found.float_engine.predicted_us, "rules_us": found.rule_engine.predicted_us,
        "unconstrained_us": curve.unconstrained.value,
        "unconstrained_cosine": curve.unconstrained.score,
        "unconstrained_regions": formats_of(curve.unconstrained.plan),
        "chosen_us": curve.chosen.value, "chosen_cosine": curve.chosen.score,
        "chosen_regions": formats_of(curve.chosen.plan), "seconds": round(found.seconds, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
