"""Which module of the user's model each node of an engine came from, with or without the model.

Cases, the first that answers wins:
1. The ONNX node says so (:func:`fuseq.source_lines.module_path`).
2. A weight that the node reads, through Q and DQ, is called after its module:
   ``layer1.0.conv1.weight``. TensorRT lists such weights among the names of a fused layer, so this
   works without the model too.
3. The node's name is a path, as PyTorch's older exporter writes it: ``/layer1/layer1.0/conv1/Conv``.
4. A kernel that only quantizes, dequantizes or changes type or layout belongs to the kernel that
   reads what it writes; where that has no module, to the one that wrote what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from fuseq.source_lines import module_path
from fuseq.targets.base import Engine, Kernel, KernelType

_PARAMETER = re.compile(
    r"^(?P<module>[^\s/]+)\.(?:weight|bias|in_proj_weight|in_proj_bias|running_mean|running_var)$"
)
_PASSED_ON = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "Transpose"})
_CARRIERS = frozenset(
    {KernelType.QUANTIZE, KernelType.DEQUANTIZE, KernelType.CAST, KernelType.MOVE}
)


def engine_modules(engine: Engine, model: ir.Model | None = None) -> dict[str, str]:
    """Module path by node name, for every node of ``engine`` whose module can be told.

    Args:
        engine: Its kernels name the nodes.
        model: The model it was compiled from, where it is at hand.
    """
    known = node_modules(model) if model is not None else {}
    names = dict.fromkeys(node for kernel in engine.kernels for node in kernel.nodes)
    modules = {name: known.get(name) or _of_name(name) for name in names}
    _follow_readers(engine, modules)
    return {name: module for name, module in modules.items() if module}


def node_modules(model: ir.Model) -> dict[str, str]:
    """Module path by node name, cases 1 to 3; nodes without an answer are missing."""
    found = {}
    for node in model.graph.all_nodes():
        module = module_path(node) or _of_weights(node) or _of_name(node.name or "")
        if node.name and module:
            found[node.name] = module
    return found


def _of_weights(node: ir.Node) -> str:
    for value in node.inputs:
        source = value
        while source is not None and (producer := source.producer()) is not None:
            if producer.op_type not in _PASSED_ON:
                break
            source = producer.inputs[0]
        if source is not None and source.is_initializer():
            match = _PARAMETER.match(source.name or "")
            if match:
                return match["module"]
    return ""


def _of_name(name: str) -> str:
    """``layer1.0.conv1.weight`` and ``/layer1/layer1.0/conv1/Conv`` to ``layer1.0.conv1``."""
    match = _PARAMETER.match(name)
    if match:
        return match["module"]
    parts = name.split("/")
    if len(parts) < 3 or parts[0]:
        return ""
    path: list[str] = []
    for part in parts[1:-1]:
        if path and part.startswith(path[-1] + "."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


def _follow_readers(engine: Engine, modules: dict[str, str]) -> None:
    """Case 4, readers before writers, so that a chain of such kernels is followed to its end."""
    readers: dict[str, list[Kernel]] = {}
    writers: dict[str, Kernel] = {}
    for kernel in engine.kernels:
        for tensor in kernel.inputs:
            readers.setdefault(tensor.name, []).append(kernel)
        writers.update({tensor.name: kernel for tensor in kernel.outputs})
    others = {n for kernel in engine.kernels if kernel.type not in _CARRIERS for n in kernel.nodes}
    for kernel in reversed(engine.kernels):
        if kernel.type in _CARRIERS and not _module(kernel, modules):
            after = [r for tensor in kernel.outputs for r in readers.get(tensor.name, [])]
            before = [writers[tensor.name] for tensor in kernel.inputs if tensor.name in writers]
            around = (_module(other, modules) for other in (*after, *before))
            found = next(filter(None, around), "")
            own = [node for node in kernel.nodes if not modules.get(node) and node not in others]
            modules.update(dict.fromkeys(own, found))


def _module(kernel: Kernel, modules: Mapping[str, str]) -> str:
    return next(filter(None, (modules.get(node) for node in kernel.nodes)), "")
