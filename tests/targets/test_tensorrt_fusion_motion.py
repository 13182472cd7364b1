"""Moving Q backward and DQ forward: the graph computes the same, bit by bit, and less of it in float."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.targets.base import ShapeProfile
from fuseq.targets.tensorrt.move_quantize import move_quantization
from fuseq.targets.tensorrt.prepare import origin, prepare
from tests.targets.tensorrt_models import net

SHAPE = "float[1, 4, 8, 8]"
STEPS = (
    "{out} = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({in})",
    "{out} = Transpose <perm = [0, 1, 3, 2]> ({in})",
    "{out}_flat = Reshape({in}, flat)\n{out} = Reshape({out}_flat, square)",
    "{out}_half = Slice({in}, begin, end, axis)\n{out} = Concat <axis = 1> ({out}_half, {out}_half)",
    "{out}_other = Relu({in})\n{out} = Concat <axis = 1> ({out}_other, {in})\n"
    "{out}_c = Slice({out}, begin, end4, axis)",
    "{out} = Pair<0.05> ({in})",
    "{out} = Pair<0.25> ({in})",
    "{out} = Relu({in})",
)
CONSTANTS = (
    "<int64[2] flat = {4, 64}, int64[4] square = {1, 4, 8, 8}, int64[1] begin = {0}, "
    "int64[1] end = {2}, int64[1] end4 = {4}, int64[1] axis = {1}>"
)


def moved(model: ir.Model) -> ir.Model:
    copy = prepare(model, ShapeProfile({"x": (1, 4, 8, 8)}))
    move_quantization(copy.graph)
    return copy


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    """ONNX Runtime as it stands: its own optimizations would hide what ours did."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(range(len(STEPS))), min_size=1, max_size=7))
def test_outputs_stay_equal(steps: list[int]) -> None:
    lines, last = [], "x"
    for number, step in enumerate(steps):
        out = f"v{number}"
        lines.append(STEPS[step].replace("{out}", out).replace("{in}", last))
        last = f"{out}_c" if step == 4 else out
    lines.append(f"y = Identity({last})")
    model = net(f"({SHAPE} x) => ({SHAPE} y) {CONSTANTS}", "\n".join(lines))
    x = np.random.default_rng(0).normal(0, 3, (1, 4, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x), run(moved(model), x))


def operators(model: ir.Model) -> list[str]:
    short = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}
    return [short.get(node.op_type, node.op_type) for node in model.graph]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p = MaxPool <kernel_shape = [1, 1]> (x)\ny = Pair<0.1> (p)", ["Q", "MaxPool", "DQ"]),
        ("p = Pair<0.1> (x)\ny = Transpose <perm = [0, 1, 3, 2]> (p)", ["Q", "Transpose", "DQ"]),
        # one scale cancels, two remain
        ("p = Pair<0.1> (x)\ny = Pair<0.1> (p)", ["Q", "DQ"]),
        ("p = Pair<0.1> (x)\ny = Pair<0.2> (p)", ["Q", "DQ", "Q", "DQ"]),
        # not over operators that compute
        ("p = Relu (x)\ny = Pair<0.1> (p)", ["Relu", "Q", "DQ"]),
        ("p = Pair<0.1> (x)\ny = AveragePool <kernel_shape = [1, 1]> (p)",
         ["Q", "DQ", "AveragePool"]),
        # Concat: Q to each branch; DQ behind it only when all branches have one scale
        ("a = Relu(x)\nb = Tanh(x)\nj = Concat <axis = 2> (a, b)\ny = Pair<0.1> (j)",
         ["Relu", "Tanh", "Q", "Q", "Concat", "DQ"]),
        ("a = Pair<0.1> (x)\nr = Relu(x)\nb = Pair<0.1> (r)\ny = Concat <axis = 2> (a, b)",
         ["Relu", "Q", "Q", "Concat", "DQ"]),
        ("a = Pair<0.1> (x)\nr = Relu(x)\nb = Pair<0.2> (r)\ny = Concat <axis = 2> (a, b)",
         ["Relu", "Q", "DQ", "Q", "DQ", "Concat"]),
    ],
)  # fmt: skip
def test_where_pairs_end(body: str, expected: list[str]) -> None:
    size = 16 if "Concat" in body else 8
    result = moved(net(f"({SHAPE} x) => (float[1, 4, {size}, 8] y)", body))
    assert sorted(operators(result)) == sorted(expected)
    if "Concat" not in body:
        assert operators(result) == expected


def test_a_float_reader_stops_the_quantizer() -> None:
    body = "p = MaxPool <kernel_shape = [1, 1]> (x)\ny = Pair<0.1> (p)\nz = Tanh(p)"
    result = moved(net(f"({SHAPE} x) => ({SHAPE} y, {SHAPE} z)", body))
    assert sorted(operators(result)) == ["DQ", "MaxPool", "Q", "Tanh"]
    assert operators(result)[0] == "MaxPool"


def test_equal_quantizers_of_one_tensor_become_one() -> None:
    body = "a = Pair<0.1> (x)\nb = Pair<0.1> (x)\ny = Relu(a)\nz = Tanh(b)"
    result = moved(net(f"({SHAPE} x) => ({SHAPE} y, {SHAPE} z)", body))
    assert sorted(operators(result)) == ["DQ", "DQ", "Q", "Relu", "Tanh"]


def test_slices_share_a_quantizer_of_one_scale_only() -> None:
    def split(second: str) -> list[tuple[int, ...]]:
        body = (
            "r = Relu(x)\na0, b0 = Split <axis = 1, num_outputs = 2> (r)\n"
            f"a = Pair<0.1> (a0)\nb = Pair<{second}> (b0)\ny = Tanh(a)\nz = Sin(b)"
        )
        half = "float[1, 2, 8, 8]"
        result = moved(net(f"({SHAPE} x) => ({half} y, {half} z)", body))
        quantizers = [node for node in result.graph if node.op_type == "QuantizeLinear"]
        return [tuple(node.outputs[0].shape.numpy()) for node in quantizers]  # type: ignore[union-attr]

    assert split("0.1") == [(1, 4, 8, 8)]
    assert split("0.2") == [(1, 2, 8, 8)] * 2  # moving them would quantize the whole tensor twice


def test_copies_keep_the_users_node_name() -> None:
    body = "a = Relu(x)\nb = Tanh(x)\nj = Concat <axis = 2> (a, b)\ny = Pair<0.1> (j)"
    model = net(f"({SHAPE} x) => (float[1, 4, 16, 8] y)", body)
    quantizer = next(n.name for n in model.graph if n.op_type == "QuantizeLinear")
    copies = [n for n in moved(model).graph if n.op_type == "QuantizeLinear"]
    assert [origin(node) for node in copies] == [quantizer] * 2


def test_the_users_model_is_not_changed() -> None:
    body = "p = MaxPool <kernel_shape = [1, 1]> (x)\ny = Pair<0.1> (p)"
    model = net(f"({SHAPE} x) => ({SHAPE} y)", body)
    before = ir.to_proto(model).SerializeToString()
    moved(model)
    assert ir.to_proto(model).SerializeToString() == before
