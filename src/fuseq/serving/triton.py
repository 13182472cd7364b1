"""Writes a Triton model repository: ``REPO/<name>/config.pbtxt`` and ``REPO/<name>/1/model.*``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fuseq.errors import ModelError, OptionError
from fuseq.model import load, weight_files
from fuseq.serving.model_io import ModelIo, model_io
from fuseq.serving.triton_config import FILE_NAMES, Batching, ServedModel, config_text
from fuseq.targets.engine_files import engine_kind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = "1"


@dataclasses.dataclass(frozen=True)
class TritonOptions:
    """Options of ``fuseq triton``.

    Attributes:
        name: The model's folder in the repository; by default the file's name without its ending.
        onnx: ONNX file that an engine was built from, which tells its inputs and outputs.
        batch: Usual batch size, for a dynamic first axis; ``shapes`` goes before it.
        shapes: Usual shape by input name, as the engine was built.
        maxima: Largest shape by input name, as the engine was built.
        instances: Copies that run at the same time.
        device: ``gpu`` or ``cpu``.
        delay_us: How long a request may wait for others, microseconds.
    """

    name: str | None = None
    onnx: str | None = None
    batch: int = 8
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    maxima: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    instances: int = 1
    device: str = "gpu"
    delay_us: int = 100

    def __post_init__(self) -> None:
        """Refuse values that Triton does not take.

        Raises:
            OptionError: Names the option, what was found, and what is allowed.
        """
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise OptionError(
                f"--name {self.name!r} is no folder name; use letters, digits, '.', '_' and '-'."
            )
        if self.instances < 1 or self.batch < 1 or self.delay_us < 0:
            raise OptionError(
                f"--instances {self.instances}, --batch {self.batch}, --delay {self.delay_us}: "
                "instances and batch are 1 or more, the delay 0 or more."
            )
        if self.device not in ("gpu", "cpu"):
            raise OptionError(f"--device {self.device!r} is unknown; choose gpu or cpu.")


@dataclasses.dataclass(frozen=True)
class TritonModel:
    """What was written.

    Attributes:
        folder: ``REPO/<name>``.
        served: What its ``config.pbtxt`` says.
        notes: What the user should know.
    """

    folder: Path
    served: ServedModel
    notes: tuple[str, ...] = ()


def write_repository(
    file: str | os.PathLike[str], repository: str | os.PathLike[str], options: TritonOptions
) -> TritonModel:
    """Write one model of a repository, whole or not at all.

    Args:
        file: ONNX file, or an engine of full TensorRT.
        repository: Folder of the repository; it is made where it does not exist.
        options: See :class:`TritonOptions`.

    Raises:
        ModelError: The file cannot be used, or the place cannot be written.
        OptionError: A name, shape or device does not fit, or the model is in the repository already.
    """
    source = Path(file)
    kind = engine_kind(source)
    if kind == "tensorrt-rtx":
        raise OptionError(
            f"{source}: is an engine of TensorRT-RTX, which Triton's tensorrt backend does not load; "
            "serve the ONNX file, or build a plan with trtexec (`fuseq bench` prints the command)."
        )
    if kind is not None and options.device == "cpu":
        raise OptionError(f"{source}: an engine runs on a GPU; leave out --device cpu.")
    model = load(_onnx_of(source, kind, options))
    io = model_io(model)
    served = ServedModel(
        name=options.name or _default_name(source),
        backend="tensorrt" if kind else "onnxruntime",
        io=io,
        batching=_batching(io, options),
        instances=options.instances,
        on_gpu=options.device == "gpu",
    )
    folder = Path(repository) / served.name
    text = config_text(served)
    externals = {} if kind else weight_files(model)
    _write(folder, text, {FILE_NAMES[served.backend]: source, **externals})
    notes = () if io.batched else (f"requests are not batched: {io.reason}",)
    return TritonModel(folder, served, notes)


def _onnx_of(source: Path, kind: str | None, options: TritonOptions) -> Path:
    if kind is None:
        return source
    if options.onnx is None:
        raise OptionError(
            f"{source}: an engine does not tell its inputs without a GPU; give the ONNX file that "
            "it was built from with --onnx."
        )
    return Path(options.onnx)


def _default_name(source: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", source.stem).lstrip("._-") or "model"


def _batching(io: ModelIo, options: TritonOptions) -> Batching:
    """From the shapes that the engine is built for: its usual and its largest batch."""
    ranks = {port.name: len(port.shape) for port in io.inputs}
    for option, shapes in (("--shape", options.shapes), ("--max-shape", options.maxima)):
        for name, shape in shapes.items():
            if ranks.get(name) != len(shape):
                raise OptionError(
                    f"{option} {name}:{','.join(map(str, shape))} fits no input; inputs are "
                    + ", ".join(f"{port.name} {list(port.shape)}" for port in io.inputs)
                    + "."
                )
    if not io.batched:
        return Batching()
    usual = _one_batch("--shape", options.shapes, options.batch)
    largest = _one_batch("--max-shape", options.maxima, usual)
    if usual > largest:
        raise OptionError(f"the usual batch {usual} is larger than the largest, {largest}.")
    return Batching(largest, tuple(sorted({usual, largest})), options.delay_us)


def _one_batch(option: str, shapes: Mapping[str, tuple[int, ...]], default: int) -> int:
    batches = sorted({shape[0] for shape in shapes.values()})
    if len(batches) > 1:
        raise OptionError(f"{option} gives the inputs different batches {batches}; give one.")
    return batches[0] if batches else default


def _write(folder: Path, config: str, files: Mapping[str, Path]) -> None:
    if folder.exists():
        raise OptionError(
            f"{folder}: is in the repository already; remove it, or choose another --name."
        )
    made = [place for place in (folder.parent, *folder.parent.parents) if not place.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fuseq-") as name:
            beside = Path(name) / folder.name
            for target, source in files.items():
                place = beside / _VERSION / target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
            (beside / "config.pbtxt").write_text(config, encoding="ascii")
            beside.rename(folder)
    except OSError as error:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise ModelError(
            f"{folder}: cannot be written ({error.strerror or error}); choose another place or "
            "free some room. Nothing was written."
        ) from error
