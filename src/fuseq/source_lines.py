"""Where a node comes from in the user's own model code, as exporters record it.

`torch.onnx.export(dynamo=True)` writes the Python stack and the module path into each node's
``metadata_props`` (keys ``pkg.torch.onnx.stack_trace`` and ``pkg.torch.onnx.name_scopes``);
fuseq condenses both into ``fuseq.source`` and ``fuseq.module`` when it writes a model.
"""

from __future__ import annotations

import re

import onnx_ir as ir

SOURCE_KEY = "fuseq.source"
MODULE_KEY = "fuseq.module"
MERGED_KEY = "fuseq.merged"
"""Module paths, one a line, of the layers that a node does the work of since they were merged."""
_CLASSES_KEY = "pkg.torch.onnx.class_hierarchy"
_STACK_KEY = "pkg.torch.onnx.stack_trace"
_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)\s*$')
_QUOTED = re.compile(r"'([^']*)'")
_LIBRARY = ("/torch/", "\\torch\\")
_MAX_LINE = 120


def source_line(node: ir.Node) -> str | None:
    """``file.py:123 in forward: code`` of the innermost frame outside torch; None if not recorded."""
    known = node.metadata_props.get(SOURCE_KEY)
    if known:
        return known
    trace = node.metadata_props.get(_STACK_KEY)
    if not trace:
        return None
    lines = trace.splitlines()
    best: str | None = None
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is None or any(part in frame[1] for part in _LIBRARY):
            continue
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        best = f"{_short(frame[1])}:{frame[2]} in {frame[3]}: {code[:_MAX_LINE]}"
    return best


def module_path(node: ir.Node) -> str:
    """Path of the module that made the node (``encoder.layers.0.self_attn.v_proj``); "" if unknown."""
    known = node.metadata_props.get(MODULE_KEY)
    if known is not None:
        return known
    scopes = _QUOTED.findall(node.metadata_props.get(_SCOPES_KEY, ""))
    return scopes[-2] if len(scopes) > 1 else ""


def module_paths(node: ir.Node) -> tuple[str, ...]:
    """Paths of all modules whose work the node does, in the order of its parts; () if unknown."""
    merged = node.metadata_props.get(MERGED_KEY)
    if merged is not None:
        return tuple(merged.split("\n"))
    path = module_path(node)
    return (path,) if path else ()


def module_class(node: ir.Node) -> str:
    """Class of the module that made the node (``torch.nn.modules.linear.Linear``); "" if unknown."""
    classes = _QUOTED.findall(node.metadata_props.get(_CLASSES_KEY, ""))
    return classes[-2] if len(classes) > 1 else ""


def _short(path: str) -> str:
    """The path from the package on: what stands behind the last ``site-packages``."""
    for mark in ("site-packages/", "site-packages\\"):
        if mark in path:
            return path.rsplit(mark, 1)[1]
    return path
