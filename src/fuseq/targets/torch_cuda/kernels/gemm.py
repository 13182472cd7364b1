"""8-bit GEMM with its epilogue, for GPUs with tensor memory access (compute capability 9.0 on).

A persistent kernel: each multiprocessor walks over tiles of the output, so the loads of the next
tile overlap with the epilogue of this one. Bias, activation, residual and the next quantization are
done on the accumulators in registers, so none of them is a pass over memory.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from fuseq.targets.torch_cuda.held import LIMITS


@triton.jit
def _activate(x, slope, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    if KIND == "relu":
        x = tl.maximum(x, 0.0)
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # tanh(u) = 2 sigmoid(2u) - 1
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x / (1.0 + tl.exp(-2.0 * u))
    elif KIND == "sigmoid":
        x = x / (1.0 + tl.exp(-slope * x))
    return x


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    acc, c_desc, r_desc, scale, bias, slope, out_factor, row, column, N,
    WIDTH: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    OUT_LIMIT: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    columns = column + tl.arange(0, WIDTH)
    x = acc.to(tl.float32) * tl.load(scale + columns, mask=columns < N, other=0.0)[None, :]
    if HAS_BIAS:
        x += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    x = _activate(x, slope, KIND)
    if HAS_RESIDUAL:
        x += r_desc.load([row, column]).to(tl.float32)
    if OUT_LIMIT:
        x = x * out_factor
        if ROUNDS:
            x = libdevice.rint(x)
        x = tl.minimum(tl.maximum(x, -OUT_LIMIT), OUT_LIMIT)
    c_desc.store([row, column], x.to(c_desc.dtype))


def _set_blocks(arguments):  # type: ignore[no-untyped-def]
    rows, columns, depth = (arguments[name] for name in ("BM", "BN", "BK"))
    written = columns // 2 if arguments["HALVES"] else columns
    arguments["a_desc"].block_shape = [rows, depth]
    arguments["b_desc"].block_shape = [columns, depth]
    arguments["c_desc"].block_shape = [rows, written]
    arguments["r_desc"].block_shape = [rows, written]


_CONFIGS = [
    triton.Config(
        {"BM": rows, "BN": columns, "BK": 128, "GROUP": 8, "HALVES": halves},
        num_warps=warps,
        num_stages=stages,
        pre_hook=_set_blocks,
    )
    for rows, columns, warps, stages, halves in (
        (128, 256, 8, 3, False),
        (128, 256, 8, 3, True),
        (256, 128, 8, 3, True),
        (128, 128, 8, 4, False),
        (128, 128, 4, 4, False),
        (64, 128, 4, 4, False),
        (64, 64, 4, 4, False),
    )
]


def _fitting(configs, arguments, **_):  # type: ignore[no-untyped-def]
    """Large tiles where they fill the GPU, small ones where they do not."""
    rows, columns = arguments["M"], arguments["N"]
    processors = _processors(torch.cuda.current_device())

    def fills(config: triton.Config) -> bool:
        tile = config.kwargs["BM"], config.kwargs["BN"]
        tiles = triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1])
        is_small = tile[0] == 64
        return is_small == (triton.cdiv(rows, 128) * triton.cdiv(columns, 128) < processors) or (
            not is_small and tiles >= processors
        )

    return [config for config in configs if fills(config)] or configs


@triton.autotune(
    configs=_CONFIGS,
    key=["M", "N", "K", "KIND", "HAS_RESIDUAL", "OUT_LIMIT", "IS_INT"],
    prune_configs_by={"early_config_prune": _fitting},
    cache_results=False,
)
@triton.jit
def _gemm(  # type: ignore[no-untyped-def]
    a_desc, b_desc, c_desc, r_desc, scale, bias, slope, out_factor, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PROCESSORS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, OUT_LIMIT: tl.constexpr, IS_INT: tl.constexpr,
    ROUNDS: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    tile_rows = tl.cdiv(M, BM)
    tile_columns = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    per_group = GROUP * tile_columns
    for tile in tl.range(tl.program_id(0), tile_rows * tile_columns, PROCESSORS, flatten=True):
        first = (tile // per_group) * GROUP
        height = tl.minimum(tile_rows - first, GROUP)
        row = (first + (tile % height)) * BM
        column = ((tile % per_group) // height) * BN
        acc = tl.zeros((BM, BN), tl.int32 if IS_INT else tl.float32)
        for step in range(steps):
            a = a_desc.load([row, step * BK])
            b = b_desc.load([column, step * BK])
            acc = tl.dot(a, b.T, acc)
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
            _write(left, c_desc, r_desc, scale, bias, slope, out_factor, row, column, N,
                   BN // 2, KIND, HAS_BIAS, HAS_RESIDUAL, OUT_LIMIT, ROUNDS)  # fmt: skip
            _write(right, c_desc, r_desc, scale, bias, slope, out_factor, row, column + BN // 2, N,
                   BN // 2, KIND, HAS_BIAS, HAS_RESIDUAL, OUT_LIMIT, ROUNDS)  # fmt: skip
        else:
            _write(acc, c_desc, r_desc, scale, bias, slope, out_factor, row, column, N,
                   BN, KIND, HAS_BIAS, HAS_RESIDUAL, OUT_LIMIT, ROUNDS)  # fmt: skip


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
    """See :func:`fuseq.targets.torch_cuda.kernels.linear`; data [M, K], weight [N, K] on a GPU."""
    data = data.contiguous()
    rows, depth = data.shape
    size = weight.shape[0]
    out = torch.empty(rows, size, dtype=dtype, device=data.device)
    added = None if residual is None else residual.contiguous()
    blocks = [1, 1]  # set by the configuration that runs
    c_desc = TensorDescriptor.from_tensor(out, blocks)
    _gemm[lambda meta: (_programs(rows, size, meta, data.device.index or 0),)](
        TensorDescriptor.from_tensor(data, blocks),
        TensorDescriptor.from_tensor(weight, blocks),
        c_desc,
        c_desc if added is None else TensorDescriptor.from_tensor(added, blocks),
        scale,
        scale if bias is None else bias,
        slope,
        1.0 / out_scale if dtype in LIMITS else 1.0,
        rows,
        size,
        depth,
        PROCESSORS=_processors(data.device.index or 0),
        KIND=activation,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=added is not None,
        OUT_LIMIT=int(LIMITS.get(dtype, 0)),
        ROUNDS=dtype == torch.int8,
        IS_INT=data.dtype == torch.int8,
    )
    return out


def _programs(rows: int, size: int, meta: dict[str, int], device: int) -> int:
    tiles = triton.cdiv(rows, meta["BM"]) * triton.cdiv(size, meta["BN"])
    return min(_processors(device), int(tiles))


@functools.cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
