"""One scale or one a channel, against the noise computed in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.formats import FP8, INT8
from fuseq.options import QuantizeOptions
from fuseq.placement.weight_noise import FULL_CHANNEL_SQNR_DB, MIN_CHANNEL_SQNR_DB, channel_sqnr_db
from fuseq.planning import everything, open_job
from tests.graphs import from_text, named, normal


def _weight(smallest: float) -> np.ndarray:
    """Sixteen channels, from ``smallest`` to 1 times the same spread."""
    spread = np.geomspace(smallest, 1.0, 16).astype(np.float32)
    return normal(16, 16, 3, 3, seed=1, scale=1.0) * spread[:, None, None, None]


@pytest.mark.parametrize("smallest", [1.0, 0.1, 0.01])
def test_noise_is_what_rounding_leaves(smallest: float) -> None:
    weight = _weight(smallest).astype(np.float64)
    step = np.abs(weight).max() / 127
    error = np.rint(weight / step) * step - weight
    found = 10 * np.log10((weight**2).mean((1, 2, 3)) / (error**2).mean((1, 2, 3)))
    expected = np.percentile(found, 10)
    assert abs(channel_sqnr_db(weight.astype(np.float32), 0, INT8) - expected) < 1.0


@pytest.mark.parametrize(
    ("smallest", "pays", "full"), [(1.0, None, None), (0.3, None, 0), (0.01, 0, 0)]
)
def test_full_gives_up_one_scale_earlier(
    smallest: float, pays: int | None, full: int | None
) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {
      y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
    }"""
    model = named(from_text(text, w=_weight(smallest)))
    assert [_axis(model, "pays"), _axis(model, "full")] == [pays, full]
    assert _axis(model, "full", "fp8") is None  # relative precision: one scale serves all


def _axis(model: ir.Model, policy: str, fmt: str = "int8") -> int | None:
    options = QuantizeOptions(target="tensorrt-rtx:sm89", format=fmt, policy=policy)  # type: ignore[arg-type]
    (entry,) = (e for e in everything(open_job(model, options)).tensors if e.kind == "weight")
    return entry.axis


def test_a_weight_of_zeros_has_no_noise() -> None:
    assert channel_sqnr_db(np.zeros((4, 4), np.float32), 0, INT8) == np.inf
    assert FULL_CHANNEL_SQNR_DB > MIN_CHANNEL_SQNR_DB and FP8.is_float
