"""What a checkpoint of another tool, which brings scales for its own weights, does not go with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseq.calibration.batches import Source
from fuseq.deployment.from_checkpoint import quantize_checkpoint
from fuseq.errors import OptionError
from fuseq.modelopt.checkpoint import Checkpoint
from fuseq.options import QuantizeOptions
from fuseq.planning import silent
from tests.graphs import conv_net


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"rounding": "gptq"}, "--rounding gptq"),
        ({"bias_correction": True}, "--bias-correction"),
        ({"equalize": True}, "--equalize"),
        ({"smooth": 0.5}, "--smooth"),
    ],
)
def test_options_that_change_weights_are_refused(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    checkpoint = Checkpoint.__new__(Checkpoint)  # refused before it is looked at
    with pytest.raises(OptionError, match=f"{word} changes weights"):
        quantize_checkpoint(
            conv_net(), checkpoint, tmp_path / "out.onnx",
            options=QuantizeOptions(**changes), calib=Source("none", lambda: iter(())),
            report=silent,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())
