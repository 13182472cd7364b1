"""The commands that build and time an engine with NVIDIA's own tools, on a machine with the GPU.

Flags: NVIDIA TensorRT documentation, "Performance Benchmarking using trtexec" (10 and 11;
``--stronglyTyped`` is needed up to 10 and accepted by 11), and TensorRT-RTX documentation, "Best
Practices" (the tool is called ``tensorrt_rtx`` there and has its own CUDA graph option).
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import PurePath

from fuseq.targets.base import ShapeProfile


@dataclasses.dataclass(frozen=True)
class Timed:
    """How long and how an engine is timed; the defaults are trtexec's, but for the CUDA graph.

    Attributes:
        warmup_ms: Untimed runs go on for this long.
        seconds: Timed runs go on for this long ...
        iterations: ... and until there are this many.
        streams: Inferences at a time.
        cuda_graph: Launch the whole engine as one CUDA graph.
    """

    warmup_ms: float = 200.0
    seconds: float = 3.0
    iterations: int = 10
    streams: int = 1
    cuda_graph: bool = True


def trtexec_command(
    model: str,
    *,
    rtx: bool = False,
    is_engine: bool | None = None,
    profile: ShapeProfile | None = None,
    timed: Timed | None = None,
) -> str:
    """One line for a shell: build ``model``, time it, profile it, and write all that fuseq reads.

    Args:
        model: ONNX file, or a serialized engine (``.engine``, ``.plan``, ``.rtxplan``).
        rtx: The command of TensorRT-RTX.
        is_engine: ``model`` is a serialized engine; None tells by the ending of its name.
        profile: Shapes of the dynamic inputs; None where every input is static, for which the tools
            refuse shapes.
        timed: How it is timed.
    """
    path = PurePath(model)
    if is_engine is None:
        is_engine = path.suffix in (".engine", ".plan", ".rtxplan")
    stem = str(path.with_suffix(""))
    words = ["tensorrt_rtx" if rtx else "trtexec"]
    if is_engine:
        words.append(f"--loadEngine={model}")
    else:
        words += [f"--onnx={model}", *([] if rtx else ["--stronglyTyped"])]
        words.append(f"--saveEngine={stem}{'.rtxplan' if rtx else '.plan'}")
    words += _shapes(profile, is_engine)
    words += _timing(timed or Timed(), rtx)
    words += [
        "--noDataTransfers",
        "--useSpinWait",
        "--separateProfileRun",
        "--profilingVerbosity=detailed",
        f"--exportTimes={stem}.times.json",
        f"--exportProfile={stem}.profile.json",
        f"--exportLayerInfo={stem}.layers.json",
    ]
    return shlex.join(words)


def _shapes(profile: ShapeProfile | None, is_engine: bool) -> list[str]:
    if profile is None:
        return []
    if is_engine or (profile.minimum is None and profile.maximum is None):
        return [f"--shapes={_spelled(profile.optimum)}"]
    return [
        f"--minShapes={_spelled(profile.minimum or profile.optimum)}",
        f"--optShapes={_spelled(profile.optimum)}",
        f"--maxShapes={_spelled(profile.maximum or profile.optimum)}",
    ]


def _spelled(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ",".join(
        f"{name}:{'x'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()
    )


def _timing(timed: Timed, rtx: bool) -> list[str]:
    words = [
        f"--warmUp={timed.warmup_ms:g}",
        f"--duration={timed.seconds:g}",
        f"--iterations={timed.iterations}",
    ]
    if timed.streams > 1:
        words.append(f"--infStreams={timed.streams}")
    if rtx:
        words.append(f"--rtxCudaGraphStrategy={'wholeGraph' if timed.cuda_graph else 'disable'}")
    elif timed.cuda_graph:
        words.append("--useCudaGraph")
    return words
