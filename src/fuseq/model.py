"""Load and save ONNX models safely, and say what their inputs are.

A model is data from a stranger: external data must lie in the model's own folder and be as long as
its header says, and nothing is executed. Files are written beside the target and renamed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from fuseq.arrays_of_file import hold_arrays
from fuseq.errors import ModelError, OptionError
from fuseq.targets.base import ShapeProfile

_LARGEST_DIM = 2**31 - 1  # of TensorRT and of ONNX Runtime's kernels, which count in 32 bits
_PROTOBUF_LIMIT_BYTES = 2**31 - 2**24
"""A protobuf message ends at 2 GiB; 16 MiB are kept for the graph itself."""

_WEIGHT_FILES = "fuseq_weight_files"
_HELD_BYTES = 1024
"""External weights up to this size are read at once: axes and shapes are among them, which ONNX
Runtime and onnx's shape inference do not read from external files."""

FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """One model input: ``shape`` holds an int, or the symbol's name, per axis; None: rank unknown."""

    name: str
    dtype: ir.DataType
    shape: tuple[int | str, ...] | None


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read an ONNX file; weights in external files stay on disk until they are needed.

    Raises:
        ModelError: Not a file, not ONNX, truncated, or external data that is missing, too short,
            or outside the model's folder.
    """
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ModelError(f"{file}: {what}; give the path of an ONNX file.")
    try:
        model = ir.load(file)
    except Exception as error:
        raise ModelError(
            f"{file}: not a readable ONNX file ({_first_line(error)}); it may be truncated or of "
            "another type. Export it again."
        ) from error
    if not model.graph.outputs or not model.opset_imports:
        raise ModelError(f"{file}: not an ONNX model: the graph has no outputs or no opset.")
    _check_words(model, file)
    _check_external_data(model, file)
    _check_sizes(model, file)
    _hold_small_weights(model)
    hold_arrays(model)
    _open_unknown_dims(model)
    return model


def weight_files(model: ir.Model) -> dict[str, Path]:
    """Files that hold weights of a model of :func:`load`, by the name that the model gives them."""
    found: dict[str, Path] = model.meta.get(_WEIGHT_FILES, {})
    return found


def close_files(model: ir.Model) -> None:
    """Give back the pages of external weights; they are mapped again when they are read again.

    A file of which something still holds an array stays mapped.
    """
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            with contextlib.suppress(BufferError):
                value.const_value.release()


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write ``model`` whole or not at all; weights over 2 GiB go to ``<name>.data`` beside it.

    Raises:
        ModelError: The place cannot be written (folder missing, no permission, disk full).
    """
    file = Path(path)
    weights_bytes = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    with whole_file(file) as beside:
        if weights_bytes <= _PROTOBUF_LIMIT_BYTES:
            ir.save(ir.external_data.load_to_model(model), beside)
            return
        data_name = file.name + ".data"
        if (file.parent / data_name).exists() and not file.exists():
            raise ModelError(
                f"{file}: its weights would replace {data_name}, which is there and belongs to "
                "another model; choose another name or remove that file."
            )
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".fuseq-") as folder:
            ir.save(model, Path(folder) / file.name, external_data=data_name)
            os.replace(Path(folder) / data_name, file.parent / data_name)
            os.replace(Path(folder) / file.name, beside)


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Give a path beside ``file`` to write to; it replaces ``file`` only when the block succeeds.

    Raises:
        ModelError: The folder is missing or not writable, or the disk is full.
    """
    if file.exists() and not file.is_file():
        raise ModelError(f"{file}: is not a regular file; give the path of a file to write.")
    beside: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".fuseq-", suffix=file.suffix)
        os.close(handle)
        beside = Path(name)
        yield beside
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, file)
    except OSError as error:
        raise ModelError(
            f"{file}: cannot be written ({error.strerror or error}); choose another place or "
            "free some room. Nothing was written."
        ) from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """List the inputs that are not initializers, in order."""
    specs = []
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        shape = None
        if value.shape is not None:
            shape = tuple(
                dim if isinstance(dim, int) else (dim.value or f"{value.name}_{axis}")
                for axis, dim in enumerate(value.shape)
            )
        specs.append(InputSpec(value.name or "", value.dtype or ir.DataType.UNDEFINED, shape))
    return tuple(specs)


def profile_for(
    model: ir.Model, batch: int = 1, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> ShapeProfile:
    """Choose one static shape per input: ``shapes`` where given, else axis 0 is ``batch``.

    Raises:
        OptionError: An input's shape is needed and not given, or does not fit the model.
    """
    given = dict(shapes or {})
    known = {spec.name for spec in input_specs(model)}
    for name in given:
        if name not in known:
            raise OptionError(
                f"--shape names {name!r}, which is not an input; inputs are {sorted(known)}."
            )
    chosen = {spec.name: _static(spec, batch, given) for spec in input_specs(model)}
    for name, shape in chosen.items():
        if any(dim > _LARGEST_DIM for dim in shape):
            raise OptionError(
                f"input {name!r} of shape {list(shape)} is too large: no axis may exceed "
                f"{_LARGEST_DIM}; give a smaller --batch or --shape."
            )
    return ShapeProfile(chosen)


def profile_between(
    model: ir.Model,
    batch: int,
    shapes: Mapping[str, tuple[int, ...]],
    minima: Mapping[str, tuple[int, ...]],
    maxima: Mapping[str, tuple[int, ...]],
) -> ShapeProfile:
    """Choose smallest, usual and largest shape per input; an input named nowhere has one shape.

    Raises:
        OptionError: A shape does not fit the model, or the three are not in order.
    """
    optimum = profile_for(model, batch, shapes).optimum
    minimum = profile_for(model, batch, {**optimum, **minima}).optimum
    maximum = profile_for(model, batch, {**optimum, **maxima}).optimum
    for name, usual in optimum.items():
        if not all(
            low <= mid <= high
            for low, mid, high in zip(minimum[name], usual, maximum[name], strict=True)
        ):
            raise OptionError(
                f"shapes of {name!r} are not in order: --min-shape {list(minimum[name])}, "
                f"--shape {list(usual)}, --max-shape {list(maximum[name])}."
            )
    return ShapeProfile(optimum, minimum, maximum)


def _static(spec: InputSpec, batch: int, given: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    wanted = given.get(spec.name)
    if spec.shape is None:
        if wanted is None:
            raise OptionError(
                f"input {spec.name!r} has no shape in the file; give --shape {spec.name}:N,C,H,W."
            )
        return wanted
    if wanted is not None:
        fits = len(wanted) == len(spec.shape) and all(
            isinstance(dim, str) or dim == want
            for dim, want in zip(spec.shape, wanted, strict=True)
        )
        if not fits:
            raise OptionError(
                f"--shape {spec.name}:{','.join(map(str, wanted))} does not fit the model's "
                f"{list(spec.shape)}; only named dimensions can be chosen."
            )
        return wanted
    static = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            static.append(dim)
        elif axis == 0:
            static.append(batch)
        else:
            raise OptionError(
                f"input {spec.name!r} has the dynamic dimension {dim!r} on axis {axis}; "
                f"give --shape {spec.name}:" + ",".join(map(str, spec.shape)) + " with numbers."
            )
    return tuple(static)


def _hold_small_weights(model: ir.Model) -> None:
    """Read small external weights into memory, see ``_HELD_BYTES``; note all files of weights."""
    files: dict[str, Path] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            files[os.fspath(tensor.location)] = Path(tensor.path)
            if tensor.nbytes <= _HELD_BYTES:
                held = ir.Tensor(
                    np.array(tensor.numpy()),
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    name=tensor.name,
                )
                value.const_value = held
    model.meta[_WEIGHT_FILES] = files


def _open_unknown_dims(model: ir.Model) -> None:
    """Make of -1 and ``?``, as which Paddle's exporter writes sizes that it does not know, open ones.

    As a number -1 could not be chosen with ``--shape``; as one name ``?`` would say that all sizes so
    called are equal.
    """
    for graph in model.graphs():
        values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
        for value in values:
            if value.shape is not None and any(map(_is_unknown, value.shape)):
                value.shape = ir.Shape([None if _is_unknown(d) else d for d in value.shape])


def _is_unknown(dim: int | ir.SymbolicDim) -> bool:
    return dim < 0 if isinstance(dim, int) else dim.value == "?"


def _check_external_data(model: ir.Model, file: Path) -> None:
    folder = file.parent.resolve()
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            if "\0" in str(tensor.location):
                raise ModelError(f"{file}: the data file's name of {name!r} has a zero byte in it.")
            where = Path(tensor.path)
            resolved = where.resolve()
            if not resolved.is_relative_to(folder):
                raise ModelError(
                    f"{file}: weights of {name!r} point outside the model's folder "
                    f"({tensor.location}); put the data file beside the model."
                )
            if not resolved.is_file():
                raise ModelError(
                    f"{file}: external data file {where.name!r} of {name!r} is missing; copy it "
                    "beside the model."
                )
            if resolved.stat().st_nlink > 1:
                raise ModelError(
                    f"{file}: external data file {where.name!r} has several hard links, which is "
                    "refused because another path could change it; copy the file."
                )
            need = (tensor.offset or 0) + math.ceil(
                math.prod(tensor.shape.numpy()) * tensor.dtype.itemsize
            )
            if resolved.stat().st_size < need:
                raise ModelError(
                    f"{file}: external data file {where.name!r} is truncated: {name!r} needs "
                    f"{need} bytes, the file has {resolved.stat().st_size}. Export or copy it again."
                )


def _check_words(model: ir.Model, file: Path) -> None:
    """Refuse operators whose name no schema could have, and inputs without a type."""
    for node in model.graph.all_nodes():
        for word in (node.op_type, node.domain):
            if not isinstance(word, str) or not word.isascii() or not word.isprintable():
                raise ModelError(
                    f"{file}: node {node.name!r} has the operator name {word!r}, which no operator "
                    "has; the file is damaged. Export it again."
                )
    for value in model.graph.inputs:
        if value.dtype in (None, ir.DataType.UNDEFINED) and isinstance(value.type, ir.TensorType):
            raise ModelError(f"{file}: input {value.name!r} has no element type; export it again.")


def _check_sizes(model: ir.Model, file: Path) -> None:
    """Refuse weights whose declared shape does not fit the bytes that are stored for them."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            _check_size(value.const_value, f"weights of {name!r}", file)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    what = f"attribute {attribute.name!r} of node {node.name!r}"
                    _check_size(attribute.as_tensor(), what, file)


