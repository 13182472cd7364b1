"""What a benchmark says about each model, and what a user should not overlook in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fuseq.errors import OptionError
from fuseq.evaluate.bench_statistics import Ratio, Spread, paired_ratio, spread
from fuseq.targets.base import Engine
from fuseq.targets.trtexec import Timed
from fuseq.targets.turns import Sample

SLOWER = 1.02
"""Below this many per cent two medians are noise, not a loss."""


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """Options of ``fuseq bench``.

    Attributes:
        target: ``compiler:device``.
        gpu: GPU that predictions assume; None is the capability's default.
        batch: Size of a dynamic first axis.
        shapes: Static shape by input name, where more is dynamic.
        timed: Warm-up, duration, iterations, streams, CUDA graph.
        threads: Threads of one operator on a CPU; all usable processors by default.
    """

    target: str = "onnxruntime:cpu"
    gpu: str | None = None
    batch: int = 1
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    timed: Timed = dataclasses.field(default_factory=Timed)
    threads: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be timed.

        Raises:
            OptionError: Names the option, what was found, and what is allowed.
        """
        timed = self.timed
        if self.batch < 1:
            raise OptionError(f"--batch {self.batch} is not a batch size; give 1 or more.")
        if timed.warmup_ms < 0 or timed.seconds < 0 or timed.iterations < 1:
            raise OptionError(
                f"--warmup {timed.warmup_ms:g}, --duration {timed.seconds:g}, --iterations "
                f"{timed.iterations}: times are 0 or more, iterations 1 or more."
            )
        if timed.streams < 1:
            raise OptionError(f"--streams {timed.streams}: give 1 or more.")


@dataclasses.dataclass(frozen=True)
class BenchRow:
    """One model of a run.

    Attributes:
        name: As the caller called it.
        source: File, or "" for a model in memory.
        batch: Samples in one inference, None if unknown.
        host: Time from the call to the result; None where nothing ran.
        device: What the GPU worked. On a CPU with one thread its processor time, which other
            programs do not lengthen; with several threads None, as where nothing ran.
        rounds_ms: Host times in order (device times where only they are known); empty where nothing
            ran.
        throughput_per_s: Inferences a second.
        ratio: How many times faster than the first model, measured.
        predicted_us: The cost model's sum over kernels; None where nothing is predicted.
        predicted_ratio: How many times faster than the first model, predicted.
        engine: What the target's compiler made, None where it was not compiled.
        trtexec: The command that builds and times the same elsewhere.
        notes: What the user should know.
    """

    name: str
    source: str
    batch: int | None
    host: Spread | None = None
    device: Spread | None = None
    rounds_ms: tuple[float, ...] = ()
    throughput_per_s: float | None = None
    ratio: Ratio | None = None
    predicted_us: float | None = None
    predicted_ratio: float | None = None
    engine: Engine | None = None
    trtexec: str = ""
    notes: tuple[str, ...] = ()

    @property
    def median_ms(self) -> float | None:
        """Median latency: the device's where it is known, else the host's; None where nothing ran."""
        best = self.device or self.host
        return None if best is None else best.median_ms


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """A run of several models.

    Attributes:
        target: ``compiler:device``, or ``trtexec`` for times of another machine.
        rows: In the caller's order; ratios refer to the first.
        missing: What could not be done here, one sentence each.
        findings: What a user should not overlook: a model slower than the first one, outliers.
        notes: How it was measured.
    """

    target: str
    rows: tuple[BenchRow, ...]
    missing: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when every row was measured, 1 when something is missing."""
        return 1 if self.missing else 0


def measured_rows(
    rows: Sequence[BenchRow], rounds: Sequence[Sequence[Sample]]
) -> tuple[BenchRow, ...]:
    """Fill ``rows`` with what :func:`take_turns` measured; ``rounds`` has a column for each row."""
    columns = list(zip(*rounds, strict=True))
    hosts = [[sample.host_ms for sample in column] for column in columns]
    devices = [[s.device_ms for s in column if s.device_ms is not None] for column in columns]
    timed = [device or host for host, device in zip(hosts, devices, strict=True)]
    return tuple(
        dataclasses.replace(
            row,
            host=spread(host),
            device=spread(device) if device else None,
            rounds_ms=tuple(times),
            throughput_per_s=1e3 * len(host) / sum(host),
            ratio=paired_ratio(timed[0], times),
        )
        for row, host, device, times in zip(rows, hosts, devices, timed, strict=True)
    )


def findings_of(rows: Sequence[BenchRow]) -> tuple[str, ...]:
    """Sentences about models that are not faster than the first one, and about outliers.

    1. A measured ratio whose whole confidence interval lies below 1, or a predicted one below 1 / 1.02.
    2. Runs that took much longer than the others.
    3. A first model whose engine computes in FP32 while another's does not: ratios to it flatter.
    """
    found = []
    if _in_fp32(rows[0]) and any(row.engine and not _in_fp32(row) for row in rows[1:]):  # case 3
        found.append(
            f"{rows[0].name} computes in FP32, as its file says: ratios to it flatter. Compare with "
            "the model in FP16 (`fuseq deploy` writes it as float.onnx)."
        )
    for row in rows[1:]:
        against = rows[0].name
        if row.ratio is not None:
            surely = row.ratio.high is None or row.ratio.high < 1
            if surely and row.ratio.median < 1 / SLOWER:  # case 1
                found.append(
                    f"{row.name} is {1 / row.ratio.median:.2f} times slower than {against} "
                    "(measured): use the other, or see `fuseq check` for what costs it."
                )
        elif row.predicted_ratio is not None and row.predicted_ratio < SLOWER:
            word = "no faster" if row.predicted_ratio > 1 / SLOWER else "slower"
            found.append(
                f"{row.name} is {word} than {against}: {row.predicted_ratio:.2f} times its speed "
                "(predicted); see `fuseq check` for what costs it."
            )
    for row in rows:
        times = row.device or row.host
        if times is not None and times.outliers.places:  # case 2
            count = len(times.outliers.places)
            found.append(
                f"{row.name}: {count} of {times.runs} runs took over "
                f"{times.outliers.limit_ms:.3f} ms, the longest {times.outliers.worst_ms:.3f} ms "
                f"against a median of {times.median_ms:.3f}; judge by the median."
            )
    return tuple(found)


def _in_fp32(row: BenchRow) -> bool:
    """Most of its engine's products have FP32 operands."""
    kernels = row.engine.kernels if row.engine is not None else ()
    all_flops = sum(kernel.flops for kernel in kernels)
    fp32_flops = sum(k.flops for k in kernels if k.compute_dtype in ("fp32", "tf32"))
    return 2 * fp32_flops > all_flops
