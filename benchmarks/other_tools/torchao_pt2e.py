"""torchao's PT2E post-training quantization (torchao 0.18) and torch.onnx.export, INT8, on a CPU.

    python torchao_pt2e.py MODEL CALIB.npz OUT.onnx      # MODEL: resnet50, efficientnet_b0 ...

MODEL is a name of zoo.py; the same seed and BatchNorm statistics give the same weights as its ONNX
file. The quantizer is XNNPACK's, weights a channel. default: its configuration as it is; activations are
asymmetric, which TensorRT refuses. symmetric: the same with symmetric activations. Building the model
counts as import time.
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from measure import Job, parser, report


def main() -> int:
    arguments = parser(__doc__ or "", ("int8",), ("max",))
    arguments.add_argument("--setting", choices=("default", "symmetric"), default="default")
    options = arguments.parse_args()

    def prepare() -> Job:
        import numpy as np
        import torch
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.testing.pt2e._xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )

        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        import zoo

        arrays = dict(np.load(options.data))
        steps = zip(
            *(torch.from_numpy(array).split(options.batch) for array in arrays.values()),
            strict=True,
        )
        pixels = next(iter(arrays.values()))
        images = torch.from_numpy(pixels) if pixels.ndim == 4 else torch.zeros(8, 3, 224, 224)
        entry = zoo.build(options.model, images)

        def job() -> None:
            config = get_symmetric_quantization_config(is_per_channel=True)
            if options.setting == "symmetric":
                activation = dataclasses.replace(
                    config.input_activation, qscheme=torch.per_tensor_symmetric
                )
                config = dataclasses.replace(
                    config, input_activation=activation, output_activation=activation
                )
            captured = torch.export.export(
                entry.model, entry.arguments, dynamic_shapes=entry.dynamic
            ).module()
            prepared = prepare_pt2e(captured, XNNPACKQuantizer().set_global(config))
            with torch.no_grad():
                for step in steps:
                    prepared(*step)
            program = torch.onnx.export(
                convert_pt2e(prepared),
                entry.arguments,
                dynamo=True,
                optimize=False,
                input_names=entry.inputs,
                output_names=[entry.output],
                dynamic_shapes=entry.dynamic,
                verbose=False,
            )
            assert program is not None
            program.save(str(options.output))

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "setting": options.setting,
        "batch": options.batch,
    }
    return report("torchao-pt2e", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
