"""CPU seconds of prepare, calibrate and a training step, beside the float model's own.

    OMP_NUM_THREADS=1 python benchmarks/torch_cost.py --model efficientnet_b0

CPU seconds of the process, not wall time, so that a busy machine does not show. Needs timm beside fuseq.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import timm
import torch
from torch import nn

import fuseq.torch
from fuseq.options import QuantizeOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="efficientnet_b0")
    parser.add_argument("--target", default="tensorrt:sm80")
    parser.add_argument("--format", default="int8")
    parser.add_argument("--batches", type=int, default=16)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(arguments.model, pretrained=False).eval()
    data = [torch.randn(8, 3, 224, 224) for _ in range(arguments.batches)]
    options = QuantizeOptions(format=arguments.format, target=arguments.target, policy="full")
    torch.onnx.export(nn.ReLU(), (torch.randn(1),), dynamo=True, verbose=False)  # its imports

    row: dict[str, object] = {"model": arguments.model, "batches": arguments.batches}
    row["float_forwards_cpu_s"] = seconds(lambda: forwards(model, data))
    holder: list[nn.Module] = []
    prepare = lambda: holder.append(fuseq.torch.prepare(model, data[0], options=options))  # noqa: E731
    row["prepare_cpu_s"] = seconds(prepare)
    net = holder[0]
    row["calibrate_cpu_s"] = seconds(lambda: fuseq.torch.calibrate(net, data))
    row["points"] = len(fuseq.torch.prepared_of(net).points.calls)
    row["prepared_forwards_cpu_s"] = seconds(lambda: forwards(net, data[:2])) * len(data) / 2
    for name, module in (("float", model), ("prepared", net)):
        module.train()
        step(module, data[0])
        row[f"{name}_step_cpu_s"] = seconds(lambda module=module: step(module, data[0]))
    print(json.dumps(row))


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
    return time.process_time() - started


if __name__ == "__main__":
    main()
