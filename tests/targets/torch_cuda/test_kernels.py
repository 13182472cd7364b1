"""The kernels' sums against NumPy in float64; FP8 values against ml_dtypes' rounding."""

from __future__ import annotations

from math import erf

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from fuseq.targets.torch_cuda import kernels  # noqa: E402
from fuseq.targets.torch_cuda.held import quantize  # noqa: E402
from fuseq.targets.torch_cuda.kernels import products  # noqa: E402

DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def stored(shape: tuple[int, ...], fmt: str, seed: int) -> torch.Tensor:
    random = np.random.default_rng(seed)
    if fmt == "int8":
        return torch.from_numpy(random.integers(-127, 128, shape, dtype=np.int8))
    return torch.from_numpy(random.normal(0, 3, shape).astype(np.float32)).to(torch.float8_e4m3fn)


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float32).numpy().astype(np.float64)


def reference_activation(x: np.ndarray, name: str, slope: float) -> np.ndarray:
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if name == "sigmoid":
        return x / (1 + np.exp(-slope * x))
    return x


@pytest.mark.parametrize("fmt", ["fp8", "int8"])
@pytest.mark.parametrize(
    ("activation", "slope"),
    [("none", 0.0), ("relu", 0.0), ("gelu", 0.0), ("gelu_tanh", 0.0), ("sigmoid", 1.702)],
)
def test_linear_is_the_product_with_its_epilogue(fmt: str, activation: str, slope: float) -> None:
    data, weight = stored((5, 32), fmt, 1), stored((48, 32), fmt, 2)
    random = np.random.default_rng(3)
    scale = random.uniform(1e-4, 1e-3, 48).astype(np.float32)
    bias = random.normal(0, 0.1, 48).astype(np.float32)
    residual = random.normal(0, 1, (5, 48)).astype(np.float32)
    found = torch.ops.fuseq.linear(
        data, weight, torch.from_numpy(scale), torch.from_numpy(bias),
        torch.from_numpy(residual), activation, slope, 1.0, torch.float32,
    )  # fmt: skip
    product = wide(data) @ wide(weight).T * scale.astype(np.float64) + bias
    expected = reference_activation(product, activation, slope) + residual
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_linear_quantizes_its_result_to_the_nearest_stored_value() -> None:
    data, weight = stored((7, 16), "fp8", 4), stored((32, 16), "fp8", 5)
    scale = np.full(32, 0.01, dtype=np.float32)
    found = torch.ops.fuseq.linear(
        data, weight, torch.from_numpy(scale), None, None, "none", 0.0, 0.05, torch.float8_e4m3fn
    )
    exact = (wide(data) @ wide(weight).T * 0.01 / 0.05).astype(np.float32)
    expected = np.clip(exact, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert found.dtype == torch.float8_e4m3fn
    differ = found.view(torch.uint8).numpy() != expected.view(np.uint8)
    assert differ.mean() < 0.01  # a sum that falls on a tie may round either way
    assert not np.isnan(wide(found)).any()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (448.0, 448.0), (1e9, 448.0), (-1e9, -448.0), (17.0, 16.0), (19.0, 20.0), (18.0, 18.0),
        (2.0**-9, 2.0**-9), (2.0**-10, 0.0), (2.0**-10 * 1.01, 2.0**-9), (3 * 2.0**-10, 2.0**-8),
        (0.0, 0.0),
    ],
)  # fmt: skip
def test_fp8_rounds_ties_to_even_saturates_and_keeps_subnormals(
    value: float, expected: float
) -> None:
    rounded = quantize(torch.tensor([value]), 1.0, torch.float8_e4m3fn)
    assert rounded.to(torch.float32).item() == expected


def test_int8_rounds_ties_to_even_and_saturates() -> None:
    data = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 126.6, 300.0, -300.0])
    assert quantize(data, 1.0, torch.int8).tolist() == [0, 2, 2, 0, -2, 127, 127, -128]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_softmax_of_the_products(causal: bool, masked: bool) -> None:
    query, key, value = (stored((2, 3, 9, 16), "fp8", seed) for seed in (6, 7, 8))
    random = np.random.default_rng(9)
    mask = random.normal(0, 1, (2, 3, 9, 9)).astype(np.float32) if masked else None
    found = torch.ops.fuseq.attention(
        query, key, value, None if mask is None else torch.from_numpy(mask),
        0.02, 0.5, causal, 1.0, torch.float32,
    )  # fmt: skip
    scores = wide(query) @ wide(key).transpose(0, 1, 3, 2) * 0.02
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = np.where(np.tril(np.ones((9, 9), dtype=bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.numpy(), weights @ wide(value) * 0.5, rtol=1e-4, atol=1e-5)
    assert found.transpose(1, 2).is_contiguous()  # so that merging the heads is a view


def test_shapes_and_types_are_known_without_computing() -> None:
    data, weight = stored((5, 32), "fp8", 1), stored((48, 32), "fp8", 2)
    query = stored((1, 2, 4, 16), "fp8", 3)
    with FakeTensorMode() as fake:
        a, b, q = (fake.from_tensor(tensor) for tensor in (data, weight, query))
        product = kernels.linear(a, b, torch.ones(48), None, None, "gelu", 0.0, 1.0, torch.float16)
        mixed = kernels.attention(q, q, q, None, 0.1, 1.0, True, 0.5, torch.float8_e4m3fn)
    assert tuple(product.shape) == (5, 48) and product.dtype == torch.float16
    real = kernels.attention(query, query, query, None, 0.1, 1.0, True, 0.5, torch.float8_e4m3fn)
    assert mixed.shape == real.shape and mixed.stride() == real.stride()
    assert mixed.dtype == real.dtype


@pytest.mark.parametrize("fmt", ["fp8", "int8"])
@pytest.mark.parametrize("rows", [3, 40])
def test_pytorchs_own_products_are_the_same_sums(fmt: str, rows: int) -> None:
    """The path of GPUs before capability 9.0; PyTorch has the same two products on the CPU."""
    data, weight = stored((rows, 32), fmt, 1), stored((48, 32), fmt, 2)
    try:
        found = products.product(data, weight)
    except RuntimeError as error:
        pytest.skip(f"this PyTorch has no such product on the CPU: {error}")
    np.testing.assert_allclose(found.numpy(), wide(data) @ wide(weight).T, rtol=1e-5, atol=1e-3)
