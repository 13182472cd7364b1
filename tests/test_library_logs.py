"""What kept libraries log stays out of the user's terminal, and only while fuseq calls them."""

from __future__ import annotations

import logging

import pytest

from fuseq.library_logs import LIBRARIES, quiet_libraries


@pytest.mark.parametrize("name", LIBRARIES)
def test_logs_are_held_back_inside_the_block_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    child = logging.getLogger(f"{name}.part")
    with pytest.raises(ZeroDivisionError), quiet_libraries():
        child.warning("inside")
        raise ZeroDivisionError
    child.warning("outside")
    assert [record.getMessage() for record in caplog.records] == ["outside"]
