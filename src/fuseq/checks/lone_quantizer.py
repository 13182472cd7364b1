"""FQ101: a Q or DQ that runs as a kernel of its own where staying in float is faster."""

from __future__ import annotations

from collections.abc import Iterator

from fuseq.checks.context import Context
from fuseq.checks.finding import Finding
from fuseq.checks.rule import Fixable, Rule
from fuseq.targets.base import Kernel, KernelType

_WORDS = {
    KernelType.QUANTIZE: "only quantizes",
    KernelType.DEQUANTIZE: "only dequantizes",
    KernelType.CAST: "only changes the type",
}
_FIX = (
    "leave the layers that it serves in float, or quantize what stands before it so that it fuses; "
    "`fuseq fix` plans both anew"
)


def _check(context: Context) -> Iterator[Finding]:
    """1. With a model and both engines: kernels alone in cells that lose against float.

    2. With an engine from files: every Q or DQ alone; one that reads the engine's own input is a
       note, because nothing stands before it that could absorb it.
    """
    engine = context.engine
    if engine is None:
        return
    written = {tensor.name for kernel in engine.kernels for tensor in kernel.outputs}
    for kernel in engine.alone:
        if context.target is not None:  # case 1
            node = _quantizer_of(context, kernel)
            if node and context.cells is not None and not context.gains(node):
                yield _finding(context, kernel, node, False)
        elif kernel.type is not KernelType.CAST:  # case 2
            is_first = all(tensor.name not in written for tensor in kernel.inputs)
            yield _finding(context, kernel, kernel.nodes[-1] if kernel.nodes else "", is_first)


def _quantizer_of(context: Context, kernel: Kernel) -> str:
    """The Q or DQ of the file that the kernel runs; "" for a Cast that the compiler added."""
    for name in kernel.nodes:
        node = context.node_named(name)
        if node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            return name
    return ""


def _finding(context: Context, kernel: Kernel, node: str, is_first: bool) -> Finding:
    before = kernel.inputs[0].dtype if kernel.inputs else ""
    after = kernel.outputs[0].dtype if kernel.outputs else ""
    what = f"{before} to {after}" if before else f"a weight, to {after}"
    message = f"a kernel of its own {_WORDS[kernel.type]} ({what})"
    if context.cells is not None and context.target is not None:
        float_us, quantized_us = context.cells.times_of(node)
        message += (
            f"; the layers around it take {quantized_us:.1f} us with their Q/DQ and "
            f"{float_us:.1f} us in float (predicted)"
        )
    fix = _FIX
    if is_first:
        message += "; it reads the model's own input, where nothing could absorb it"
        fix = (
            "feed the engine quantized values, or leave the first layer in float if that is faster"
        )
    return RULE.finding(
        context, node, message, fix,
        tensor=kernel.inputs[0].name if kernel.inputs else "",
        cost=context.cost_of((kernel,)),
        confirmed=not context.simulated,
        severity="note" if is_first else None,
    )  # fmt: skip


RULE = Rule(
    code="FQ101",
    name="lone-quantizer",
    severity="warning",
    summary="A Q or DQ runs as a kernel of its own and does not pay.",
    fixable=Fixable("unsafe", "planning anew changes which layers are quantized"),
    check=_check,
    reads="engine",
)
