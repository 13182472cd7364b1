"""Each operator against ONNX Runtime on the same one-node model."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

torch = pytest.importorskip("torch")

import onnx_ir as ir  # noqa: E402

from fuseq.errors import TargetError  # noqa: E402
from fuseq.targets.torch_cuda.lowering import lower  # noqa: E402

IMAGE = (2, 6, 8, 8)
CASES = [
    ("y = Relu(x)", IMAGE), ("y = HardSwish(x)", IMAGE), ("y = Erf(x)", IMAGE),
    ("y = Softplus(x)", IMAGE), ("y = Add(x, x)", IMAGE), ("y = Max(x, x)", IMAGE),
    ("y = Gelu(x)", IMAGE), ('y = Gelu <approximate = "tanh"> (x)', IMAGE),
    ("y = Softmax <axis = 1> (x)", IMAGE), ("y = LogSoftmax <axis = -1> (x)", IMAGE),
    ("y = HardSigmoid <alpha = 0.3, beta = 0.4> (x)", IMAGE),
    ("y = LeakyRelu <alpha = 0.2> (x)", IMAGE), ("y = Flatten <axis = 2> (x)", IMAGE),
    ("y = Transpose <perm = [0, 2, 3, 1]> (x)", IMAGE), ("y = Transpose (x)", IMAGE),
    ("y = GlobalAveragePool (x)", IMAGE), ("y = GlobalMaxPool (x)", IMAGE),
    ("y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 1, 1]> (x)", IMAGE),
    ("y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)", IMAGE),
    ("y = AveragePool <kernel_shape = [2, 2], ceil_mode = 1, strides = [3, 3]> (x)", IMAGE),
    ("y, z = Split <axis = 1, num_outputs = 2> (x)", IMAGE),
    ("a = Constant <value = int64[2] {1, 5}> ()\n b = Constant <value = int64[2] {7, 0}> ()\n"
     " c = Constant <value = int64[2] {2, 1}> ()\n d = Constant <value = int64[2] {2, -2}> ()\n"
     " y = Slice(x, a, b, c, d)", IMAGE),
    ("a = Constant <value = int64[2] {1, -1}> ()\n y = ReduceMean(x, a)", IMAGE),
    ("y = ReduceSum <keepdims = 0> (x)", IMAGE),
    ("a = Constant <value = int64[1] {2}> ()\n y = ReduceL2 <keepdims = 0> (x, a)", IMAGE),
    ("a = Constant <value = int64[2] {1, 2}> ()\n y = Unsqueeze(x, a)", (3, 4)),
    ("y = Squeeze(x)", (3, 1, 4, 1)),
    ("a = Constant <value = int64[2] {2, -1}> ()\n y = Reshape(x, a)", (4, 6)),
    ("a = Constant <value = int64[3] {0, -1, 2}> ()\n y = Reshape(x, a)", (4, 6, 5)),
    ("a = Constant <value = int64[3] {2, 4, 6}> ()\n y = Expand(x, a)", (4, 1)),
    ("a = Constant <value = int64[2] {2, 3}> ()\n y = Tile(x, a)", (4, 2)),
    ("a = Constant <value = int64 {2}> ()\n y = Gather <axis = 1> (x, a)", (4, 6)),
    ("a = Constant <value = int64[2] {-1, 0}> ()\n y = Gather <axis = 1> (x, a)", (4, 6)),
    ("a = Constant <value = int64[1, 2] {1, 3}> ()\n y = GatherND(x, a)", (4, 6)),
    ("a = Constant <value = float {-0.5}> ()\n b = Constant <value = float {0.5}> ()\n"
     " y = Clip(x, a, b)", IMAGE),
    ("a = Constant <value = int64[8] {0, 0, 1, 2, 0, 0, 0, 1}> ()\n y = Pad(x, a)", IMAGE),
    ('a = Constant <value = int64[8] {0, 0, 1, 2, 0, 0, 0, 1}> ()\n y = Pad <mode = "reflect"> (x, a)',
     IMAGE),
    ("y = Trilu <upper = 0> (x)", (4, 4)), ("y = ArgMax <axis = 1, keepdims = 0> (x)", (4, 6)),
    ("a = Constant <value = int64 {1}> ()\n y = CumSum(x, a)", (4, 6)),
    ("c = Greater(x, x)\n y = Where(c, x, x)", (4, 6)), ("y = Cast <to = 6> (x)", (4, 6)),
    ("y = IsNaN(x)", (4, 6)), ("a = Constant <value = float {2.0}> ()\n y = Pow(x, a)", (4, 6)),
    ("a = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()\n r = Constant <value = float[0] {}> ()\n"
     ' y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",'
     ' nearest_mode = "floor"> (x, r, a)', IMAGE),
    ("a = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()\n r = Constant <value = float[0] {}> ()\n"
     ' y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, r, a)', IMAGE),
    ("s = Shape(x)\n a = Constant <value = int64[1] {0}> ()\n b = Gather(s, a)\n"
     " c = Constant <value = int64[1] {-1}> ()\n d = Concat <axis = 0> (b, c)\n y = Reshape(x, d)",
     IMAGE),
]  # fmt: skip


def model_of(body: str, shape: tuple[int, ...]) -> ir.Model:
    sizes = ", ".join(map(str, shape))
    outputs = "y, z" if body.startswith("y, z") else "y"
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]>\n'
        f"net (float[{sizes}] x) => ({outputs}) {{\n {body}\n}}"
    )
    return ir.from_proto(proto)


@pytest.mark.parametrize(("body", "shape"), CASES, ids=[case[0].splitlines()[-1] for case in CASES])
def test_an_operator_gives_what_onnx_runtime_gives(body: str, shape: tuple[int, ...]) -> None:
    model = model_of(body, shape)
    data = np.random.default_rng(0).normal(0, 2, shape).astype(np.float32)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {"x": data})
    found = lower(model, {"x": shape}, torch.device("cpu")).module(torch.from_numpy(data))
    for result, wanted in zip(found, expected, strict=True):
        assert tuple(result.shape) == wanted.shape
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [4, 4], strides = [4, 4]",  # patches: one product
        "kernel_shape = [4, 4], strides = [2, 2], pads = [1, 1, 1, 1]",
        "kernel_shape = [4, 4], pads = [0, 1, 2, 3]",
    ],
)
def test_a_convolution_gives_what_onnx_runtime_gives(attributes: str) -> None:
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]>\n'
        f"net (float[2, 3, 8, 12] x, float[5, 3, 4, 4] w, float[5] b) => (y) {{\n"
        f" y = Conv <{attributes}> (x, w, b)\n}}"
    )
    random = np.random.default_rng(1)
    feeds = {
        "x": random.normal(size=(2, 3, 8, 12)).astype(np.float32),
        "w": random.normal(size=(5, 3, 4, 4)).astype(np.float32),
        "b": random.normal(size=5).astype(np.float32),
    }
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, feeds)
    shapes = {name: array.shape for name, array in feeds.items()}
    lowered = lower(ir.from_proto(proto), shapes, torch.device("cpu"))
    (found,) = lowered.module(*(torch.from_numpy(array) for array in feeds.values()))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_operator_that_is_not_there_is_named() -> None:
    model = model_of("y = Det(x)", (4, 4))
    with pytest.raises(TargetError, match=r"does not run operator ai\.onnx\.Det"):
        lower(model, {"x": (4, 4)}, torch.device("cpu"))


def test_a_size_that_depends_on_data_is_refused() -> None:
    model = model_of("s = Cast <to = 7> (x)\n y = Expand(x, s)", (2,))
    with pytest.raises(TargetError, match="depends on data"):
        lower(model, {"x": (2,)}, torch.device("cpu"))
