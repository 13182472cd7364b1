"""Reads a page back with the standard library's parser, as a browser would see it."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._inside = ""
        self._grid = ""
        self._cells: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        classes = dict(attrs).get("class") or ""
        if classes.split()[:1] == ["grid"]:
            self._grid = dict(attrs).get("id") or ""
        if tag == "td":
            self._cells.setdefault(self._grid, []).append("")
        if tag in ("script", "style"):
            self._inside = tag
            {"script": self.scripts, "style": self.styles}[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.text += data
            if self._cells.get(self._grid):
                self._cells[self._grid][-1] += data

    def cells(self, grid: str) -> list[str]:
        """Text of every cell of a table, row by row."""
        return self._cells.get(grid, [])

    def all(self, tag: str) -> list[dict[str, str]]:
        """Attributes of every element of this name."""
        return [attributes for name, attributes in self.elements if name == tag]
