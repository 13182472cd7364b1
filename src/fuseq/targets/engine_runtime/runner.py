"""Opens a serialized engine and runs, times and profiles it.

Not run where this was written, for want of a GPU: calls and names were checked against the bindings
of TensorRT-RTX 1.7.1 and of CUDA 13, results were not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fuseq.errors import MissingExtraError, TargetError
from fuseq.targets.engine_runtime.cuda import gpu_missing
from fuseq.targets.engine_runtime.lane import Lane
from fuseq.targets.tensorrt_rtx.compiler import import_compiler


def import_tensorrt(kind: str) -> Any:
    """The bindings that load engines of ``kind``: ``tensorrt`` or ``tensorrt-rtx``.

    Raises:
        MissingExtraError: They are not installed.
    """
    if kind == "tensorrt-rtx":
        return import_compiler()
    try:
        import tensorrt  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("TensorRT", "trt") from error
    return tensorrt


def runtime_missing(kind: str) -> str | None:
    """None when engines of ``kind`` can run here, else the sentence that says what is missing."""
    missing = gpu_missing()
    if missing is not None:
        return missing
    try:
        import_tensorrt(kind)
    except MissingExtraError as error:
        return str(error)
    return None


class EngineRunner:
    """An engine on the GPU, ready to run; use :func:`open_engine`.

    Attributes:
        inputs: Names in the engine's order.
        outputs: Names in the engine's order.
    """

    def __init__(self, trt: Any, engine: Any, lanes: list[Lane]) -> None:
        self._trt, self._engine, self._lanes = trt, engine, lanes
        buffers = lanes[0].buffers.values()
        self.inputs = tuple(buffer.name for buffer in buffers if buffer.is_input)
        self.outputs = tuple(buffer.name for buffer in buffers if not buffer.is_input)

    def upload(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Copy inputs to the GPU, for every stream.

        Raises:
            TargetError: An input is missing, unknown or of another shape.
        """
        if set(feeds) != set(self.inputs):
            raise TargetError(
                f"the engine's inputs are {sorted(self.inputs)}, the feeds name {sorted(feeds)}; "
                "give exactly the engine's inputs."
            )
        for lane in self._lanes:
            for name, array in feeds.items():
                lane.upload(name, array)

    def example_feeds(self) -> dict[str, np.ndarray]:
        """Inputs to time with: floats uniform in [0, 1), zeros for other types."""
        random = np.random.default_rng(0)
        buffers = [self._lanes[0].buffers[name] for name in self.inputs]
        return {
            b.name: (random.random(b.shape) if b.dtype.kind not in "iub" else np.zeros(b.shape))
            .astype(b.dtype)
            for b in buffers
        }  # fmt: skip

    def run(self) -> float:
        """One inference on every stream; the longest one's time on the GPU, milliseconds."""
        for lane in self._lanes:
            lane.launch()
        return max(lane.wait() for lane in self._lanes)

    def download(self) -> dict[str, np.ndarray]:
        """Outputs of the last run, by name."""
        return {name: self._lanes[0].download(name) for name in self.outputs}

    def layer_times_us(self, feeds: Mapping[str, np.ndarray], runs: int) -> dict[str, float]:
        """Average time of each layer, microseconds, by TensorRT's profiler; no CUDA graph.

        Raises:
            TargetError: The engine could not run.
        """
        profiler = _profiler(self._trt)
        context = self._engine.create_execution_context()
        context.profiler = profiler
        context.enqueue_emits_profile = True
        lane = Lane(self._trt, self._engine, context, self._shapes())
        try:
            for name, array in feeds.items():
                lane.upload(name, array)
            for _ in range(runs):
                lane.launch()
                lane.wait()
        finally:
            lane.close()
        return {name: sum(times) * 1e3 / runs for name, times in profiler.times_ms.items()}

    def layer_information(self) -> str:
        """The engine's layers as JSON, as ``trtexec --exportLayerInfo`` writes them."""
        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self._lanes[0].buffers[name].shape for name in self.inputs}


@contextlib.contextmanager
def open_engine(
    plan: bytes,
    kind: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    cuda_graph: bool = False,
    streams: int = 1,
) -> Iterator[EngineRunner]:
    """Load an engine onto the GPU; its buffers are given back at the end.

    Args:
        plan: The serialized engine.
        kind: ``tensorrt`` or ``tensorrt-rtx``.
        shapes: Shape by input name; an input that is not named has its usual shape (the optimum of
            the engine's first profile).
        cuda_graph: Launch the whole engine as one CUDA graph.
        streams: Inferences at a time, each with its own buffers.

    Raises:
        MissingExtraError: TensorRT or CUDA's bindings are not installed.
        TargetError: There is no GPU, or TensorRT refused the engine.
    """
    missing = gpu_missing()
    if missing is not None:
        raise TargetError(f"an engine runs on a GPU, and there is {missing}.")
    trt = import_tensorrt(kind)
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise TargetError(
            f"{kind} did not load the engine: it was built for another GPU or another version."
        )
    native_graph = cuda_graph and kind == "tensorrt-rtx"
    chosen = {**_usual_shapes(trt, engine), **(shapes or {})}
    lanes: list[Lane] = []
    try:
        for _ in range(streams):
            context = _context(trt, engine, native_graph)
            lanes.append(Lane(trt, engine, context, chosen))
            if cuda_graph and not native_graph:
                lanes[-1].capture()
        yield EngineRunner(trt, engine, lanes)
    finally:
        for lane in lanes:
            lane.close()


def _context(trt: Any, engine: Any, native_graph: bool) -> Any:
    """TensorRT-RTX captures graphs itself (its documentation, "Working with RTX CUDA Graphs")."""
    if not native_graph:
        return engine.create_execution_context()
    config = engine.create_runtime_config()
    config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    return engine.create_execution_context(config)


def _usual_shapes(trt: Any, engine: Any) -> dict[str, tuple[int, ...]]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    shapes = {}
    for name in names:
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            shape = tuple(engine.get_tensor_shape(name))
            if -1 in shape:
                shape = tuple(engine.get_tensor_profile_shape(name, 0)[1])
            shapes[name] = shape
    return shapes


def _profiler(trt: Any) -> Any:
    class Collecting(trt.IProfiler):  # type: ignore[misc]
        """Keeps the times of every layer; TensorRT requires a subclass."""

        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times_ms: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times_ms.setdefault(layer_name, []).append(ms)

    return Collecting()
