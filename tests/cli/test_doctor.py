"""`fuseq doctor`: every target with its state, and the whole command that would install it."""

from __future__ import annotations

import json

import pytest

from fuseq.cli.main import run
from fuseq.errors import MissingExtraError
from fuseq.targets import KNOWN_TARGETS
from fuseq.targets.tensorrt_rtx import TensorRtRtx


def test_every_target_has_a_row_and_its_extra_is_named_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = str(MissingExtraError("TensorRT-RTX", "rtx"))
    monkeypatch.setattr(TensorRtRtx, "missing", lambda self: gap)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["doctor"]) == 0
    told = capsys.readouterr().out
    assert all(target in told for target in KNOWN_TARGETS)
    assert "pip install 'fuseq[rtx]'" in told
    assert run(["doctor", "--json"]) == 0
    states = json.loads(capsys.readouterr().out)["targets"]
    assert set(states) == set(KNOWN_TARGETS)
    assert states["tensorrt-rtx:sm89"] == {"works": False, "missing": gap}
