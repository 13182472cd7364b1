"""Calls the TensorRT-RTX compiler, which builds for any supported GPU on a machine without one."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from fuseq.errors import MissingExtraError, TargetError
from fuseq.targets.base import ShapeProfile

CAPABILITIES = (75, 80, 86, 89, 120, 121)
"""Compute capabilities that TensorRT-RTX 1.7 builds for (its ``ComputeCapability`` enumeration)."""

_DRIVER_NOISE = re.compile(r"\[checkMacros|Error Code 1: Cuda Runtime")

_ONE_AT_A_TIME = threading.Lock()
"""The compiler builds one network at a time, and a logger made beside another one is ignored."""

_INLINE_BYTES = 1024
"""Initializers up to this size stay in the protobuf: the parser reads shapes and scalars there."""


@dataclasses.dataclass(frozen=True)
class Build:
    """A serialized engine and what the builder logged about it."""

    plan: bytes
    layers_text: str
    seconds: float
    warnings: tuple[str, ...]


def import_compiler() -> Any:
    """Import the bindings.

    Raises:
        MissingExtraError: The wheels are not installed.
    """
    try:
        import tensorrt_rtx_bindings as trt  # noqa: PLC0415
    except ImportError:
        try:
            import tensorrt_rtx as trt  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("TensorRT-RTX", "rtx") from error
    return trt


def build(model: ir.Model, profile: ShapeProfile, capability: int) -> Build:
    """Compile ``model``, strongly typed, for one compute capability.

    Raises:
        MissingExtraError: TensorRT-RTX is not installed.
        TargetError: The parser or the builder refused the model; the message has its own words.
    """
    trt = import_compiler()
    with _ONE_AT_A_TIME:
        return _build(trt, model, profile, capability)


def _build(trt: Any, model: ir.Model, profile: ShapeProfile, capability: int) -> Build:
    started = time.perf_counter()
    logger = _logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    keep_alive = _parse(trt, network, logger, model)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{capability}"), 0)
    _add_profile(builder, config, network, profile)
    serialized = builder.build_serialized_network(network, config)
    del keep_alive
    if serialized is None:
        raise TargetError(
            f"tensorrt-rtx:sm{capability} refused the model: {_reason(logger.errors)}"
        )
    return Build(
        plan=bytes(serialized),
        layers_text=logger.layers_text,
        seconds=time.perf_counter() - started,
        warnings=tuple(logger.warnings),
    )


def _logger(trt: Any) -> Any:
    class CollectingLogger(trt.ILogger):  # type: ignore[misc]
        """Keeps errors, warnings and the layer list; TensorRT requires a subclass."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []
            self.layers_text = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(message)
            elif message.startswith("Layers:"):
                self.layers_text = message

    return CollectingLogger()


def _parse(trt: Any, network: Any, logger: Any, model: ir.Model) -> Any:
    parser = trt.OnnxParser(network, logger)
    proto, weights = _without_weights(model)
    accepted = parser.load_model_proto(proto)
    if accepted:
        for name, array in weights.items():
            accepted = accepted and parser.load_initializer(name, array.ctypes.data, array.nbytes)
    if accepted:
        accepted = parser.parse_model_proto()
    if not accepted:
        errors = [_parser_error(parser.get_error(i)) for i in range(parser.num_errors)]
        raise TargetError(
            "TensorRT-RTX's parser refused the model: " + _reason(errors or logger.errors)
        )
    return parser, weights


def _parser_error(error: Any) -> str:
    node = error.node_name()
    where = f"node {node!r} ({error.node_operator()}): " if node else ""
    return where + str(error.desc())


def _without_weights(model: ir.Model) -> tuple[bytes, dict[str, np.ndarray]]:
    """Serialize the graph alone; the weights are handed over by address, so none is copied.

    For as long as that takes, ``model`` refers to its weights; a copy of a graph takes longer.
    """
    weights: dict[str, np.ndarray] = {}
    held: dict[ir.Value, ir.TensorProtocol] = {}
    try:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None:
                continue
            if tensor.nbytes > _INLINE_BYTES:
                weights[name] = raw_array(tensor)
            elif not isinstance(tensor, ir.ExternalTensor):
                continue
            held[value] = tensor
            value.const_value = _reference(tensor, name)
        return ir.to_proto(model).SerializeToString(), weights
    finally:
        for value, tensor in held.items():
            value.const_value = tensor


def _reference(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """A tensor without its values; a small one is read, as a message in memory has no files."""
    if tensor.nbytes <= _INLINE_BYTES:
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    return ir.ExternalTensor(
        "weights", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
    )


def raw_array(tensor: ir.TensorProtocol) -> np.ndarray:
    """Bytes of a tensor as ONNX stores them (4-bit types packed), contiguous."""
    if tensor.dtype.bitwidth < 8:
        return np.frombuffer(tensor.tobytes(), dtype=np.uint8)
    return np.ascontiguousarray(tensor.numpy())


def _add_profile(builder: Any, config: Any, network: Any, profile: ShapeProfile) -> None:
    optimization = builder.create_optimization_profile()
    dynamic = False
    for tensor in _inputs(network):
        if -1 not in tuple(tensor.shape):
            continue
        dynamic = True
        optimum = profile.optimum[tensor.name]
        minimum = (profile.minimum or profile.optimum)[tensor.name]
        maximum = (profile.maximum or profile.optimum)[tensor.name]
        optimization.set_shape(tensor.name, minimum, optimum, maximum)
    if dynamic:
        config.add_optimization_profile(optimization)


def _inputs(network: Any) -> Iterator[Any]:
    for number in range(network.num_inputs):
        yield network.get_input(number)


def _reason(errors: list[str]) -> str:
    """The compiler's own words; the first error is the cause.

    Without a GPU every error drags a complaint about the missing driver behind it; it is cut off.
    """
    for error in errors:
        text = " ".join(_DRIVER_NOISE.split(" ".join(error.split()))[0].split())
        if text:
            return text[:600]
    return "it gave no reason"
