"""``fuseq.Session``: one call that runs any model or engine, whatever the target."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx_ir as ir

from fuseq.errors import OptionError, TargetError
from fuseq.model import load
from fuseq.serving.arrays import Array, like_inputs, to_numpy
from fuseq.targets.base import Engine
from fuseq.targets.engine_files import engine_kind
from fuseq.targets.engine_runtime.runner import open_engine
from fuseq.targets.onnxruntime.session import (
    ModelLike,
    open_session,
    run_session,
    session_options,
    usable_cpus,
)

_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}

Feeds = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Backend:
    """What runs: names in and out, the call, and what gives the resources back."""

    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[[Feeds], Mapping[str, np.ndarray]]
    close: Callable[[], None] = lambda: None


class Session:
    """Runs a model or an engine on NumPy arrays or torch tensors.

    1. An ONNX file or model runs on ONNX Runtime's CPU provider, optimized; with
       ``target="torch:cuda"`` by that target's kernels, on the CPU where there is no GPU.
    2. An engine of ``tensorrt`` or ``tensorrt-rtx`` (a file, or what ``compile_model`` with
       ``keep_plan=True`` returned) runs on the GPU; an engine of ``onnxruntime:cpu`` on the CPU.
    3. A ``torch.nn.Module`` runs where its parameters are, without gradients.

    Floats are converted to the float type of the input, so that the same data serves a float model
    and its FP16 file. Outputs are torch tensors where an input is one.

    Example:
        >>> session = fuseq.Session("int8.onnx")
        >>> session(x=np.zeros((1, 3, 224, 224), np.float32))["logits"].shape

    Attributes:
        target: What runs it: ``onnxruntime:cpu``, ``tensorrt``, ``tensorrt-rtx`` or ``torch``.
        inputs: Names, in order.
        outputs: Names, in order; empty for a module, which names none.
    """

    def __init__(
        self,
        model: Any,
        *,
        target: str | None = None,
        threads: int | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Open ``model``.

        Args:
            model: Path, ``onnx_ir.Model``, ``Engine`` or ``torch.nn.Module``.
            target: What runs an ONNX file or model: ``onnxruntime:cpu`` (the default) or
                ``torch:cuda``; TensorRT targets run engines, not models.
            threads: Threads of one operator on a CPU; all usable processors by default.
            shapes: For a GPU engine with a range of shapes: the shape by input name; by default
                those that it was built for.

        Raises:
            ModelError: The file cannot be used.
            TargetError: There is no GPU for the engine, or the runtime refused it.
            OptionError: Nothing that a session can run.
        """
        self._resources = contextlib.ExitStack()
        if target not in (None, "onnxruntime:cpu", "torch:cuda"):
            raise OptionError(
                f"target {target!r} does not run models; compile with keep_plan=True and open the "
                "engine, or choose onnxruntime:cpu or torch:cuda."
            )
        by_torch = target == "torch:cuda"
        self._backend = _on_torch(model) if by_torch else self._open(model, threads, shapes)
        self.target = self._backend.target
        self.inputs = self._backend.inputs
        self.outputs = self._backend.outputs

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name for inputs by name.

        Raises:
            OptionError: An input is missing, unknown, or no array.
            TargetError: The runtime refused an input.
        """
        if set(feeds) != set(self.inputs):
            raise OptionError(
                f"the inputs are {sorted(self.inputs)}, {sorted(feeds)} were given; give exactly "
                "the inputs."
            )
        if self.target == "torch":
            return dict(self._backend.run(feeds))
        arrays = {name: to_numpy(name, array) for name, array in feeds.items()}
        return like_inputs(self._backend.run(arrays), feeds)

    def __call__(self, *arrays: Array, **feeds: Array) -> dict[str, Array]:
        """:meth:`run` with inputs in order, by keyword, or both."""
        if len(arrays) > len(self.inputs):
            raise OptionError(f"{len(arrays)} arrays for the inputs {list(self.inputs)}.")
        given = dict(zip(self.inputs, arrays, strict=False))
        twice = sorted(set(given) & set(feeds))
        if twice:
            raise OptionError(f"input {twice[0]!r} is given twice.")
        return self.run({**given, **feeds})

    def close(self) -> None:
        """Give GPU memory back; a session that runs on a CPU needs no closing."""
        self._resources.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(
        self, model: Any, threads: int | None, shapes: Mapping[str, tuple[int, ...]] | None
    ) -> _Backend:
        if isinstance(model, Engine):
            if model.plan_bytes is None:
                raise OptionError(
                    f"the engine of {model.target} was compiled without its plan; compile with "
                    "keep_plan=True."
                )
            kind = model.target.partition(":")[0]
            if kind == "onnxruntime":
                return _on_cpu(model.plan_bytes, threads)
            return self._on_gpu(model.plan_bytes, kind, shapes)
        if isinstance(model, ir.Model):
            return _on_cpu(model, threads)
        if isinstance(model, (str, os.PathLike)):
            file = Path(model)
            found = engine_kind(file)
            if found is not None:
                return self._on_gpu(file.read_bytes(), found, shapes)
            load(file)  # refuses what is not ONNX, and weights outside the model's folder
            return _on_cpu(file, threads)
        if any(base.__module__.startswith("torch.nn.") for base in type(model).__mro__):
            return _module(model)
        raise OptionError(
            f"a {type(model).__name__} cannot be run; give a file, a model, an Engine or a "
            "torch.nn.Module."
        )

    def _on_gpu(
        self, plan: bytes, kind: str, shapes: Mapping[str, tuple[int, ...]] | None
    ) -> _Backend:
        runner = self._resources.enter_context(open_engine(plan, kind, shapes))

        def run(feeds: Feeds) -> Mapping[str, np.ndarray]:
            runner.upload(feeds)
            runner.run()
            return runner.download()

        return _Backend(kind, runner.inputs, runner.outputs, run)


def _on_cpu(model: ModelLike, threads: int | None) -> _Backend:
    session = open_session(model, session_options(threads or len(usable_cpus())))
    types = {value.name: _FLOATS.get(value.type) for value in session.get_inputs()}

    def run(feeds: Feeds) -> Mapping[str, np.ndarray]:
        return run_session(session, {name: _as(types[name], a) for name, a in feeds.items()})

    outputs = tuple(value.name for value in session.get_outputs())
    return _Backend("onnxruntime:cpu", tuple(types), outputs, run)


def _as(wanted: Any, array: np.ndarray) -> np.ndarray:
    if wanted is None or not np.issubdtype(array.dtype, np.floating):
        return array
    return array.astype(wanted, copy=False)


def _on_torch(model: Any) -> _Backend:
    from fuseq.targets.torch_cuda.target import TorchCuda  # noqa: PLC0415

    loaded = model if isinstance(model, ir.Model) else load(model)
    compiled = TorchCuda().compiled(loaded)
    import torch  # noqa: PLC0415

    wanted = {
        value.name or "": value.dtype.numpy()
        for value in loaded.graph.inputs
        if value.name not in loaded.graph.initializers and value.dtype is not None
    }
    outputs = tuple(value.name or "" for value in loaded.graph.outputs)

    def run(feeds: Feeds) -> Mapping[str, np.ndarray]:
        arrays = [np.ascontiguousarray(feeds[n].astype(t, copy=False)) for n, t in wanted.items()]
        found = compiled(*(torch.from_numpy(array) for array in arrays))
        return {name: tensor.cpu().numpy() for name, tensor in zip(outputs, found, strict=True)}

    return _Backend("torch:cuda", tuple(wanted), outputs, run)


def _module(module: Any) -> _Backend:
    import inspect  # noqa: PLC0415

    import torch  # noqa: PLC0415  (it is imported: a module was given)

    parameters = inspect.signature(module.forward).parameters.values()
    names = tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.default is p.empty
    )  # fmt: skip
    first = next(module.parameters(), None)
    device = first.device if first is not None else torch.device("cpu")

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        tensors = [torch.as_tensor(feeds[name]).to(device) for name in names]
        with torch.inference_mode():
            found = module(*tensors)
        named = _named(found)
        if any(isinstance(feeds[name], torch.Tensor) for name in names):
            return named
        return {name: tensor.cpu().numpy() for name, tensor in named.items()}

    return _Backend("torch", names, (), run)


def _named(found: Any) -> dict[str, Any]:
    """A module's result by name: its own names, else ``output``, ``output_1`` ..."""
    if hasattr(found, "items"):
        return {str(name): value for name, value in found.items() if value is not None}
    if isinstance(found, (tuple, list)):
        return {f"output_{i}" if i else "output": value for i, value in enumerate(found)}
    if hasattr(found, "shape"):
        return {"output": found}
    raise TargetError(f"the module returned a {type(found).__name__}, which is no tensor.")
