"""HTML in which nothing unescaped can stand: pieces are :data:`Html`, and only these functions make it.

Names come from models of strangers. :func:`text` is the one way from a plain string to markup; a plain
string where markup is wanted is a type error.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any, NewType

Html = NewType("Html", str)
"""Escaped markup."""

NOTHING = Html("")
DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
_VOID = frozenset({"meta", "input", "br", "hr"})
_CODE = re.compile(r"`([^`<>]+)`")
Attribute = str | int | float | bool | None


def text(value: str, limit: int | None = None) -> Html:
    """Escape ``value``; characters that do not print (controls, bidi overrides) become U+FFFD.

    Args:
        value: Any string.
        limit: Longest text in characters; what is longer ends in an ellipsis.
    """
    if limit is not None and len(value) > limit:
        value = value[: limit - 1] + "…"
    return Html(html.escape(printable(value), quote=True))


def prose(value: str, limit: int | None = None) -> Html:
    """Escape a sentence of fuseq's own; what stands between backticks is shown as code."""
    return Html(_CODE.sub(r"<code>\1</code>", text(value, limit)))


def printable(value: str) -> str:
    """``value`` without control characters: white space becomes a blank, the rest U+FFFD."""
    return "".join(
        char if char.isprintable() else " " if char in "\n\t\r" else "\ufffd" for char in value
    )


def tag(name: str, /, *children: Html, **attributes: Attribute) -> Html:
    """One element; ``class_`` and ``for_`` lose their underscore, others turn it into a hyphen.

    True gives an attribute without value; None and False leave it out.
    """
    pairs = "".join(
        f" {key}" if value is True else f' {key}="{text(str(value))}"'
        for key, value in ((_attribute(k), v) for k, v in attributes.items())
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{pairs}>")
    return Html(f"<{name}{pairs}>{join(children)}</{name}>")


def join(parts: Iterable[Html], separator: str = "") -> Html:
    """Pieces one after the other; ``separator`` is plain text."""
    return Html(text(separator).join(parts))


def script_data(identity: str, data: Any) -> Html:
    """JSON that a script of the page reads; ``<`` is written so that no tag can end it.

    Characters that do not print are replaced in every string, as :func:`text` does.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    written = json.dumps(_clean(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Html(f'<script type="application/json" id="{text(identity)}">{safe}</script>')


def _clean(data: Any) -> Any:
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {printable(key): _clean(value) for key, value in data.items()}
    return [_clean(item) for item in data] if isinstance(data, (list, tuple)) else data


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
