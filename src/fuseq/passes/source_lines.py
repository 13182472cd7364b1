"""Which line of the user's model code a node came from."""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePosixPath

import onnx_ir as ir

_TRACE_KEY = "pkg.torch.onnx.stack_trace"
_MODULES_KEY = "pkg.torch.onnx.name_scopes"
_DYNAMO_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_SCRIPT_FRAME = re.compile(r"^(?P<file>\S.*?)\((?P<line>\d+)\): (?P<function>\S+)\s*$")
_TORCH = re.compile(r"(^|/)torch/")
_CODE_LENGTH = 80


@dataclasses.dataclass(frozen=True)
class _Frame:
    file: str
    line: str
    function: str
    code: str


def source_line(node: ir.Node) -> str | None:
    """Return ``file.py:123, in forward: code`` of the innermost frame outside torch itself.

    1. torch.onnx.export(dynamo=True) keeps a stack trace in the node's metadata, innermost last.
    2. torch.onnx.export(dynamo=False, verbose=True) keeps one in the doc string, innermost first
       and without code.

    None where the file carries neither.
    """
    frames = _dynamo_frames(node) or _script_frames(node)
    if not frames:
        return None
    own = [frame for frame in frames if not _TORCH.search(frame.file.replace("\\", "/"))]
    frame = (own or frames)[-1]
    where = f"{PurePosixPath(frame.file.replace(chr(92), '/')).name}:{frame.line}"
    code = f": {frame.code[:_CODE_LENGTH]}" if frame.code else ""
    return f"{where}, in {frame.function}{code}"


def module_path(node: ir.Node) -> str | None:
    """Return the name of the torch module that the node came from (``encoder.layer.0.attention``).

    The last entry of the exporter's scopes is the operator itself and is left out.
    """
    scopes = re.findall(r"'([^']*)'", node.metadata_props.get(_MODULES_KEY, ""))
    return scopes[-2] if len(scopes) > 1 and scopes[-2] else None


def _dynamo_frames(node: ir.Node) -> list[_Frame]:
    lines = node.metadata_props.get(_TRACE_KEY, "").splitlines()
    frames = []
    for number, line in enumerate(lines):
        match = _DYNAMO_FRAME.search(line)
        if match is None:
            continue
        behind = lines[number + 1].strip() if number + 1 < len(lines) else ""
        code = "" if _DYNAMO_FRAME.search(behind) else behind
        frames.append(_Frame(match["file"], match["line"], match["function"], code))
    return frames


def _script_frames(node: ir.Node) -> list[_Frame]:
    matches = [_SCRIPT_FRAME.match(line) for line in (node.doc_string or "").splitlines()]
    found = [_Frame(m["file"], m["line"], m["function"], "") for m in matches if m is not None]
    return found[::-1]
