"""The cost model: predicted time of a kernel on a GPU. Everything it says is a prediction.

A kernel takes ``launch + max(max(memory, products) + exposed, power)`` microseconds (the roofline
model: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009), where

1. memory is ``max(DRAM bytes / reached bandwidth, all bytes / L2 rate, all bytes / SM rate)``.
   A tensor that a recent kernel touched is read from L2, one that fits L2 is written to it. The SM
   rate is lower for windows, for conversions of layout and for values narrowed to 8 bits.
2. dense products run in tiles, one tile a time on each SM, the tile chosen that is fastest; a tile
   takes its products at a part of the tensor cores' peak, and all tiles together read their operands
   through L2. Waves that do not fill the GPU, few output channels and small K cost what they cost
   ("Matrix Multiplication Background User's Guide", NVIDIA, sections on tile and wave quantization).
   The first wave's loads and the last wave's stores overlap with nothing:
   ``exposed = ramp + min(memory, products) / waves``.
3. grouped convolutions (depthwise above all), FP32 and DP4A products run on CUDA cores.
4. fused attention runs its two products and one exponential for each score in turn, over queries
   and keys padded to whole tiles (Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3",
   2024, section 1: exponentials have far lower throughput than tensor cores).
5. no kernel with products is faster than its energy over the board's power (:mod:`.energy`).

The constants were chosen on five ResNet-18 engines on an A100 and checked on other GPUs and models:
docs/cost-model.md says how, and how far off they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from fuseq.targets.base import Kernel, KernelType
from fuseq.targets.energy import power_us
from fuseq.targets.gpus import Gpu


@dataclasses.dataclass(frozen=True)
class Constants:
    """What the datasheets do not say, each with its meaning.

    Attributes:
        launch_us: Start, first loads, last stores and end of a kernel in a CUDA graph.
        tile_ramp_us: Filling and draining the tile pipeline of a product, beyond ``launch_us``.
        tensor_core_efficiency: Part of the tensor cores' peak that the inside of a tile reaches.
        cuda_core_efficiency: The same for products on CUDA cores.
        l2_bytes_per_clock: L2 traffic that one SM sustains; on A100 half of the 5120 B/clk that all
            108 share (Ampere whitepaper, "A100 L2 cache").
        l2_kept: Part of L2 in which a tensor survives until the next kernel reads it. L2 of A100 and
            H100 is two halves, each keeping a copy for its own SMs (the same section).
        pool_bytes_per_clock: What an SM moves in a window operation, whose reads overlap.
        reformat_bytes_per_clock: What an SM moves in full TensorRT's layout and type conversions.
        narrowed_per_clock: Values that an SM converts to 8 bits in an elementwise kernel (measured on
            H200 with Triton's kernels: they are not vectorized, so fast memories outrun them).
    """

    launch_us: float = 2.5
    tile_ramp_us: float = 2.5
    tensor_core_efficiency: float = 0.85
    cuda_core_efficiency: float = 0.75
    l2_bytes_per_clock: float = 28.0
    l2_kept: float = 0.5
    pool_bytes_per_clock: float = 10.0
    reformat_bytes_per_clock: float = 6.0
    narrowed_per_clock: float = 3.6


CONSTANTS = Constants()

EXPONENTIALS_PER_CLOCK_SM = 16
"""CUDA C++ Programming Guide, "Arithmetic Instructions", compute capability 7.5 to 12.x."""

TILES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (128, 128), (256, 64), (128, 64), (64, 128)),
    *((64, 64), (128, 32), (64, 32), (32, 32)),
)
"""Output rows and columns of the tiles that GEMM libraries offer (CUTLASS profiler, default set)."""

_ATTENTION_TILE = 128
"""Queries and keys that one block of a fused attention takes (FlashAttention-2, section 3.2)."""

_MMA_PART = {90: 0.63}
"""Part of the peak that ``mma`` instructions reach where the peak needs ``wgmma``: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499, section IV."""

_ACCESS_BYTES = 16
"""Channels are loaded 16 bytes at a time; fewer are padded up to it inside the kernel."""

_DP4A_BYTES = 4
"""One DP4A instruction takes four channels of one byte."""

_CUDA_CORE_DTYPES = frozenset({"fp32", "int8x4", ""})

_REFORMAT_WORDS = frozenset({"reformat", "scale", "shuffle", "slice", "padding"})
_EIGHT_BIT = frozenset({"fp8", "int8", "uint8"})
_DTYPE_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclasses.dataclass(frozen=True)
class Product:
    """A kernel's products as one matrix product, ``(m, k) @ (k, n)``; ``k`` of the real data."""

    m: float
    n: int
    k: float


def predict_us(
    kernel: Kernel,
    gpu: Gpu,
    resident: Collection[str] = (),
    constants: Constants = CONSTANTS,
) -> float:
    """Predicted time of ``kernel`` on ``gpu``, microseconds.

    Args:
        kernel: Its tensors, constants, products and operand type are used.
        gpu: The GPU it runs on.
        resident: Names of its inputs that are in L2 when it starts.
        constants: The model's constants.
    """
    memory = memory_us(kernel, gpu, resident, constants)
    if not kernel.flops:
        return constants.launch_us + memory
    work = _products(kernel, gpu, constants)
    exposed = work.ramp_us + min(memory, work.us) / work.waves
    limited = power_us(kernel, gpu)  # case 5
    return constants.launch_us + max(max(memory, work.us) + exposed, limited)


def with_predictions(
    kernels: Sequence[Kernel], gpu: Gpu, constants: Constants = CONSTANTS
) -> tuple[Kernel, ...]:
    """The same kernels, in launch order, each with ``predicted_us`` on ``gpu``.

    A tensor is in L2 for a kernel when it and all that was touched since it was last written or
    read fit in ``l2_kept`` of L2.
    """
    room = constants.l2_kept * gpu.l2_bytes
    touched_at: dict[str, float] = {}  # tensor name -> bytes touched by the engine up to then
    clock = 0.0
    predicted = []
    for kernel in kernels:
        resident = {
            tensor.name
            for tensor in kernel.inputs
            if tensor.name in touched_at and clock - touched_at[tensor.name] + tensor.nbytes <= room
        }
        time_us = predict_us(kernel, gpu, resident, constants)
        predicted.append(dataclasses.replace(kernel, predicted_us=time_us))
        clock += kernel.activation_bytes + kernel.weights_bytes
        touched_at.update({tensor.name: clock for tensor in (*kernel.inputs, *kernel.outputs)})
    return tuple(predicted)


def memory_us(
    kernel: Kernel,
    gpu: Gpu,
    resident: Collection[str] = (),
    constants: Constants = CONSTANTS,
) -> float:
    """Time to move a kernel's tensors and constants, microseconds (case 1)."""
    total = kernel.activation_bytes + kernel.weights_bytes
    dram_bytes = _dram_bytes(kernel, gpu, resident, constants)
    dram_us = dram_bytes / (gpu.bandwidth_gbs * 1e3 * gpu.dram_efficiency)
    per_clock = constants.l2_bytes_per_clock
    if kernel.compiler_type.lower() in _REFORMAT_WORDS:
        per_clock = constants.reformat_bytes_per_clock
    elif kernel.type is KernelType.POOL:
        per_clock = constants.pool_bytes_per_clock
    narrowed_us = 0.0
    if not kernel.flops:
        narrowed = sum(math.prod(t.shape) for t in kernel.outputs if t.dtype in _EIGHT_BIT)
        narrowed_us = narrowed / (constants.narrowed_per_clock * gpu.sm_clocks_per_us)
    return max(dram_us, total / (per_clock * gpu.sm_clocks_per_us), narrowed_us)


def _dram_bytes(kernel: Kernel, gpu: Gpu, resident: Collection[str], constants: Constants) -> int:
    """Bytes that do not stay in L2: inputs that are not there, outputs that do not fit, weights."""
    room = constants.l2_kept * gpu.l2_bytes
    read = sum(tensor.nbytes for tensor in kernel.inputs if tensor.name not in resident)
    written = sum(tensor.nbytes for tensor in kernel.outputs if tensor.nbytes > room)
    return read + written + kernel.weights_bytes


@dataclasses.dataclass(frozen=True)
class _Products:
    """Time of a kernel's multiply-adds, in how many waves, and the ramp around them."""

    us: float
    waves: float
    ramp_us: float


def _products(kernel: Kernel, gpu: Gpu, constants: Constants) -> _Products:
    dtype = kernel.compute_dtype
    product = as_product(kernel)
    if product is None or dtype in _CUDA_CORE_DTYPES or _is_grouped(kernel, product):  # case 3
        peak = gpu.peak_tflops(dtype if dtype == "int8x4" else "fp32")
        flops = kernel.flops if product is None else 2 * product.m * product.n * product.k
        return _Products(flops / (peak * 1e6 * constants.cuda_core_efficiency), math.inf, 0.0)
    if kernel.type is KernelType.ATTENTION:
        return _attention(kernel, gpu, constants)  # case 4
    return _tiled(product, dtype, gpu, constants)  # case 2


def as_product(kernel: Kernel) -> Product | None:
    """View a convolution, GEMM or attention as one matrix product; None when shapes are missing.

    Convolution ``(N, C, H, W) -> (N, Co, Ho, Wo)``: ``m = N Ho Wo``, ``n = Co``,
    ``k = C / groups * taps``, C rounded up to 16 bytes. GEMM ``(..., K) -> (..., n)``.
    """
    if not kernel.inputs or not kernel.outputs or not kernel.flops:
        return None
    out = kernel.outputs[0].shape
    is_image = kernel.type is KernelType.CONVOLUTION and len(out) > 2
    n = out[1] if is_image else (out[-1] if out else 0)
    size = math.prod(out)
    if n < 1 or size < 1:
        return None
    m = size / n
    if "pool" in kernel.compiler_type.lower() and kernel.weights_bytes:
        # The pooled output hides the convolution's: its weights give k, and so m.
        weights = kernel.weights_bytes / _DTYPE_BYTES.get(kernel.compute_dtype, 1)
        m = kernel.flops / (2 * weights)
    k = kernel.flops / (2 * m * n)
    return Product(m, n, k * (_channel_padding(kernel, k) if is_image else 1.0))


def _channel_padding(kernel: Kernel, k: float) -> float:
    """How much longer k gets when the input's channels are rounded up to one access."""
    channels = max(kernel.inputs[0].shape[1], 1) if len(kernel.inputs[0].shape) > 2 else 1
    if k < channels:
        return 1.0  # grouped: the width of a group is not known
    access_bytes = _DP4A_BYTES if kernel.compute_dtype == "int8x4" else _ACCESS_BYTES
    access = access_bytes / _DTYPE_BYTES.get(kernel.compute_dtype, 1)
    return max(access / channels, 1.0)


def _is_grouped(kernel: Kernel, product: Product) -> bool:
    """Fewer products a value than input channels: each output reads a part of the channels."""
    shape = kernel.inputs[0].shape
    return kernel.type is KernelType.CONVOLUTION and len(shape) > 2 and product.k < shape[1]


def _tiled(product: Product, dtype: str, gpu: Gpu, constants: Constants) -> _Products:
    peak = gpu.peak_tflops(dtype) * 1e6 * constants.tensor_core_efficiency / gpu.sm_count
    l2_per_us = constants.l2_bytes_per_clock * gpu.sm_clocks_per_us
    value_bytes = _DTYPE_BYTES.get(dtype, 1)
    fastest = _Products(math.inf, 1, constants.tile_ramp_us)
    for rows, columns in TILES:
        tiles = math.ceil(product.m / rows) * math.ceil(product.n / columns)
        waves = math.ceil(tiles / gpu.sm_count)
        products_us = waves * 2 * rows * columns * product.k / peak
        operands_us = tiles * (rows + columns) * product.k * value_bytes / l2_per_us
        time_us = max(products_us, operands_us)
        if (time_us, -waves) < (fastest.us, -fastest.waves):
            fastest = _Products(time_us, waves, constants.tile_ramp_us)
    return fastest


def _attention(kernel: Kernel, gpu: Gpu, constants: Constants) -> _Products:
    shape = kernel.inputs[0].shape  # Q: (..., queries, head size)
    peak = gpu.peak_tflops(kernel.compute_dtype) * 1e6 * constants.tensor_core_efficiency
    peak *= _MMA_PART.get(gpu.capability, 1.0)
    if len(shape) < 2 or not 8 <= shape[-1] <= 256:  # Q, K and V packed in one tensor
        return _Products(kernel.flops / peak, math.inf, constants.tile_ramp_us)
    blocks, queries, head_size = math.prod(shape[:-2]), shape[-2], shape[-1]
    keys = kernel.flops / (4 * head_size * max(blocks * queries, 1))
    query_tiles = math.ceil(queries / _ATTENTION_TILE)
    scores = blocks * query_tiles * math.ceil(keys / _ATTENTION_TILE) * _ATTENTION_TILE**2
    exponentials_us = scores / (EXPONENTIALS_PER_CLOCK_SM * gpu.sm_clocks_per_us)
    waves = math.ceil(blocks * query_tiles / gpu.sm_count)
    time_us = 4 * scores * head_size / peak + exponentials_us
    return _Products(time_us, waves, constants.tile_ramp_us)
