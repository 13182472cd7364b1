"""Compare the cost model with measured TensorRT engines, layer by layer.

    python benchmarks/cost_a100.py [FOLDER ...] [--hold-out] [--layers ENGINE]

A folder holds ``NAME.graph.json``, ``NAME.profile.json`` and ``NAME.profile.metadata.json`` as TREx
writes them; the default is the A100 ResNet-18 set beside the repository (NVIDIA/TensorRT, folder
tools/experimental/trt-engine-explorer/examples/pytorch/resnet/A100). ``--hold-out`` chooses the
constants again on all engines but one and says how well they do on that one.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from fuseq.targets.base import Kernel
from fuseq.targets.cost import CONSTANTS, Constants, with_predictions
from fuseq.targets.gpus import Gpu, gpu_for
from fuseq.targets.layer_info import read_engine, read_profile_metadata

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "trt-engine-explorer"

PROFILE_OVERHEAD_US = {80: 4.5, 86: 3.0, 75: 1.7}
"""What timing a layer adds to it: profiles run without CUDA graphs, with an event around each layer.
It is (sum of layers - GPU time of the engine) / layers, where the first layer's cold start (about
70 us on A100, in a profile of one iteration) is left out."""

SEARCHED = {
    "launch_us": (1.0, 5.0),
    "tile_ramp_us": (0.0, 5.0),
    "tensor_core_efficiency": (0.5, 1.0),
    "cuda_core_efficiency": (0.5, 1.0),
    "l2_bytes_per_clock": (12.0, 48.0),
    "pool_bytes_per_clock": (4.0, 28.0),
    "reformat_bytes_per_clock": (3.0, 28.0),
}
"""The constants chosen on these engines, with the range that makes sense; the others are stated."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """An engine with measured layers and a measured total (microseconds)."""

    name: str
    gpu: Gpu
    kernels: tuple[Kernel, ...]
    total_us: float

    @property
    def overhead_us(self) -> float:
        return PROFILE_OVERHEAD_US.get(self.gpu.capability, 0.0)


@dataclasses.dataclass(frozen=True)
class Fit:
    """How far predictions are from one engine's measurement; errors are relative."""

    median_error: float
    spearman: float
    total_us: float
    layers_us: tuple[float, ...]


def load(folder: Path) -> list[Measured]:
    """Read every engine of a folder whose GPU the table has and whose three files are there."""
    engines = []
    for graph in sorted(folder.glob("*.graph.json")):
        stem = graph.name.removesuffix(".graph.json")
        engine = read_engine(graph, folder / f"{stem}.profile.json")
        metadata = read_profile_metadata(folder / f"{stem}.profile.metadata.json")
        gpu = gpu_for(metadata.capability, metadata.device)
        engines.append(Measured(stem, gpu, engine.kernels, 1e3 * metadata.gpu_ms))
    return engines


def fit(engine: Measured, constants: Constants = CONSTANTS) -> Fit:
    """Predict ``engine``. A layer's measured time is its profile less the overhead of timing it."""
    predicted = [
        kernel.predicted_us or 0.0
        for kernel in with_predictions(engine.kernels, engine.gpu, constants)
    ]
    measured = [
        max((kernel.measured_us or 0.0) - engine.overhead_us, 0.5) for kernel in engine.kernels
    ]
    errors = [abs(p - m) / m for p, m in zip(predicted, measured, strict=True)]
    return Fit(
        statistics.median(errors), spearman(predicted, measured), sum(predicted), tuple(predicted)
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; ties take their mean rank."""
    return statistics.correlation(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float]) -> list[float]:
    rounded = [round(value, 3) for value in values]
    ordered = sorted(rounded)
    first = {value: ordered.index(value) for value in set(rounded)}
    return [first[value] + (rounded.count(value) - 1) / 2 for value in rounded]


def choose(engines: Sequence[Measured], start: Constants, steps: int, seed: int) -> Constants:
    """Random descent from ``start`` on the mean log error of layers and totals."""
    generator = random.Random(seed)
    best, best_loss = start, _loss(engines, start)
    for step in range(steps):
        width = 0.2 if step < steps // 2 else 0.05
        changes = {}
        for name in generator.sample(sorted(SEARCHED), 2):
            low, high = SEARCHED[name]
            moved = (getattr(best, name) + 0.1) * math.exp(generator.gauss(0, width)) - 0.1
            changes[name] = min(max(moved, low), high)
        candidate = dataclasses.replace(best, **changes)
        loss = _loss(engines, candidate)
        if loss < best_loss:
            best, best_loss = candidate, loss
    return best


def _loss(engines: Iterable[Measured], constants: Constants) -> float:
    losses = []
    for engine in engines:
        result = fit(engine, constants)
        layers = [
            abs(math.log((p + engine.overhead_us) / kernel.measured_us))
            for p, kernel in zip(result.layers_us, engine.kernels, strict=True)
            if kernel.measured_us
        ]
        total = abs(math.log(result.total_us / engine.total_us))
        losses.append(statistics.fmean(layers) + total)
    return statistics.fmean(losses)


def print_table(engines: Sequence[Measured]) -> None:
    print(
        "| engine | GPU | layers | median error | Spearman | predicted us | measured us | error |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for engine in engines:
        result = fit(engine)
        print(
            f"| {engine.name} | {engine.gpu.name} | {len(engine.kernels)} "
            f"| {result.median_error:.1%} | {result.spearman:.3f} | {result.total_us:.0f} "
            f"| {engine.total_us:.0f} | {result.total_us / engine.total_us - 1:+.1%} |"
        )


def print_hold_out(engines: Sequence[Measured]) -> None:
    """Start far from the constants in use, so that they cannot be found by standing still."""
    far = dataclasses.replace(
        CONSTANTS,
        **{name: (low + high) / 2 for name, (low, high) in SEARCHED.items()},
    )
    print("| held out | median error | Spearman | total error | constants chosen on the others |")
    print("| --- | --- | --- | --- | --- |")
    for held in engines:
        others = [engine for engine in engines if engine is not held]
        constants = choose(others, far, steps=400, seed=0)
        result = fit(held, constants)
        chosen = ", ".join(f"{name} {getattr(constants, name):.2f}" for name in SEARCHED)
        print(
            f"| {held.name} | {result.median_error:.1%} | {result.spearman:.3f} "
            f"| {result.total_us / held.total_us - 1:+.1%} | {chosen} |"
        )


def print_layers(engine: Measured) -> None:
    for kernel, predicted in zip(engine.kernels, fit(engine).layers_us, strict=True):
        measured = (kernel.measured_us or 0.0) - engine.overhead_us
        print(
            f"{kernel.name[-48:]:48s} {kernel.compiler_type[:14]:14s} {kernel.compute_dtype:6s} "
            f"predicted {predicted:7.1f}  measured {measured:7.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[DATA])
    parser.add_argument("--hold-out", action="store_true")
    parser.add_argument("--layers", metavar="ENGINE")
    options = parser.parse_args()
    engines = [engine for folder in options.folders for engine in load(folder)]
    print_table(engines)
    for engine in engines:
        if engine.name == options.layers:
            print_layers(engine)
    if options.hold_out:
        print()
        print_hold_out(engines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
