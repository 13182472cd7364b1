"""The kernels that really ran, from PyTorch's profiler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import onnx_ir as ir
import torch

from fuseq.model import input_specs
from fuseq.source_lines import source_line
from fuseq.targets.base import Engine, Kernel, KernelType, ShapeProfile, TensorInfo
from fuseq.targets.torch_cuda.compiled import Compiled
from fuseq.targets.torch_cuda.fusions import Linear
from fuseq.targets.torch_cuda.lowering import Fused, Lowered

_RUNS = 5
_WORDS = {
    torch.float8_e4m3fn: "fp8", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.float32: "fp32", torch.int8: "int8", torch.int32: "int32", torch.int64: "int64",
    torch.bool: "bool",
}  # fmt: skip
_KINDS = (
    (KernelType.MOVE, ("memcpy", "memset", "nchwtonhwc", "nhwctonchw")),
    (KernelType.ATTENTION, ("flash", "fmha", "attention", "sdpa")),
    (KernelType.NORMALIZATION, ("layer_norm", "group_norm", "rms_norm")),
    (KernelType.SOFTMAX, ("softmax",)),
    (KernelType.CONVOLUTION, ("conv", "fprop", "cudnn")),
    (KernelType.GEMM, ("gemm", "nvjet", "cutlass", "cublas")),
)
_QUANTIZE_WORDS = frozenset({"to", "copy", "clamp", "div", "view", "permute", "slice", "mul"})


def profiled(model: ir.Model, profile: ShapeProfile, target: str) -> Engine:
    """Compile, run and read the kernels with their median times over five runs.

    Kernels of ours carry shapes, bytes, FLOPs and the ONNX nodes they replace; they are met in the
    order of the graph. Kernels that torch.compile made carry their names, which list its operators.

    Raises:
        TargetError: An operator that this target does not run.
    """
    began = time.perf_counter()
    compiled = Compiled(model, torch.device("cuda"), graphs=False)
    inputs = [
        torch.zeros(profile.optimum[spec.name], dtype=_torch_type(spec.dtype), device="cuda")
        if not spec.dtype.is_floating_point()
        else torch.rand(profile.optimum[spec.name], device="cuda").to(_torch_type(spec.dtype))
        for spec in input_specs(model)
    ]
    for _ in range(2):
        compiled(*inputs)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    launches = _launches(compiled, inputs)
    lowered = compiled.lowered({name: tuple(profile.optimum[name]) for name in _names(model)})
    kernels = _kernels(launches, lowered, model)
    stored = sum(t.numel() * t.element_size() for t in lowered.module.buffers())
    notes = tuple(f"{node} runs in float: {why}" for node, why in lowered.left.items())
    return Engine(target, kernels, None, stored, seconds, notes)


def _names(model: ir.Model) -> list[str]:
    return [value.name or "" for value in model.graph.inputs]


def _torch_type(dtype: ir.DataType) -> torch.dtype:
    from fuseq.targets.torch_cuda.operators import TORCH_TYPES  # noqa: PLC0415

    return TORCH_TYPES[dtype]


def _launches(compiled: Compiled, inputs: list[torch.Tensor]) -> list[tuple[str, float]]:
    """Name and median microseconds of each launch of one call, in order."""
    runs: list[list[tuple[str, float]]] = []
    for _ in range(_RUNS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            compiled(*inputs)
            torch.cuda.synchronize()
        events = [event for event in found.events() or () if event.device_type.name == "CUDA"]
        events.sort(key=lambda event: event.time_range.start)
        runs.append([(str(event.name), float(event.device_time)) for event in events])
    lengths = {len(run) for run in runs}
    if len(lengths) > 1:
        runs = [run for run in runs if len(run) == min(lengths)]
    return [
        (runs[0][index][0], statistics.median(run[index][1] for run in runs))
        for index in range(len(runs[0]))
    ]


def _kernels(
    launches: Sequence[tuple[str, float]], lowered: Lowered, model: ir.Model
) -> tuple[Kernel, ...]:
    lines = {n.name or "": line for n in model.graph if (line := source_line(n)) is not None}
    ours = {
        "_gemm": [each for each in lowered.fused if isinstance(each.fusion, Linear)],
        "_attention": [
            each
            for each in lowered.fused
            if not isinstance(each.fusion, Linear) and "fuseq" in str(each.call.target)
        ],
    }
    kernels = []
    for name, elapsed_us in launches:
        waiting = ours.get(name)
        if waiting:
            kernels.append(_our_kernel(waiting.pop(0), name, elapsed_us, lines))
        else:
            kernels.append(Kernel(name, kind_of(name), name, (), (), measured_us=elapsed_us))
    return tuple(kernels)


def _our_kernel(fused: Fused, name: str, elapsed_us: float, lines: dict[str, str]) -> Kernel:
    nodes = tuple(node.name or "" for node in fused.fusion.nodes)
    first, second = (tensor_info(fused.call.args[slot]) for slot in (0, 1))
    output = tensor_info(fused.call)
    if isinstance(fused.fusion, Linear):
        residual = fused.call.args[4]
        read: tuple[TensorInfo, ...] = (
            (first,) if residual is None else (first, tensor_info(residual))
        )
        rows, depth = first.shape
        flops, weights = 2 * rows * depth * second.shape[0], second.nbytes
        kind = KernelType.GEMM
    else:
        read = (first, second, tensor_info(fused.call.args[2]))
        batch, heads, queries, size = first.shape
        flops, weights = 4 * batch * heads * queries * second.shape[2] * size, 0
        kind = KernelType.ATTENTION
    return Kernel(
        name=nodes[0],
        type=kind,
        compiler_type=name,
        inputs=read,
        outputs=(output,),
        weights_bytes=weights,
        flops=flops,
        compute_dtype=first.dtype,
        nodes=nodes,
        source_lines=tuple(dict.fromkeys(lines[node] for node in nodes if node in lines)),
        measured_us=elapsed_us,
    )


def tensor_info(argument: object) -> TensorInfo:
    """Shape, type and bytes of an argument of a call."""
    assert isinstance(argument, torch.fx.Node)
    value: torch.Tensor = argument.meta["val"]
    nbytes = value.numel() * value.element_size()
    return TensorInfo(argument.name, tuple(value.shape), _WORDS.get(value.dtype, "other"), nbytes)


def kind_of(name: str) -> KernelType:
    """What a kernel does, from its name: those of torch.compile list the operators that they fuse."""
    lowered = name.lower()
    for kind, words in _KINDS:
        if any(word in lowered for word in words) and not lowered.startswith("triton_poi"):
            return kind
    if lowered.startswith("triton_poi_fused_"):
        parts = lowered.removeprefix("triton_poi_fused_").split("_")
        used = {part for part in parts if part and not part.isdigit()}
        if used <= _QUANTIZE_WORDS and {"to", "copy"} <= used:
            return KernelType.QUANTIZE if "clamp" in used else KernelType.CAST
    return (
        KernelType.ELEMENTWISE
        if "triton" in lowered or "elementwise" in lowered
        else KernelType.OTHER
    )
