"""Builds an engine with full TensorRT on this machine, strongly typed, for its GPU.

Not run where this was written, for want of a GPU and of the library; it makes the calls that the
TensorRT-RTX compiler makes, in the API that both share.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fuseq.errors import TargetError
from fuseq.model import save
from fuseq.targets.base import ShapeProfile
from fuseq.targets.engine_runtime.runner import import_tensorrt


def build_plan(model: ir.Model, profile: ShapeProfile) -> bytes:
    """Serialized engine of ``model`` for the shapes of ``profile``.

    Raises:
        MissingExtraError: TensorRT is not installed.
        TargetError: The parser or the builder refused the model.
    """
    trt = import_tensorrt("tensorrt")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    with tempfile.TemporaryDirectory(prefix="fuseq-trt-") as folder:
        file = Path(folder) / "model.onnx"
        save(model.clone(), file)
        if not parser.parse_from_file(str(file)):
            words = str(parser.get_error(0).desc()) if parser.num_errors else "no reason given"
            raise TargetError(f"TensorRT's parser refused the model: {words}")
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        _add_profile(builder, config, network, profile)
        serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise TargetError("TensorRT did not build the engine; its log says why.")
    return bytes(serialized)


def _add_profile(builder: Any, config: Any, network: Any, profile: ShapeProfile) -> None:
    optimization = builder.create_optimization_profile()
    inputs = [network.get_input(number) for number in range(network.num_inputs)]
    dynamic = [tensor for tensor in inputs if -1 in tuple(tensor.shape)]
    for tensor in dynamic:
        usual = profile.optimum[tensor.name]
        least = (profile.minimum or profile.optimum)[tensor.name]
        most = (profile.maximum or profile.optimum)[tensor.name]
        optimization.set_shape(tensor.name, least, usual, most)
    if dynamic:
        config.add_optimization_profile(optimization)
