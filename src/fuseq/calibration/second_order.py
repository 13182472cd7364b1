"""Round weights so that what rounding one of them adds to the output, the ones after it take back.

Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", ICLR 2023, algorithm 1: of ``|| (W - Q) X ||^2`` the second derivative is
``H = X X^T``; weights are rounded column by column, and the error of a column, through the Cholesky
factor of ``H^-1``, is added to the columns that are still to come.
"""

from __future__ import annotations

import numpy as np

from fuseq.calibration.rounding import dequantize_array, quantize_array
from fuseq.formats import Format

DAMPING = 0.01
"""Part of the mean diagonal added to the diagonal of H, as in the paper (section 3.3, step 3)."""

_BLOCK = 128
"""Columns whose errors are spread to the rest in one product (the paper's lazy batch updates)."""


def round_second_order(
    weights: np.ndarray, hessian: np.ndarray, scale: np.ndarray, fmt: Format
) -> np.ndarray:
    """Values of ``fmt``'s grid for ``weights``, with less error behind the product than nearest.

    Columns are taken in order of their diagonal of H, largest first. A group whose error on H is
    not below that of rounding to nearest keeps nearest, so the result is never worse on that data.

    Args:
        weights: [G, O, K] float64.
        hessian: [G, K, K] float64, sum over rows of ``x^T x``; G may be many small groups.
        scale: float32, broadcast to [G, O]; it stays as it is.
        fmt: The format to round to.

    Returns:
        Rounded values times their scale, float32 [G, O, K]; rounding them again changes nothing.
    """
    groups, outputs, width = weights.shape
    scales = np.broadcast_to(scale, (groups, outputs)).astype(np.float32)
    nearest = nearest_on_grid(weights, scales, fmt)
    order = np.argsort(-np.einsum("gkk->gk", hessian).sum(axis=0), kind="stable")
    factor = _inverse_factor(hessian[:, order][:, :, order])
    left = weights[:, :, order].copy()
    found = np.empty((groups, outputs, width), dtype=np.float32)
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        errors = np.empty((groups, outputs, stop - start))
        for column in range(start, stop):
            found[:, :, column] = _on_grid(left[:, :, column, None], scales, fmt)[:, :, 0]
            error = left[:, :, column] - found[:, :, column]
            error /= factor[:, column, column, None]
            rest = factor[:, None, column, column:stop]
            left[:, :, column:stop] -= error[:, :, None] * rest
            errors[:, :, column - start] = error
        left[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    result = np.empty_like(found)
    result[:, :, order] = found
    better = product_error(weights - result, hessian) < product_error(weights - nearest, hessian)
    return np.where(better[:, None, None], result, nearest)


def product_error(difference: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Squared error of the product by group, [G]: ``sum_o d_o H d_o^T`` of d [G, O, K]."""
    error: np.ndarray = ((difference @ hessian) * difference).sum(axis=(1, 2))
    return error


def nearest_on_grid(weights: np.ndarray, scale: np.ndarray, fmt: Format) -> np.ndarray:
    """Rounding to nearest with the arguments of :func:`round_second_order`."""
    return _on_grid(weights, np.broadcast_to(scale, weights.shape[:2]).astype(np.float32), fmt)


def _on_grid(weights: np.ndarray, scales: np.ndarray, fmt: Format) -> np.ndarray:
    """Nearest values of the format times scale; float32, shape of ``weights`` [G, O, n]."""
    flat = weights.reshape(-1, weights.shape[2])
    codes = quantize_array(flat, scales.reshape(-1), None, fmt, axis=0)
    return dequantize_array(codes, scales.reshape(-1), None, axis=0).reshape(weights.shape)


def _inverse_factor(hessian: np.ndarray) -> np.ndarray:
    """Upper U with ``U^T U = H^-1``, [G, K, K], H damped; an input that is always 0 is alone."""
    damped = hessian.copy()
    diagonal = np.einsum("gkk->gk", damped)  # a view
    mean = diagonal.mean(axis=1, keepdims=True)
    diagonal += np.where(mean > 0, DAMPING * mean, 1.0)
    factor: np.ndarray = np.linalg.cholesky(np.linalg.inv(damped)).transpose(0, 2, 1)
    return factor
