"""Numbers on the page: what is shown is rounded, ``<data value>`` carries the document's own value.

A reader sees ``512.3 us``; the element's value, the tooltip that a script makes of it and everything that
sorts is the number as the document has it. Units are those of the terminal: MB is 10^6 bytes.
"""

from __future__ import annotations

from fuseq.report.html.markup import DASH, Html, tag, text

UNKNOWN = tag("span", text(DASH), class_="unknown", title="not known here")


def figure(value: float | int | None, shown: str, unit: str | None = None) -> Html:
    """``shown`` for people, ``value`` for machines and the tooltip; a dash where it is None.

    ``unit`` is that of ``value``, where it is not the one that is shown.
    """
    if value is None:
        return UNKNOWN
    return tag("data", text(shown), value=repr(value), data_unit=unit)


def microseconds(value: float | None) -> Html:
    """A time, always in us, so that a column can be compared."""
    return figure(value, "" if value is None else f"{value:,.1f} µs")


def duration(value_us: float | None) -> Html:
    """A time in the unit that reads best; the value stays in us."""
    if value_us is None:
        return UNKNOWN
    if value_us >= 1e6:
        shown = f"{value_us / 1e6:.2f} s"
    elif value_us >= 1e3:
        shown = f"{value_us / 1e3:.3f} ms"
    else:
        shown = f"{value_us:.1f} µs"
    return figure(value_us, shown, "us")


def milliseconds(value: float | None) -> Html:
    """A time in ms."""
    return figure(value, "" if value is None else f"{value:,.3f} ms")


def size(nbytes: int | None) -> Html:
    """Bytes in MB (10^6), kB or B."""
    if nbytes is None:
        return UNKNOWN
    if nbytes >= 1e5:
        shown = f"{nbytes / 1e6:,.1f} MB"
    elif nbytes >= 1e3:
        shown = f"{nbytes / 1e3:.1f} kB"
    else:
        shown = f"{nbytes} B"
    return figure(nbytes, shown, "bytes")


def count(value: int | None) -> Html:
    """A whole number."""
    return figure(value, "" if value is None else f"{value:,}")


def share(value: float | None, digits: int = 1) -> Html:
    """A part of one, in percent."""
    return figure(value, "" if value is None else f"{100 * value:.{digits}f} %", "of 1")


def decimal(value: float | None, digits: int = 2, unit: str = "") -> Html:
    """A plain number with its unit."""
    return figure(value, "" if value is None else f"{value:.{digits}f} {unit}".strip())


def scientific(value: float | None) -> Html:
    """A number of any magnitude, three significant digits."""
    return figure(value, "" if value is None else f"{value:.3g}")


def how(measured: bool) -> Html:
    """The word that every time carries."""
    word = "measured" if measured else "predicted"
    return tag("span", text(word), class_=f"chip {word}")
