"""Mend one file and print what became of it, as one line of JSON; see fix_corpus.py for the columns.

python fix_one.py FILE.onnx TARGET [--batch 8] [--float FOLDER] [--data FILE.npz]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.checks.running import CheckOptions, check_model
from fuseq.errors import FuseqError, TargetError
from fuseq.evaluate.closeness import cosine
from fuseq.evaluate.running import run_all
from fuseq.fixing import Fixed, fix
from fuseq.model import input_specs, load, profile_for
from fuseq.options import QuantizeOptions
from fuseq.passes.private_qdq import standard_qdq
from fuseq.quantizing import quantize

Feeds = dict[str, np.ndarray]


def feeds_for(model: ir.Model, arrays: Feeds, batch: int) -> list[Feeds]:
    """Steps of ``batch`` samples, for the model's inputs by name, else by order."""
    specs = input_specs(model)
    names = [s.name if s.name in arrays else list(arrays)[i] for i, s in enumerate(specs)]
    count = len(next(iter(arrays.values())))
    return [
        {s.name: arrays[n][at : at + batch] for s, n in zip(specs, names, strict=True)}
        for at in range(0, count - count % batch, batch)
    ]


def outputs(model: ir.Model, arrays: Feeds, batch: int) -> np.ndarray:
    """The first output for all samples, Q and DQ computed as the file says."""
    found = run_all(model, feeds_for(model, arrays, batch), optimized=False)
    return np.asarray(found, np.float64)


def close(left: np.ndarray | None, right: np.ndarray | None) -> float | None:
    """Mean cosine of the samples."""
    if left is None or right is None:
        return None
    rows = [each.reshape(len(each), -1) for each in (left, right)]
    return round(float(cosine(*rows).mean()), 6)


def own_us(float_file: Path, arrays: Feeds, options: QuantizeOptions, batch: int) -> float:
    """Predicted time of fuseq's own post-training quantization, kept beside the float model."""
    device = options.target.replace(":", "-")
    kept = float_file.with_name(f"{float_file.stem}-own-{options.format}-{device}-b{batch}.txt")
    if not kept.exists():
        made = quantize(
            float_file, calib=feeds_for(load(float_file), arrays, batch), options=options
        )
        assert made.engine is not None
        kept.write_text(f"{made.engine.predicted_us:.2f}")
    return float(kept.read_text())


def scale_counts(result: Fixed) -> dict[str, int]:
    """Tensors quantized before and after, and how many of them have the same largest scale."""
    both = [c for c in result.changes if c.before is not None and c.after is not None]
    pairs = [(np.float32(c.before), np.float32(c.after)) for c in both if c.action != "added"]
    return {
        "kept": len(pairs),
        "bit_equal": sum(int(a == b) for a, b in pairs),
        "half_equal": sum(int(np.float16(a) == np.float16(b)) for a, b in pairs),
    }


def row(file: Path, target: str, batch: int, floats: Path, data: Path) -> dict[str, object]:
    arrays = dict(np.load(data))
    model = load(file)
    fixed_batch = profile_for(model, batch, {}).optimum if all_static(model) else {}
    batch = next(iter(fixed_batch.values()))[0] if fixed_batch else batch
    shapes = {n: tuple(a.shape) for n, a in feeds_for(model, arrays, batch)[0].items()}
    options = QuantizeOptions(target=target, batch=batch, shapes=shapes)
    result = fix(file, options=options)
    assert result.engine is not None and result.float_engine is not None
    in_place: ir.Model | None
    try:
        in_place = fix(file, options=options, keep_placement=True).model
    except TargetError:
        in_place = None
    with tempfile.TemporaryDirectory() as folder:
        ir.save(result.model, Path(folder) / "fixed.onnx")
        checked = check_model(
            Path(folder) / "fixed.onnx",
            CheckOptions(targets=(target,), batch=batch, shapes=shapes, select=("FQ101",)),
        )
    float_file = floats / f"{file.stem.partition('-')[0]}.onnx"
    fmt = result.plan.format
    standard_qdq(model)  # private operators run nowhere else
    exact, after = (outputs(m, arrays, batch) for m in (load(float_file), result.model))
    try:
        before = outputs(model, arrays, batch)
    except (
        TargetError
    ):  # ModelOpt's PyTorch export: FP16 scales beside FP32 tensors, which nobody runs
        before = None
    kept = outputs(in_place, arrays, batch) if in_place is not None else None
    own = QuantizeOptions(
        target=target, batch=batch, format=fmt, shapes=shapes_of(float_file, arrays, batch)
    )
    return {
        "format": fmt,
        "before_us": round(result.before.predicted_us, 1) if result.before is not None else None,
        "float_us": round(result.float_engine.predicted_us, 1),
        "own_us": round(own_us(float_file, arrays, own, batch), 1),
        "fixed_us": round(result.engine.predicted_us, 1),
        "stranded": len(checked.findings),
        "pairs": len([t for t in result.plan.tensors if t.kind == "activation"]),
        "cosine": close(before, after),
        "cosine_in_place": close(before, kept),
        "float_before": close(exact, before),
        "float_after": close(exact, after),
        **scale_counts(result),
    }


def all_static(model: ir.Model) -> bool:
    return all(
        s.shape is not None and all(isinstance(dim, int) for dim in s.shape)
        for s in input_specs(model)
    )


def shapes_of(file: Path, arrays: Feeds, batch: int) -> dict[str, tuple[int, ...]]:
    return {n: tuple(a.shape) for n, a in feeds_for(load(file), arrays, batch)[0].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("target")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--float", type=Path)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    net = options.file.stem.partition("-")[0]
    floats = options.float or options.file.parent.parent / "float"
    data = options.data or floats / f"{net}.npz"
    try:
        print(json.dumps(row(options.file, options.target, options.batch, floats, data)))
    except FuseqError as error:
        print(json.dumps({"error": str(error)[:300]}))


if __name__ == "__main__":
    main()
