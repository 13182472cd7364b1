"""A torch module as the reference of an ONNX file that was exported from it.

The module's own submodules are the tensors inside: the output of ``encoder.layers.3.self_attn`` is
compared with the ONNX value that leaves the nodes of that module, as exporters record the module path
of each node. A submodule is left out when it gives no single float tensor, is called twice in one run,
or has no or several values that leave it in the file.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Batch
from fuseq.errors import ModelError
from fuseq.evaluate.compare_matching import Match, leaving_modules
from fuseq.evaluate.compare_side import RunBatch, Side, Value

_OUTPUT = "output {}"


def is_module(given: object) -> bool:
    """It is a ``torch.nn.Module``; torch is not imported to find out."""
    return any(base.__module__.startswith("torch.nn.") for base in type(given).__mro__)


def module_side(module: Any, file: Side, model: ir.Model, label: str) -> tuple[Side, list[Match]]:
    """Describe the module by what it shares with the file.

    Args:
        module: Run as it is, in its mode, without gradients, on the device of its parameters.
        file: The side of the ONNX model.
        model: That model.
        label: For people.

    Returns:
        The module's side, whose values are in the file's order, and what stands for what.
    """
    leaving = leaving_modules(model, {value.name for value in file.values if value.is_float})
    known = {path for path, _ in module.named_modules() if path}
    twins = {value: path for path, value in leaving.items() if path in known}
    values = tuple(_renamed(value, twins) for value in file.values)
    outputs = tuple(_OUTPUT.format(place) for place in range(len(file.outputs)))
    runner = _Runner(module, file.inputs, outputs)
    side = Side(
        label=label,
        runner="torch",
        inputs=file.inputs,
        outputs=outputs,
        values=values,
        sizes=lambda batch: {twins.get(n, n): size for n, size in file.sizes(batch).items()},
        open=runner.open,
        in_order=True,
    )
    shared = (value.name for value in file.values if value.name in twins)
    return side, [Match(twins[name], name, "provenance") for name in shared]


@dataclasses.dataclass(frozen=True)
class _Runner:
    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def open(self, names: Sequence[str], threads: int) -> RunBatch:
        """Computes the named submodules' outputs, and the module's own."""

        def run(batch: Batch) -> list[np.ndarray]:
            found = self._run(batch, set(names))
            absent = np.empty((0, 0, 0, 0, 0, 0, 0))  # a shape that no tensor has: it is left out
            return [found.get(name, absent) for name in names]

        return run

    def _run(self, batch: Batch, names: set[str]) -> dict[str, np.ndarray]:
        import torch  # noqa: PLC0415
        from torch.utils import _pytree  # noqa: PLC0415

        seen: dict[str, list[Any]] = {}

        def watch(name: str) -> Any:
            return lambda module, inputs, result: seen.setdefault(name, []).append(result)

        handles = [
            part.register_forward_hook(watch(name))
            for name, part in self.module.named_modules()
            if name in names
        ]
        try:
            with torch.inference_mode():
                result = self._call(batch)
        finally:
            for handle in handles:
                handle.remove()
        leaves = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if len(leaves) < len(self.outputs):
            raise ModelError(
                f"the module returns {len(leaves)} tensors, the file has {len(self.outputs)} "
                "outputs; give the file that was exported from this module."
            )
        found = {name: _array(leaf) for name, leaf in zip(self.outputs, leaves, strict=False)}
        for name, results in seen.items():
            if len(results) == 1 and isinstance(results[0], torch.Tensor):
                found[name] = _array(results[0])
        return found

    def _call(self, batch: Batch) -> Any:
        """By keyword where the file's inputs are named as the parameters of ``forward``."""
        import torch  # noqa: PLC0415

        first = next(self.module.parameters(), None)
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(array)).to(
                "cpu" if first is None else first.device
            )
            for name, array in zip(self.inputs, batch.values(), strict=True)
        }
        if set(tensors) <= set(inspect.signature(self.module.forward).parameters):
            return self.module(**tensors)
        return self.module(*tensors.values())


def _array(tensor: Any) -> np.ndarray:
    import torch  # noqa: PLC0415

    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: np.ndarray = wide.detach().cpu().numpy()
    return array


def _renamed(value: Value, twins: Mapping[str, str]) -> Value:
    return dataclasses.replace(
        value,
        name=twins.get(value.name, value.name),
        parents=tuple(twins.get(parent, parent) for parent in value.parents),
    )
