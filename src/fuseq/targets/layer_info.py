"""Read what trtexec writes about a full TensorRT engine, into an Engine of Kernels.

``trtexec --exportLayerInfo=graph.json --exportProfile=profile.json --profilingVerbosity=detailed
--separateProfileRun`` writes the layer list and the time of each layer. The files are data from a
stranger: bounded in size, every field checked, nothing executed.

Cases:
1. ``Bindings: ["x", ...]`` (TensorRT 8, 10) or ``I/O Tensors: [{"Name": "x"}, ...]`` (11).
2. Layers are objects, or bare names when the engine was built without detailed verbosity.
3. ``Outputs: []`` or no ``Outputs`` at all (TrainStation and other synchronization layers).
4. ``Metadata`` with ``[ONNX Layer: name]`` entries, or none: then the layer's own name, which joins
   the fused layers with " + ", gives the nodes.
5. A layer that launches nothing (``NoOp``) is left out, and its output stands for its input.
6. An input that no layer writes and that is no binding is a constant.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

from fuseq.errors import TargetError
from fuseq.targets.base import Engine, Kernel, TensorInfo
from fuseq.targets.layer_formats import dtype_of, stored_bytes
from fuseq.targets.layer_kinds import (
    NO_KERNEL,
    compute_dtype,
    flops,
    kernel_type,
    weights_bytes,
)

_LIMIT_BYTES = 64 * 2**20
_LARGEST = 1e30
"""A number of a layer list beyond it is damage; it also keeps sums finite."""
_LIMIT_ELEMENTS = 2**48
_ONNX_LAYER = re.compile(r"\[ONNX Layer: ([^\]\x1e\x1f]*)\]")
_REFORMATTING = re.compile(r"^Reformatting CopyNode for (?:Input|Output) Tensor \d+ to ")

Record = Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class ProfileMetadata:
    """Totals of a timed run, as the ``profile.metadata`` file of TREx keeps them.

    Attributes:
        device: Name of the GPU, "" when the file does not say.
        capability: Compute capability, 80 means 8.0; 0 when unknown.
        gpu_ms: Median GPU compute time of one inference, milliseconds.
    """

    device: str
    capability: int
    gpu_ms: float


def read_engine(layers_file: Path, profile_file: Path | None = None) -> Engine:
    """Read a layer list, and the measured time of each layer where a profile is given.

    Raises:
        TargetError: A file is missing, too large, not JSON, or a field has another type than
            trtexec writes.
    """
    document = _object(read_json(layers_file), f"{layers_file}: the document")
    if "Layers" not in document:
        raise TargetError(
            f'{layers_file}: has no "Layers"; give the file of trtexec --exportLayerInfo.'
        )
    records = _list(document["Layers"], f"{layers_file}: Layers")
    times_us = read_profile(profile_file) if profile_file is not None else {}
    bindings = _binding_names(document, layers_file)
    kernels, skipped = _kernels(records, bindings, times_us, layers_file)
    notes = []
    if skipped:
        notes.append(f"{skipped} layers launch nothing and are left out")
    if any(isinstance(record, str) for record in records):
        notes.append(
            "the engine was built without --profilingVerbosity=detailed: shapes, types and bytes "
            "are unknown"
        )
    return Engine(target="tensorrt", kernels=kernels, notes=tuple(notes))


def read_profile(file: Path) -> dict[str, float]:
    """Average time of each layer by name, microseconds.

    Raises:
        TargetError: As ``read_engine``.
    """
    rows = _list(read_json(file), f"{file}: the document")
    times_us: dict[str, float] = {}
    for index, row in enumerate(rows):
        where = f"{file}: entry {index}"
        record = _object(row, where)
        if "name" not in record:  # the first entry is {"count": iterations}
            continue
        name = _text(record, "name", where)
        times_us[name] = times_us.get(name, 0.0) + 1e3 * record_number(record, "averageMs", where)
    return times_us


def read_profile_metadata(file: Path) -> ProfileMetadata:
    """Read the totals that TREx writes beside a profile.

    ``GPU Compute Time`` lists minimum, maximum, mean, median, then percentiles, milliseconds.

    Raises:
        TargetError: As ``read_engine``.
    """
    document = _object(read_json(file), f"{file}: the document")
    summary = _object(document.get("performance_summary"), f"{file}: performance_summary")
    times = _list(summary.get("GPU Compute Time"), f"{file}: GPU Compute Time")
    if len(times) < 4:
        raise TargetError(
            f"{file}: GPU Compute Time has {len(times)} numbers; 4 or more are needed."
        )
    device = _object(document.get("device_information", {}), f"{file}: device_information")
    capability = device.get("Compute Capability", 0)
    return ProfileMetadata(
        device=str(device.get("Selected Device", "")),
        capability=round(float(capability) * 10) if isinstance(capability, (int, float)) else 0,
        gpu_ms=record_number({"median": times[3]}, "median", f"{file}: GPU Compute Time"),
    )


def _kernels(
    records: list[object], bindings: frozenset[str], times_us: Mapping[str, float], file: Path
) -> tuple[tuple[Kernel, ...], int]:
    layers = [_layer(record, f"{file}: layer {index}") for index, record in enumerate(records)]
    written = {tensor.name for layer in layers for tensor in layer.outputs}
    aliases: dict[str, str] = {}
    kernels = []
    for layer in layers:
        if layer.launches_nothing and not times_us.get(layer.name):
            if len(layer.inputs) == 1 and len(layer.outputs) == 1:  # case 5
                source = layer.inputs[0].name
                aliases[layer.outputs[0].name] = aliases.get(source, source)
            continue
        kernels.append(_kernel(layer, written | bindings, aliases, times_us))
    return tuple(kernels), len(layers) - len(kernels)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """One record of the list, its tensors read."""

    name: str
    type: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    fields: Record

    @property
    def launches_nothing(self) -> bool:
        return self.type.lower() in NO_KERNEL or self.name.startswith("[trainStation")


def _layer(record: object, where: str) -> _Layer:
    if isinstance(record, str):  # case 2
        return _Layer(record, "", (), (), {})
    fields = _object(record, where)
    return _Layer(
        name=_text(fields, "Name", where),
        type=_text(fields, "LayerType", where, default=""),
        inputs=_tensors(fields, "Inputs", where),
        outputs=_tensors(fields, "Outputs", where),
        fields=fields,
    )


def _kernel(
    layer: _Layer, known: set[str], aliases: Mapping[str, str], times_us: Mapping[str, float]
) -> Kernel:
    activations = tuple(tensor for tensor in layer.inputs if tensor.name in known)
    constants = tuple(tensor for tensor in layer.inputs if tensor.name not in known)  # case 6
    origin = layer.fields.get("Origin")
    kind = kernel_type(
        layer.type,
        layer.name,
        origin if isinstance(origin, str) else "",
        activations,
        layer.outputs,
    )
    tactic = layer.fields.get("TacticName")
    return Kernel(
        name=layer.name,
        type=kind,
        compiler_type=layer.type,
        inputs=tuple(
            dataclasses.replace(tensor, name=aliases.get(tensor.name, tensor.name))
            for tensor in activations
        ),
        outputs=layer.outputs,
        weights_bytes=weights_bytes(layer.fields) + sum(tensor.nbytes for tensor in constants),
        flops=flops(layer.fields, kind, layer.inputs, layer.outputs),
        compute_dtype=compute_dtype(kind, tactic if isinstance(tactic, str) else "", activations),
        nodes=_nodes(layer),
        measured_us=times_us.get(layer.name),
    )


def _nodes(layer: _Layer) -> tuple[str, ...]:
    metadata = layer.fields.get("Metadata")
    if isinstance(metadata, str) and metadata:
        named = _ONNX_LAYER.findall(metadata)
        if named:
            return tuple(dict.fromkeys(named))
    return tuple(_REFORMATTING.sub("", layer.name).split(" + "))  # case 4


def _tensors(fields: Record, key: str, where: str) -> tuple[TensorInfo, ...]:
    records = fields.get(key)
    if records is None:  # case 3
        return ()
    return tuple(
        _tensor(record, f"{where}, {key}[{index}]")
        for index, record in enumerate(_list(records, f"{where}, {key}"))
    )


def _tensor(record: object, where: str) -> TensorInfo:
    fields = _object(record, where)
    shape = _shape(fields.get("Dimensions", []), f"{where}, Dimensions")
    layout = _text(fields, "Format/Datatype", where, default="")
    layout = layout or _text(fields, "Format", where, default="")
    word = fields.get("Datatype", fields.get("DataType", layout))
    dtype = dtype_of(word) if isinstance(word, str) else ""
    strides = None
    if isinstance(fields.get("Strides"), list):
        strides = _shape(fields["Strides"], f"{where}, Strides")
    nbytes = stored_bytes(shape, dtype, layout, strides)
    if nbytes > _LIMIT_ELEMENTS:
        raise TargetError(f"{where}: {list(shape)} is {nbytes} bytes, which no GPU holds.")
    return TensorInfo(_text(fields, "Name", where, default=""), shape, dtype, nbytes)


def _shape(value: object, where: str) -> tuple[int, ...]:
    sizes = _list(value, where)
    for size in sizes:
        if type(size) is not int or abs(size) > _LIMIT_ELEMENTS:
            raise TargetError(f"{where}: has {size!r}; whole numbers up to 2^48 are needed.")
    if len(sizes) > 16:
        raise TargetError(f"{where}: has {len(sizes)} axes; TensorRT has at most 8.")
    return tuple(size for size in sizes if type(size) is int)


def _binding_names(document: Record, file: Path) -> frozenset[str]:
    key = "I/O Tensors" if "I/O Tensors" in document else "Bindings"
    names = []
    for index, entry in enumerate(_list(document.get(key, []), f"{file}: {key}")):
        where = f"{file}: {key}[{index}]"
        names.append(
            entry if isinstance(entry, str) else _text(_object(entry, where), "Name", where)
        )
    return frozenset(names)


def read_json(file: Path) -> object:
    """Parse one of trtexec's files.

    Raises:
        TargetError: Missing, no regular file, larger than 64 MiB, or not JSON.
    """
    if file.exists() and not file.is_file():
        raise TargetError(f"{file}: is not a regular file; give a file that trtexec wrote.")
    try:
        size = file.stat().st_size
        if size > _LIMIT_BYTES:
            raise TargetError(f"{file}: is {size} bytes; layer files end at {_LIMIT_BYTES}.")
        # strict=False: TensorRT writes raw control characters between Metadata entries
        parsed: object = json.loads(file.read_text(encoding="utf-8"), strict=False)
    except OSError as error:
        raise TargetError(f"{file}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise TargetError(
            f"{file}: is not the JSON that trtexec writes ({error}); export it again."
        ) from error
    return parsed


def _object(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise TargetError(f"{where}: is {_kind(value)}; an object is needed.")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise TargetError(f"{where}: is {_kind(value)}; a list is needed.")
    return value


def _text(fields: Record, key: str, where: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str):
        raise TargetError(f"{where}: {key!r} is {_kind(value)}; text is needed.")
    return value


def record_number(fields: Record, key: str, where: str) -> float:
    """A finite number that is 0 or more.

    Raises:
        TargetError: Missing or anything else; ``where`` says which record of which file.
    """
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TargetError(f"{where}: {key!r} is {_kind(value)}; a number is needed.")
    if not 0 <= value <= _LARGEST:
        raise TargetError(
            f"{where}: {key!r} is {value!s:.24}; a number from 0 to {_LARGEST:g} is needed."
        )
    return float(value)


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
