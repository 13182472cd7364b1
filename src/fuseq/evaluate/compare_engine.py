"""A serialized engine as a side of a comparison: it runs on its GPU and gives its outputs alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fuseq.calibration.batches import Batch
from fuseq.errors import TargetError
from fuseq.evaluate.compare_side import RunBatch, Side, Value
from fuseq.serving.session import Session
from fuseq.targets.engine_files import engine_kind

ENGINE_SUFFIXES = (".engine", ".plan", ".trt", ".rtxplan")


def engine_side(path: str | os.PathLike[str], label: str) -> Side:
    """Open an engine.

    Raises:
        TargetError: It cannot run here; the message says what to do elsewhere.
    """
    kind = engine_kind(Path(path))
    try:
        session = Session(path)
    except TargetError as error:
        tool = "tensorrt_rtx" if kind == "tensorrt-rtx" else "trtexec"
        raise TargetError(
            f"{error} Or run it there with `{tool} --loadEngine={path} --loadInputs=... "
            "--exportOutput=outputs.json` and compare outputs.json."
        ) from error

    def open_values(names: Sequence[str], threads: int) -> RunBatch:
        def run(batch: Batch) -> list[np.ndarray]:
            found = session.run(dict(zip(session.inputs, batch.values(), strict=True)))
            return [np.asarray(found[name]) for name in names]

        return run

    return Side(
        label=label,
        runner=session.target,
        inputs=session.inputs,
        outputs=session.outputs,
        values=tuple(Value(name, "", "", (), "", "", True) for name in session.outputs),
        sizes=lambda batch: {},
        open=open_values,
        in_order=True,
    )
