"""Writes Triton's ``config.pbtxt``, the text form of its protobuf message ``ModelConfig``.

Fields and rules: triton-inference-server/common, protobuf/model_config.proto, and the documentation
page "Model Configuration". Where requests are batched, the batch axis is left out of ``dims``, and
``dims`` may not be empty: an input ``[N]`` is declared ``dims: [ 1 ]`` and reshaped to ``[ ]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from fuseq.errors import ModelError
from fuseq.serving.model_io import ModelIo, Port

_TYPES = {
    ir.DataType.BOOL: "TYPE_BOOL",
    ir.DataType.UINT8: "TYPE_UINT8",
    ir.DataType.UINT16: "TYPE_UINT16",
    ir.DataType.UINT32: "TYPE_UINT32",
    ir.DataType.UINT64: "TYPE_UINT64",
    ir.DataType.INT8: "TYPE_INT8",
    ir.DataType.INT16: "TYPE_INT16",
    ir.DataType.INT32: "TYPE_INT32",
    ir.DataType.INT64: "TYPE_INT64",
    ir.DataType.FLOAT16: "TYPE_FP16",
    ir.DataType.BFLOAT16: "TYPE_BF16",
    ir.DataType.FLOAT: "TYPE_FP32",
    ir.DataType.DOUBLE: "TYPE_FP64",
    ir.DataType.STRING: "TYPE_STRING",
}


@dataclasses.dataclass(frozen=True)
class Batching:
    """How requests are joined.

    Attributes:
        maximum: Largest batch; 0: requests are not joined and carry every axis.
        preferred: Batch sizes that the server should rather form.
        delay_us: How long a request may wait for others, microseconds.
    """

    maximum: int = 0
    preferred: tuple[int, ...] = ()
    delay_us: int = 100


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """What a ``config.pbtxt`` says.

    Attributes:
        name: The model's folder.
        backend: ``tensorrt`` or ``onnxruntime``.
        io: Inputs and outputs.
        batching: How requests are joined.
        instances: Copies that run at the same time on each device.
        on_gpu: On each GPU, else on the CPU.
    """

    name: str
    backend: str
    io: ModelIo
    batching: Batching = dataclasses.field(default_factory=Batching)
    instances: int = 1
    on_gpu: bool = True


FILE_NAMES = {"tensorrt": "model.plan", "onnxruntime": "model.onnx"}
"""What each backend loads from a version's folder."""


def config_text(served: ServedModel) -> str:
    """The file's text.

    Raises:
        ModelError: An input or output has a type that Triton does not know.
    """
    batched = served.batching.maximum > 0
    lines = [
        f"name: {_quoted(served.name)}",
        f"backend: {_quoted(served.backend)}",
        f"default_model_filename: {_quoted(FILE_NAMES[served.backend])}",
        f"max_batch_size: {served.batching.maximum}",
    ]
    for word, ports in (("input", served.io.inputs), ("output", served.io.outputs)):
        for port in ports:
            lines += _port_lines(word, port, batched)
    lines += [
        "instance_group [",
        "  {",
        f"    count: {served.instances}",
        f"    kind: {'KIND_GPU' if served.on_gpu else 'KIND_CPU'}",
        "  }",
        "]",
    ]
    if batched:
        lines += _batching_lines(served.batching)
    return "\n".join(lines) + "\n"


def _port_lines(word: str, port: Port, batched: bool) -> Iterator[str]:
    kind = _TYPES.get(port.dtype)
    if kind is None:
        raise ModelError(
            f"{word} {port.name!r} has type {port.dtype.name}, which Triton does not know; export "
            "the model with float or integer inputs and outputs."
        )
    dims = port.shape[1:] if batched else port.shape
    yield f"{word} ["
    yield "  {"
    yield f"    name: {_quoted(port.name)}"
    yield f"    data_type: {kind}"
    if dims:
        yield f"    dims: {_numbers(dims)}"
    else:
        yield "    dims: [ 1 ]"
        yield "    reshape: { shape: [ ] }"
    yield "  }"
    yield "]"


def _batching_lines(batching: Batching) -> Iterator[str]:
    yield "dynamic_batching {"
    if batching.preferred:
        yield f"  preferred_batch_size: {_numbers(batching.preferred)}"
    yield f"  max_queue_delay_microseconds: {batching.delay_us}"
    yield "}"


def _numbers(values: Sequence[int]) -> str:
    return f"[ {', '.join(map(str, values))} ]"


def _quoted(text: str) -> str:
    """A protobuf text-format string: printable ASCII as it is, every other byte in octal."""
    plain = {ord("\\"), ord('"')}
    body = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in plain else f"\\{byte:03o}"
        for byte in text.encode("utf-8")
    )
    return f'"{body}"'
