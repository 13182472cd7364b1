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

import onnx_ir as ir

from fuseq.errors import ModelError, OptionError
from fuseq.targets.base import ShapeProfile

_PROTOBUF_LIMIT_BYTES = 2**31 - 2**24
"""A protobuf message ends at 2 GiB; 16 MiB are kept for the graph itself."""

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
    _check_external_data(model, file)
    return model


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
    return ShapeProfile({spec.name: _static(spec, batch, given) for spec in input_specs(model)})


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


def _check_external_data(model: ir.Model, file: Path) -> None:
    folder = file.parent.resolve()
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
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
