"""NVIDIA ModelOpt's PyTorch quantizer (nvidia-modelopt 0.47) and its own ONNX export, on a CPU.

    python modelopt_torch.py MODEL CALIB.npz OUT.onnx --format int8   # MODEL: resnet50, efficientnet_b0 ...

MODEL is a name of zoo.py; the same seed and BatchNorm statistics give the same weights as its ONNX
file. Building the model counts as import time.
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

import sys
from pathlib import Path

from measure import Job, parser, report


def main() -> int:
    arguments = parser(__doc__ or "", ("int8", "fp8"), ("max",))
    arguments.add_argument("--precision", choices=("fp16", "fp32"), default="fp16")
    options = arguments.parse_args()

    def prepare() -> Job:
        import modelopt.torch.quantization as mtq
        import numpy as np
        import torch
        from modelopt.torch._deploy.utils import OnnxBytes, get_onnx_bytes_and_metadata

        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        import zoo

        arrays = dict(np.load(options.data))
        images = torch.from_numpy(next(iter(arrays.values())))
        model = zoo.build(options.model, images).model
        config = {"int8": mtq.INT8_DEFAULT_CFG, "fp8": mtq.FP8_DEFAULT_CFG}[options.format]

        def feed(module: torch.nn.Module) -> None:
            with torch.no_grad():
                for step in images.split(options.batch):
                    module(step)

        def job() -> None:
            quantized = mtq.quantize(model, config, feed)
            mtq.print_quant_summary(quantized)
            content, _ = get_onnx_bytes_and_metadata(
                quantized,
                (images[: options.batch],),
                model_name=options.output.stem,
                weights_dtype=options.precision,
            )
            OnnxBytes.from_bytes(content).write_to_disk(str(options.output.parent), clean_dir=False)

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "precision": options.precision,
        "batch": options.batch,
    }
    return report("modelopt-torch", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