def _check_size(tensor: ir.TensorProtocol | None, what: str, file: Path) -> None:
    proto = getattr(tensor, "raw", None)
    if isinstance(tensor, ir.StringTensor) and len(tensor.raw) != tensor.size:
        raise ModelError(
            f"{file}: {what} are declared as {tensor.size} texts; the file stores {len(tensor.raw)}. "
            "Export it again."
        )
    if not isinstance(proto, onnx.TensorProto):
        return
    if proto.data_type == onnx.TensorProto.UNDEFINED or any(size < 0 for size in proto.dims):
        raise ModelError(f"{file}: {what} have no type or a negative size; export it again.")
    elements = math.prod(proto.dims)
    if proto.HasField("raw_data"):
        need = math.ceil(elements * ir.DataType(proto.data_type).itemsize)
        found, unit = len(proto.raw_data), "bytes"
    else:
        fields = (proto.float_data, proto.int32_data, proto.int64_data, proto.double_data,
                  proto.uint64_data)  # fmt: skip
        need, found, unit = _stored_numbers(proto, elements), max(map(len, fields)), "numbers"
        own = getattr(proto, onnx.helper.tensor_dtype_to_field(proto.data_type), ())
        found = len(own) if len(own) == found else -1  # numbers of another type than declared
    if found != need:
        raise ModelError(
            f"{file}: {what} are declared as {list(proto.dims)}, which takes {need} {unit}; the file "
            f"stores {found}. Export it again."
        )


def _stored_numbers(proto: onnx.TensorProto, elements: int) -> int:
    """Entries of the typed fields (onnx.proto, TensorProto): complex take two, 4-bit types share one."""
    if proto.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return 2 * elements
    bits = 8 * ir.DataType(proto.data_type).itemsize
    return math.ceil(elements * bits / 8) if bits < 8 else elements


def _first_line(error: BaseException) -> str:
    """What the innermost error says: the ones around it only say where they were."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
