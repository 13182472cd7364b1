"""Compile one ONNX file and print what the engine is, as one line of JSON.

    python compile_one.py MODEL.onnx --target tensorrt-rtx:sm89 --batch 8 [--data CALIB.npz] [--fp16]

Runs in a process of its own, so that a compiler that crashes costs one row and memory is that of one
compile. ``--fp16`` brings a float model into canonical form and types it FP16 first: the baseline.
"""

# ruff: noqa: PLC0415 - what is imported can fail, and the failure is a row
from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.lib import format as npy

if TYPE_CHECKING:
    from fuseq.targets.base import Engine


def sample_shapes(data: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every array of an .npz without its first axis, from the headers alone."""
    shapes = {}
    with zipfile.ZipFile(data) as archive:
        for member in archive.namelist():
            with archive.open(member) as stream:
                version = npy.read_magic(stream)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shapes[member.removesuffix(".npy")] = tuple(read(stream)[0][1:])
    return shapes


def compiled(
    file: Path, target: str, batch: int, data: Path | None, fp16: bool
) -> dict[str, object]:
    """Compile and sum up: megabytes are 10^6 bytes, ``alone`` counts kernels that only Q, DQ or cast.

    ``stranded`` counts those among them around which the engine is slower than in float (FQ101).

    Raises:
        fuseq.errors.FuseqError: The model or the target is refused.
    """
    from fuseq.model import input_specs, load, profile_for
    from fuseq.targets import parse_target

    model = load(file)
    if fp16:
        from fuseq.passes.canonical import canonicalize
        from fuseq.passes.typing import set_precision

        canonicalize(model)
        set_precision(model, "fp16")
    known = {spec.name for spec in input_specs(model)}
    shapes = sample_shapes(data) if data else {}
    chosen = {name: (batch, *shape) for name, shape in shapes.items() if name in known}
    profile = profile_for(model, batch, chosen)
    fixed = {shape[0] for shape in profile.optimum.values()} - {batch}
    if fixed:
        return {"error": f"the file has a fixed batch of {min(fixed)}, not {batch}"}
    compiler = parse_target(target)
    if fp16 or not compiler.predicts:
        engine, stranded = compiler.compile(model, profile), None
    else:
        engine, stranded = beside_float(file, target, batch, chosen)
    return {
        "gpu": getattr(getattr(compiler, "gpu", None), "name", None),
        "engine_mb": round(engine.engine_bytes / 1e6, 2),
        "kernels": len(engine.kernels),
        "alone": len(engine.alone),
        "stranded": stranded,
        "activation_mb": round(engine.activation_bytes / 1e6, 2),
        "weights_mb": round(engine.weights_bytes / 1e6, 2),
        "predicted_us": round(engine.predicted_us, 1) or None,
        "compile_s": round(engine.compile_seconds, 2),
        "products": products(engine),
    }


def products(engine: Engine) -> dict[str, int]:
    """Kernels with products by kind and type of their operands, such as ``gemm fp8``."""
    kinds = ("gemm", "attention", "convolution")
    found = (f"{k.type.value} {k.compute_dtype}" for k in engine.kernels if k.type.value in kinds)
    return dict(sorted(Counter(found).items()))


def beside_float(
    file: Path, target: str, batch: int, shapes: dict[str, tuple[int, ...]]
) -> tuple[Engine, int]:
    """The file's engine, and how many of its Q and DQ lose against the engine without them.

    Raises:
        fuseq.errors.TargetError: The compiler refuses the file.
    """
    from fuseq.checks.running import CheckOptions, check_model
    from fuseq.errors import TargetError

    options = CheckOptions(targets=(target,), batch=batch, shapes=shapes, select=("FQ101",))
    result = check_model(file, options)
    (row,) = result.targets
    if row.engine is None:
        raise TargetError(row.words)
    return row.engine, len(result.findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--target", default="tensorrt-rtx:sm89")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--data", type=Path, help=".npz whose arrays give the other dimensions")
    parser.add_argument("--fp16", action="store_true")
    options = parser.parse_args()
    from fuseq.errors import FuseqError

    try:
        row = compiled(options.model, options.target, options.batch, options.data, options.fp16)
    except FuseqError as error:
        row = {"error": str(error)}
    json.dump(row, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
