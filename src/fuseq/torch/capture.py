"""A module as float ONNX, each node of which knows the call of the living module that it came from."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from fuseq.errors import ModelError
from fuseq.library_logs import quiet_libraries
from fuseq.torch.calls import Call, recording
from fuseq.torch.inputs import Inputs
from fuseq.torch.refusals import export_refusal, onnx_refusal
from fuseq.torch.state import SCALES

CALL_KEY = "fuseq.call"
"""Metadata of an ONNX node: number of its call in :attr:`Capture.calls`, ``.``, FX node name."""

_TAG = "@fuseq:"
_TAGGED = re.compile(r"@fuseq:(\d+)\.([A-Za-z0-9_]+)")
_SCOPES = "pkg.torch.onnx.name_scopes"
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"


@dataclasses.dataclass(frozen=True)
class Capture:
    """One export of a module.

    Attributes:
        program: The exported program in training IR; its graph holds the FX nodes that calls name.
        calls: Calls in the order of the forward pass.
        model: Float ONNX as ``torch.onnx.export(dynamo=True)`` writes it; its nodes carry
            :data:`CALL_KEY`.
        call_of_value: Number of the call and FX node by name of ONNX value, before any pass.
        contents: Checksums of parameters and buffers, to see whether they changed since.
    """

    program: torch.export.ExportedProgram
    calls: tuple[Call, ...]
    model: ir.Model
    call_of_value: Mapping[str, tuple[int, str]]
    contents: tuple[int, ...]

    def call_of_node(self, node: ir.Node) -> tuple[int, str] | None:
        """Number of the call and the FX node that an ONNX node came from; None if not known."""
        text = node.metadata_props.get(CALL_KEY)
        if text is None:
            found = (self.call_of_value.get(value.name or "") for value in node.outputs)
            return next((each for each in found if each is not None), None)
        number, _, fx_node = text.partition(".")
        return int(number), fx_node

    def is_current(self, module: nn.Module) -> bool:
        """The module's parameters and buffers are as they were when it was exported."""
        return contents_of(module) == self.contents


def capture(module: nn.Module, inputs: Inputs) -> Capture:
    """Export ``module`` in eval mode and note which call made which node.

    Args:
        module: Left as it was: training mode, hooks and parameters.
        inputs: Example inputs and which of their axes are dynamic.

    Raises:
        ModelError: torch.export or torch.onnx.export refused the module: where, and what to do.
    """
    with _without_garbage_collection(), _in_eval(module):
        with recording(module) as recorder:
            program = _exported(module, inputs)
        calls = tuple(recorder.calls)
        _tag(program.graph, calls)
        model = _as_onnx(module, program)
    call_of_value = _read_tags(model)
    return Capture(program, calls, model, call_of_value, contents_of(module))


def _exported(module: nn.Module, inputs: Inputs) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(
            module, inputs.args, dict(inputs.kwargs),
            dynamic_shapes=inputs.dynamic_shapes, strict=False,
        )  # fmt: skip
    except Exception as error:  # torch raises many unrelated types here
        raise ModelError(export_refusal(module, inputs, error)) from error


def _as_onnx(module: nn.Module, program: torch.export.ExportedProgram) -> ir.Model:
    try:
        with warnings.catch_warnings(), quiet_libraries():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:  # as above
        raise ModelError(onnx_refusal(module, error)) from error
    if exported is None:
        raise ModelError(f"torch.onnx.export of {type(module).__name__} gave nothing.")
    model: ir.Model = exported.model
    return model


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Exporting makes millions of objects, all of which live: looking through them again and again is a
    sixth of its time (EfficientNet-B0: 10.6 CPU seconds with, 9.0 without)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def contents_of(module: nn.Module) -> tuple[int, ...]:
    """CRC-32 of each parameter and buffer; writes through ``.data`` show here, unlike in versions."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return tuple(_checksum(tensor) for name, tensor in named if name != SCALES)


def _checksum(tensor: torch.Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array: np.ndarray = flat.view(torch.uint8).numpy()
    return zlib.crc32(array.data)


@contextlib.contextmanager
def _in_eval(module: nn.Module) -> Iterator[None]:
    """Every submodule in eval mode for the block; the modes differ by submodule and come back."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes.items():
            part.training = was_training


def _tag(graph: torch.fx.Graph, calls: tuple[Call, ...]) -> None:
    """Write each FX node's call into its module stack, which exporters copy to what it becomes."""
    owner = {name: number for number, call in enumerate(calls) for name in call.fx_nodes}
    for node in graph.nodes:
        number = owner.get(node.name)
        if number is None or node.op != "call_function":
            continue
        stack = dict(node.meta.get("nn_module_stack") or {})
        stack[f"{_TAG}{number}.{node.name}"] = (f"{_TAG}{number}.{node.name}", "fuseq.Call")
        node.meta["nn_module_stack"] = stack


def _read_tags(model: ir.Model) -> dict[str, tuple[int, str]]:
    """Move the tags into :data:`CALL_KEY`; what is left is what the exporter writes anyway."""
    found: dict[str, tuple[int, str]] = {}
    for node in model.graph.all_nodes():
        props = node.metadata_props
        tag = _TAGGED.search(props.get(_SCOPES, ""))
        if tag is None:
            continue
        number, fx_node = int(tag[1]), tag[2]
        props[CALL_KEY] = f"{number}.{fx_node}"
        props[_SCOPES] = props[_SCOPES].replace(f"'{tag[0]}', ", "")
        if _HIERARCHY in props:
            props[_HIERARCHY] = props[_HIERARCHY].replace("'fuseq.Call', ", "")
        if "namespace" in props:
            props["namespace"] = props["namespace"].replace(f"{tag[0]}: fuseq.Call/", "")
        found.update({value.name: (number, fx_node) for value in node.outputs if value.name})
    return found
