"""What kept libraries log stays out of the user's terminal, and only while fuseq calls them."""

from __future__ import annotations

import logging

import pytest

from fuseq.library_logs import LIBRARIES, quiet_libraries


class Told(logging.Handler):
    """Keeps what reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.mark.parametrize("name", LIBRARIES)
def test_logs_are_held_back_inside_the_block_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, child, told = logging.getLogger(name), logging.getLogger(f"{name}.part"), Told()
    monkeypatch.setattr(library, "level", logging.WARNING)  # torch may have set another
    monkeypatch.setattr(child, "handlers", [told])
    with pytest.raises(ZeroDivisionError), quiet_libraries():
        child.warning("inside")
        raise ZeroDivisionError
    child.warning("outside")
    assert told.messages == ["outside"]
    assert library.level == logging.WARNING
