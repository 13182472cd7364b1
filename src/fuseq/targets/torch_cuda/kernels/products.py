"""8-bit GEMM by PyTorch's own products, for GPUs before tensor memory access (compute capability 8).

``torch._scaled_mm`` (FP8, 8.9) and ``torch._int_mm`` (INT8, 8.0) write the product; the epilogue is
a pass of its own. Not yet run on such a GPU; tests run it on the CPU, where PyTorch has both.
"""

from __future__ import annotations

import torch

from fuseq.targets.torch_cuda.kernels.epilogue import with_epilogue

_LEAST_ROWS = 32
"""``torch._int_mm`` takes more than 16 rows, in multiples of 8 (its own error messages)."""


def run(
    data: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    slope: float,
    out_scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See :func:`fuseq.targets.torch_cuda.kernels.linear`; data [M, K], weight [N, K]."""
    found = product(data.contiguous(), weight)
    return with_epilogue(found, scale, bias, residual, activation, slope, out_scale, dtype)


def product(data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``data @ weight.T`` of the stored values in FP32: [M, K] and [N, K] to [M, N]."""
    if data.dtype != torch.int8:
        one = torch.ones((), dtype=torch.float32, device=data.device)
        result: torch.Tensor = torch._scaled_mm(
            data, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32
        )
        return result
    rows = data.shape[0]
    missing = max(_LEAST_ROWS, -(-rows // 8) * 8) - rows
    padded = torch.nn.functional.pad(data, (0, 0, 0, missing)) if missing else data
    return torch._int_mm(padded, weight.t())[:rows].to(torch.float32)
