"""Run a model on ONNX Runtime's CPU provider over batches, one batch in memory at a time.

ONNX Runtime runs every Q/DQ file, whatever compiler it was made for: FP8 Q/DQ nodes too, between
float operators. So closeness to the float model can be measured on any machine. Two ways:

1. ``optimized``: what users of ``onnxruntime:cpu`` get, integer kernels included.
2. as written: every Q and DQ computed as the file says and products in float. On a CPU whose
   integer products saturate (x86 without VNNI) this is what an accelerator comes closest to, and
   the way to judge a file that was made for another target. ``in_fp32`` also computes in FP32 what
   the file has in FP16: two to three times as fast on a CPU, which has no FP16 kernels, and without
   the rounding of FP16 (cosine about 0.99999 where 8 bits leave 0.99).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from fuseq.calibration.upcast import upcast
from fuseq.errors import TargetError
from fuseq.model import load
from fuseq.targets.onnxruntime.session import (
    Feeds,
    ModelLike,
    open_session,
    run_session,
    session_options,
    usable_cpus,
)

WRONG_OPTIMIZERS = ("ReluQuantRewrite", "ClipQuantRewrite")
"""Optimizers of what stands before a QuantizeLinear that do not know FP8 (ONNX Runtime 1.32). The first
drops a Relu where the zero point is 0, as if 0 were the least value of every type (noise over signal 0.82
instead of 0.0015 behind one layer); the second refuses a Clip: "Unexpected data type ... y_zero_point"."""

_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def run_batches(
    model: ModelLike,
    batches: Iterable[Feeds],
    *,
    optimized: bool = True,
    in_fp32: bool = False,
    threads: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the outputs by name of each batch; nothing is kept.

    Args:
        model: Model or file that ONNX Runtime runs; opened once, at the first batch.
        batches: Arrays by input name. Floats are converted to the float type of the input, so that
            the same data serves a float model and its quantized FP16 file.
        optimized: False computes each Q and DQ as it is written.
        in_fp32: Compute FP16 and BF16 operators in FP32; inputs and outputs become FP32 too.
        threads: Threads of one operator; all usable processors by default.

    Raises:
        TargetError: ONNX Runtime refused the model or a batch.
    """
    session = None
    types: dict[str, Any] = {}
    for batch in batches:
        if session is None:
            source = _float32_copy(model) if in_fp32 else model
            without = () if optimized else WRONG_OPTIMIZERS
            session = open_session(source, _options(optimized, threads), without=without)
            types = {value.name: _FLOATS.get(value.type) for value in session.get_inputs()}
        yield run_session(session, {name: _as(types.get(name), a) for name, a in batch.items()})


def run_all(
    model: ModelLike,
    batches: Iterable[Feeds],
    *,
    output: str | None = None,
    optimized: bool = True,
    in_fp32: bool = False,
    threads: int | None = None,
) -> np.ndarray:
    """One output over all batches, joined along the first axis: [N, ...].

    Args:
        model: As in :func:`run_batches`.
        batches: As in :func:`run_batches`.
        output: Name of the output; the first by default.
        optimized: As in :func:`run_batches`.
        in_fp32: As in :func:`run_batches`.
        threads: As in :func:`run_batches`.

    Raises:
        TargetError: ONNX Runtime refused the model or a batch, there is no batch, or no such output.
    """
    parts = []
    running = run_batches(model, batches, optimized=optimized, in_fp32=in_fp32, threads=threads)
    for outputs in running:
        name = next(iter(outputs)) if output is None else output
        if name not in outputs:
            raise TargetError(f"output {name!r} is unknown; the model's are {sorted(outputs)}.")
        parts.append(outputs[name])
    if not parts:
        raise TargetError("there is no batch to run the model on; give data.")
    return np.concatenate(parts)


def _options(optimized: bool, threads: int | None) -> Any:
    options = session_options(threads or len(usable_cpus()))
    if not optimized:  # what is fused then computes as the nodes would, but for the order of sums
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def _float32_copy(model: ModelLike) -> ir.Model:
    if isinstance(model, bytes):
        copy = ir.from_proto(onnx.load_from_string(model))
    else:
        copy = model.clone() if isinstance(model, ir.Model) else load(model)
    upcast(copy)
    return copy


def _as(wanted: Any, array: np.ndarray) -> np.ndarray:
    """``array`` in the input's float type; anything else is left for ONNX Runtime to judge."""
    if wanted is None or not np.issubdtype(array.dtype, np.floating):
        return array
    return array.astype(wanted, copy=False)
