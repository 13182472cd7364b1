"""One inference at a time of one engine: its context, stream, buffers, and CUDA graph."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from fuseq.errors import TargetError
from fuseq.targets.engine_runtime.cuda import call, import_runtime

DTYPES: Mapping[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP8": np.dtype(ml_dtypes.float8_e4m3fn),
    "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
"""NumPy's type of each member of TensorRT's ``DataType``."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One input or output on the GPU."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    address: int
    is_input: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; TensorRT's linear format has no padding."""
        return math.prod(self.shape) * self.dtype.itemsize


class Lane:
    """Owns a stream, two events, the buffers and perhaps a graph; :meth:`close` gives them back."""

    def __init__(
        self, trt: Any, engine: Any, context: Any, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._cuda = import_runtime()
        self._context = context
        self._graph: Any = None
        self._stream = call(self._cuda.cudaStreamCreate)
        self._begun = call(self._cuda.cudaEventCreate)
        self._ended = call(self._cuda.cudaEventCreate)
        self.buffers: dict[str, Buffer] = {}
        try:
            self._bind(trt, engine, shapes)
        except TargetError:
            self.close()
            raise

    def upload(self, name: str, array: np.ndarray) -> None:
        """Copy an input's values to the GPU; they are cast to the input's type."""
        buffer = self.buffers[name]
        ready = np.ascontiguousarray(array, dtype=buffer.dtype)
        if ready.shape != buffer.shape:
            raise TargetError(
                f"input {name!r} has shape {list(ready.shape)}, the engine's is set to "
                f"{list(buffer.shape)}; give that shape."
            )
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        call(self._cuda.cudaMemcpy, buffer.address, ready.ctypes.data, ready.nbytes, kind)

    def download(self, name: str) -> np.ndarray:
        """Copy an output's values from the GPU."""
        buffer = self.buffers[name]
        array = np.empty(buffer.shape, buffer.dtype)
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        call(self._cuda.cudaMemcpy, array.ctypes.data, buffer.address, array.nbytes, kind)
        return array

    def capture(self) -> None:
        """Record one inference as a CUDA graph; later launches replay it.

        TensorRT asks for one inference before, for work that cannot be captured (documentation,
        "CUDA Graphs").
        """
        self.launch()
        self.wait()
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call(self._cuda.cudaStreamBeginCapture, self._stream, mode)
        self._enqueue()
        graph = call(self._cuda.cudaStreamEndCapture, self._stream)
        self._graph = call(self._cuda.cudaGraphInstantiate, graph, 0)
        call(self._cuda.cudaGraphDestroy, graph)

    def launch(self) -> None:
        """Start one inference, with events before and behind it."""
        call(self._cuda.cudaEventRecord, self._begun, self._stream)
        if self._graph is None:
            self._enqueue()
        else:
            call(self._cuda.cudaGraphLaunch, self._graph, self._stream)
        call(self._cuda.cudaEventRecord, self._ended, self._stream)

    def wait(self) -> float:
        """Wait for the last launch; its time on the GPU, milliseconds."""
        call(self._cuda.cudaEventSynchronize, self._ended)
        return float(call(self._cuda.cudaEventElapsedTime, self._begun, self._ended))

    def close(self) -> None:
        """Give everything back."""
        for buffer in self.buffers.values():
            call(self._cuda.cudaFree, buffer.address)
        self.buffers = {}
        if self._graph is not None:
            call(self._cuda.cudaGraphExecDestroy, self._graph)
        for event in (self._begun, self._ended):
            call(self._cuda.cudaEventDestroy, event)
        call(self._cuda.cudaStreamDestroy, self._stream)

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(int(self._stream)):
            raise TargetError("TensorRT could not start the engine; its log says why.")

    def _bind(self, trt: Any, engine: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = {n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT}
        for name in names:
            if name in inputs and not self._context.set_input_shape(name, shapes[name]):
                raise TargetError(
                    f"the engine was not built for shape {list(shapes[name])} of {name!r}."
                )
        for name in names:
            shape = tuple(self._context.get_tensor_shape(name))
            if -1 in shape:
                raise TargetError(
                    f"the size of output {name!r} depends on data; fuseq cannot run it."
                )
            dtype = DTYPES[engine.get_tensor_dtype(name).name]
            size = max(math.prod(shape) * dtype.itemsize, 1)
            address = int(call(self._cuda.cudaMalloc, size))
            self.buffers[name] = Buffer(name, dtype, shape, address, name in inputs)
            self._context.set_tensor_address(name, address)
