"""A layer whose outputs are only squared stays float in INT8; one that a normalization reads does not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fuseq.options import QuantizeOptions
from fuseq.placement.spectra import REASON, REASON_READS
from fuseq.planning import everything, open_job

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g (float[8, 16, 32] x) => (float[8, 16, 32] y) '
SPECTRUM = (
    "{ a = Conv<pads: ints = [1, 1]>(x, w) r, i = Split<axis = 1, num_outputs = 2>(a) r2 = Pow(r, two) "
    "i2 = Mul(i, i) p = Add(r2, i2) m = Sqrt(p) y = Conv<pads: ints = [1, 1]>(m, v) }"
)
NORMALIZED = (
    "{ a = Conv<pads: ints = [1, 1]>(x, w) r, i = Split<axis = 1, num_outputs = 2>(a) r2 = Pow(r, two) "
    "m2 = ReduceMean(r2, axis) m = Sqrt(m2) n = Div(r, m) s = Add(n, i) "
    "y = Conv<pads: ints = [1, 1]>(s, v) }"
)


def model(body: str) -> ir.Model:
    made = onnx.parser.parse_model(HEAD + body)
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(32, 16, 3)).astype(np.float32),
        "v": rng.normal(size=(16, 16, 3)).astype(np.float32),
        "two": np.float32(2),
        "axis": np.array([1]),
    }
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()
    )
    return ir.from_proto(made)


def reasons(body: str, fmt: str, target: str) -> list[str]:
    job = open_job(model(body), QuantizeOptions(format=fmt, target=target, policy="full"))
    return [r.reason for r in everything(job).regions if "onv" in r.pattern]


@pytest.mark.parametrize("target", ["tensorrt:sm89", "onnxruntime:cpu"])
def test_a_spectrum_stays_float_in_int8(target: str) -> None:
    assert reasons(SPECTRUM, "int8", target) == [f"float: {REASON}", f"float: {REASON_READS}"]


def test_fp8_has_the_decades() -> None:
    assert all(
        reason.startswith("quantized") for reason in reasons(SPECTRUM, "fp8", "tensorrt:sm89")
    )


def test_what_a_normalization_squares_is_quantized() -> None:
    made = reasons(NORMALIZED, "int8", "tensorrt:sm89")
    assert [reason.startswith("quantized") for reason in made] == [True, True]


def test_what_moves_a_spectrum_stays_float_too() -> None:
    job = open_job(model(SPECTRUM), QuantizeOptions(target="onnxruntime:cpu", policy="full"))
    assert not any(region.quantized for region in everything(job).regions)


def test_a_move_into_the_models_output_is_no_square() -> None:
    """YOLOv8's scores go through Concat into the output: nothing squares them."""
    body = (
        "{ a = Conv<pads: ints = [1, 1]>(x, w) r, i = Split<axis = 1, num_outputs = 2>(a) "
        "s = Sigmoid(r) y = Concat<axis = 1>(s, i) }"
    )
    job = open_job(model(body), QuantizeOptions(target="onnxruntime:cpu", policy="full"))
    assert all(region.quantized for region in everything(job).regions)
