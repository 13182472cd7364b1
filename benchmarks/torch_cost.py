"""CPU seconds of prepare, calibrate and a training step, beside the float model's own, and ModelOpt's.

    OMP_NUM_THREADS=1 python benchmarks/torch_cost.py --model efficientnet_b0 --modelopt PYTHON

CPU seconds of the process, not wall time, so that a busy machine does not show. Needs timm beside fuseq.
``PYTHON`` is the interpreter of an environment with ModelOpt and timm; the same script runs there, on the
same model and data, right after fuseq.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable

import timm
import torch
from torch import nn

Row = dict[str, object]


def main() -> None:
    arguments = _arguments()
    torch.manual_seed(0)
    model = timm.create_model(arguments.model, pretrained=False).eval()
    data = [torch.randn(8, 3, 224, 224) for _ in range(arguments.batches)]
    row: Row = {"tool": arguments.tool, "model": arguments.model, "batches": arguments.batches}
    row["float_forwards_cpu_s"] = seconds(lambda: forwards(model, data))
    work = fuseq_row if arguments.tool == "fuseq" else modelopt_row
    net = work(model, data, row, arguments)
    row["quantized_forwards_cpu_s"] = seconds(lambda: forwards(net, data[:2])) * len(data) / 2
    for name, module in (("float", model), ("quantized", net)):
        module.train()
        step(module, data[0])
        row[f"{name}_step_cpu_s"] = seconds(lambda module=module: step(module, data[0]))
    print(json.dumps(row), flush=True)
    if arguments.modelopt:
        same = ["--model", arguments.model, "--batches", str(arguments.batches)]
        command = [arguments.modelopt, __file__, "--tool", "modelopt", *same]
        subprocess.run(command, check=True)


def fuseq_row(
    model: nn.Module, data: list[torch.Tensor], row: Row, arguments: argparse.Namespace
) -> nn.Module:
    """Prepare and calibrate with fuseq; every policy but ``full`` compiles as well."""
    import fuseq.torch  # noqa: PLC0415
    from fuseq.options import QuantizeOptions  # noqa: PLC0415

    options = QuantizeOptions(format=arguments.format, target=arguments.target, policy="full")
    torch.onnx.export(nn.ReLU(), (torch.randn(1),), dynamo=True, verbose=False)  # its imports
    holder: list[nn.Module] = []
    prepare = lambda: holder.append(fuseq.torch.prepare(model, data[0], options=options))  # noqa: E731
    row["prepare_cpu_s"] = seconds(prepare)
    row["calibrate_cpu_s"] = seconds(lambda: fuseq.torch.calibrate(holder[0], data))
    row["points"] = len(fuseq.torch.prepared_of(holder[0]).points.calls)
    return holder[0]


def modelopt_row(
    model: nn.Module, data: list[torch.Tensor], row: Row, arguments: argparse.Namespace
) -> nn.Module:
    """ModelOpt inserts and calibrates in one call; exporting to ONNX, which it does later, is not in it."""
    import copy  # noqa: PLC0415

    import modelopt.torch.quantization as mtq  # noqa: PLC0415

    net = copy.deepcopy(model)
    config = mtq.INT8_DEFAULT_CFG if arguments.format == "int8" else mtq.FP8_DEFAULT_CFG
    row["quantize_cpu_s"] = seconds(
        lambda: mtq.quantize(net, config, forward_loop=lambda module: forwards(module, data))
    )
    return net


def forwards(module: nn.Module, data: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for batch in data:
            module(batch)


def step(module: nn.Module, batch: torch.Tensor) -> None:
    module.zero_grad()
    module(batch).square().mean().backward()


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return round(time.process_time() - started, 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="efficientnet_b0")
    parser.add_argument("--target", default="tensorrt:sm80")
    parser.add_argument("--format", default="int8", choices=["int8", "fp8"])
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--tool", default="fuseq", choices=["fuseq", "modelopt"])
    parser.add_argument("--modelopt", metavar="PYTHON", help="time ModelOpt, too, with this Python")
    return parser.parse_args()


if __name__ == "__main__":
    main()
