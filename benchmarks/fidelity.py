"""How close a quantized ONNX file is to its float model, by ONNX Runtime on held-out samples.

    python fidelity.py FLOAT.onnx QUANTIZED.onnx HELDOUT.npz [--batch 8]

Two runs: `reference` switches graph optimizations off, so every Q and DQ is computed as the file
says and products are float (what an accelerator without saturating 16-bit sums comes closest to);
`cpu` is what ONNX Runtime makes of the file by default on this CPU, integer kernels included.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort


def outputs(file: Path, arrays: dict[str, np.ndarray], batch: int, optimized: bool) -> np.ndarray:
    """First output for all samples, float64 [N, C]; inputs are matched by name, else by order.

    Raises:
        ValueError: The model needs another batch than ``batch`` or another number of inputs.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a shared machine
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) != len(arrays):
        raise ValueError(f"{file}: has {len(inputs)} inputs, the data {len(arrays)}")
    names = [i.name if i.name in arrays else list(arrays)[n] for n, i in enumerate(inputs)]
    count = len(next(iter(arrays.values())))
    whole = count - count % batch  # a model of fixed batch takes whole steps only
    parts = []
    for start in range(0, whole, batch):
        feed: dict[str, Any] = {}
        for wanted, name in zip(inputs, names, strict=True):
            step = arrays[name][start : start + batch]
            feed[wanted.name] = step.astype(np.float16) if "float16" in wanted.type else step
        parts.append(np.asarray(session.run(None, feed)[0], dtype=np.float64))
    return np.concatenate(parts)


def nearest(rows: np.ndarray) -> np.ndarray:
    """Index of the nearest other row by cosine, int64 [N], for embeddings [N, C]."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    return np.asarray(alike.argmax(1))


def compare(exact: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Compare rows of [N, C]: cosine, agreement, signal to noise in dB.

    ``top1_agreement`` is the share of rows with the same arg-max (classes), ``nearest_agreement``
    the share whose nearest other row is the same (embeddings); each means something for its kind.
    """
    dots = (exact * other).sum(1)
    cosine = dots / np.maximum(np.linalg.norm(exact, axis=1) * np.linalg.norm(other, axis=1), 1e-30)
    noise = float(((exact - other) ** 2).sum())
    return {
        "samples": len(exact),
        "cosine": round(float(cosine.mean()), 6),
        "cosine_min": round(float(cosine.min()), 6),
        "top1_agreement": round(float((exact.argmax(1) == other.argmax(1)).mean()), 4),
        "nearest_agreement": round(float((nearest(exact) == nearest(other)).mean()), 4),
        "sqnr_db": round(10 * float(np.log10((exact**2).sum() / max(noise, 1e-30))), 2),
    }


@functools.lru_cache(maxsize=1)
def float_outputs(
    float_file: Path, heldout: Path, batch: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Held-out arrays and what the float model makes of them; many files share one float model."""
    with np.load(heldout) as stored:
        arrays = dict(stored)
    return arrays, outputs(float_file, arrays, batch, optimized=True)


def fidelity(
    float_file: Path, quantized: Path, heldout: Path, batch: int = 8, cpu: bool = True
) -> dict[str, dict[str, float]]:
    """Compare as ``reference`` and, if wanted, as ``cpu``; keys and units as in :func:`compare`."""
    arrays, exact = float_outputs(float_file, heldout, batch)
    result = {"reference": compare(exact, outputs(quantized, arrays, batch, optimized=False))}
    if cpu:
        result["cpu"] = compare(exact, outputs(quantized, arrays, batch, optimized=True))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("float_file", type=Path)
    parser.add_argument("quantized", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    result = fidelity(options.float_file, options.quantized, options.heldout, options.batch)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
