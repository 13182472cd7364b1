"""Writes a torch.fx graph while it knows every value's shape and type.

Shapes are static: a graph is made for the shapes of one call, as CUDA graphs are too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

Operand = torch.fx.Node | np.ndarray
"""A value of the ONNX graph: computed, or a constant."""


@dataclasses.dataclass
class Emitter:
    """One torch.fx graph under construction.

    Attributes:
        device: Where constants live and the graph runs.
        root: Owns the constants as buffers.
        graph: What was written so far.
        fake: Gives shapes and types without computing.
    """

    device: torch.device
    root: torch.nn.Module = dataclasses.field(default_factory=torch.nn.Module)
    graph: torch.fx.Graph = dataclasses.field(default_factory=torch.fx.Graph)
    fake: FakeTensorMode = dataclasses.field(default_factory=FakeTensorMode)
    _buffers: dict[int, torch.fx.Node] = dataclasses.field(default_factory=dict)
    _kept: list[np.ndarray] = dataclasses.field(default_factory=list)

    def input(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.fx.Node:
        """Declare an input of the graph."""
        node = self.graph.placeholder(name)
        with self.fake:
            node.meta["val"] = torch.empty(shape, dtype=dtype, device=self.device)
        return node

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Append ``function(*args, **kwargs)``; nodes among the arguments stand for their values.

        Raises:
            Whatever ``function`` raises for operands of these shapes and types.
        """
        with self.fake:
            value = function(
                *torch.fx.map_arg(args, lambda n: n.meta["val"]),
                **torch.fx.map_arg(kwargs, lambda n: n.meta["val"]),
            )
        node = self.graph.call_function(function, args, kwargs)
        node.meta["val"] = value
        return node

    def tensor(self, operand: Operand) -> torch.fx.Node:
        """The operand as a node; a constant becomes a buffer, once."""
        if isinstance(operand, torch.fx.Node):
            return operand
        key = id(operand)
        if key not in self._buffers:
            self._kept.append(operand)  # an id is unique only while its object lives
            self._buffers[key] = self.buffer(tensor_of(operand))
        return self._buffers[key]

    def buffer(self, tensor: torch.Tensor) -> torch.fx.Node:
        """A new constant of the graph, moved to the device."""
        name = f"constant_{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, tensor.to(self.device), persistent=False)
        node = self.graph.get_attr(name)
        with self.fake:
            node.meta["val"] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
            )
        return node

    def scalar_or_tensor(self, operand: Operand) -> torch.fx.Node | float | int | bool:
        """A one-element constant of rank 0 as a Python number, which fuses into any kernel."""
        if isinstance(operand, np.ndarray) and operand.ndim == 0:
            return (
                operand.astype(np.float64).item()
                if operand.dtype.kind not in "iub"
                else operand.item()
            )
        return self.tensor(operand)


def shape_of(operand: Operand) -> tuple[int, ...]:
    """Static shape."""
    if isinstance(operand, np.ndarray):
        return tuple(operand.shape)
    return tuple(int(size) for size in operand.meta["val"].shape)


def dtype_of(operand: Operand) -> torch.dtype:
    """Type of the elements."""
    if isinstance(operand, np.ndarray):
        return tensor_of(operand.reshape(-1)[:0]).dtype
    dtype: torch.dtype = operand.meta["val"].dtype
    return dtype


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same bits; bfloat16 and FP8 arrays (ml_dtypes) are reinterpreted.

    Args:
        array: Any shape.
    """
    twin = {
        "bfloat16": (np.int16, torch.bfloat16),
        "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    }
    found = twin.get(array.dtype.name)
    whole = np.require(array, requirements=["C", "O", "W"])
    if found is None:
        return torch.from_numpy(whole.reshape(array.shape))
    return torch.from_numpy(whole.view(found[0]).reshape(array.shape)).view(found[1])
