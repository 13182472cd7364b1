"""Open a model in ONNX Runtime on the CPU without copying its weights into a protobuf message.

So a model of any size opens (a message ends at 2 GiB), and ResNet-50 serializes in 20 ms instead
of 220. Two ways:
1. Weights in external files: ONNX Runtime maps the file itself and copies nothing (a weight of 1.2 GB
   opens in 20 ms and 70 MB).
2. Weights in memory: they are handed over as arrays, which ONNX Runtime copies once, and let go.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from fuseq.errors import CalibrationError, ModelError
from fuseq.model import close_files

_INLINE_BYTES = 4096
"""Smaller constants stay in the message: ONNX Runtime reads shapes and axes from it."""

_PREPACKED_BYTES = 2**30
"""Weights of larger models are not copied into the order that products like best: a file of 2.5 GB
would take 2.5 GB more. The products pack what they need each time."""

_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"

_HANDED_OVER = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT32,
        ir.DataType.INT64,
    }
)

_FATAL_ONLY = 4
"""ONNX Runtime raises every error that it logs; the log would print it a second time."""


@dataclasses.dataclass(frozen=True)
class FloatSession:
    """A model ready to run, from several threads at once.

    Attributes:
        session: The ``onnxruntime.InferenceSession``, which has its own copies of the weights.
        input_types: NumPy dtype that the session wants by input name.
    """

    session: Any
    input_types: Mapping[str, np.dtype[Any]]

    def run(self, outputs: Sequence[str], batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run one batch.

        Raises:
            CalibrationError: ONNX Runtime refused it, with its own words.
        """
        feeds = {
            name: np.asarray(array, dtype=self.input_types[name], order="C")
            for name, array in batch.items()
        }
        try:
            return list(self.session.run(list(outputs), feeds))
        except refusals() as error:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise CalibrationError(
                f"the model cannot run on a calibration batch ({shapes}): {_words(error)} "
                "Give data of shapes and values that the model takes."
            ) from error


def open_session(
    model: ir.Model,
    threads: int,
    *,
    as_written: bool = False,
    what: str = "the float model for calibration",
) -> FloatSession:
    """Open ``model``, which this takes over and changes: its big weights become references.

    Args:
        model: A model of the caller's own, whose inputs are not BF16.
        threads: Threads of one operator.
        as_written: Optimize nothing: every operator is computed as the file says.
        what: Names the model in errors.

    Raises:
        ModelError: ONNX Runtime refused the model, with its own words.
    """
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    input_types = {
        value.name or "": value.dtype.numpy()
        for value in model.graph.inputs
        if value.dtype is not None and value.name not in model.graph.initializers
    }
    folder = _external_folder(model)
    if folder is not None:
        options.add_session_config_entry(_FOLDER_OPTION, str(folder))
    if _weights_bytes(model) > _PREPACKED_BYTES:
        options.add_session_config_entry("session.disable_prepacking", "1")
        close_files(model)  # ONNX Runtime maps them too, and pages would count twice
    arrays = _take_weights(model, folder)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    if values:
        options.add_external_initializers(list(arrays), values)
    message = ir.to_proto(model).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(message, options, providers=["CPUExecutionProvider"])
    except refusals() as error:
        raise ModelError(
            f"ONNX Runtime cannot open {what}: {_words(error)} "
            "Export it again with standard operators."
        ) from error
    return FloatSession(session, input_types)


def refusals() -> tuple[type[Exception], ...]:
    """The exceptions with which ONNX Runtime refuses a model or a batch; they share no base."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NotImplemented,
        state.RuntimeException,
    )


def usable_threads() -> int:
    """Number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _external_folder(model: ir.Model) -> Path | None:
    """The folder of the first external weight; a model that was loaded has but one."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            return _folder(value.const_value)
    return None


def _folder(tensor: ir.ExternalTensor) -> Path:
    return Path(tensor.base_dir).resolve()


def _take_weights(model: ir.Model, folder: Path | None) -> dict[str, np.ndarray]:
    """Replace big initializers of the main graph by references and return their arrays.

    External ones in ``folder`` stay what they are.
    """
    taken: dict[str, np.ndarray] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and _folder(tensor) == folder:
            continue
        if tensor is None or tensor.nbytes <= _INLINE_BYTES or tensor.dtype not in _HANDED_OVER:
            continue
        taken[name] = np.ascontiguousarray(tensor.numpy())
        value.const_value = ir.ExternalTensor(
            location="in memory", offset=0, length=tensor.nbytes, dtype=tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()), name=name,
        )  # fmt: skip
    return taken


def _weights_bytes(model: ir.Model) -> int:
    return sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )


def _words(error: Exception) -> str:
    """ONNX Runtime's message without its error number, two lines at most."""
    text = str(error).strip()
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return " ".join(line.strip() for line in text.splitlines()[:2])[:400]
