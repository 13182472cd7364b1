"""AIMET-ONNX's quantization simulation written as Q/DQ (aimet-onnx 2.42), INT8.

    python aimet_qdq.py MODEL.onnx CALIB.npz OUT.onnx --method max

default: its configuration of that name places the quantizers; activations are asymmetric, which TensorRT
refuses. symmetric: the same with symmetric activations. The file is what ``to_onnx_qdq`` gives.
"""

# ruff: noqa: PLC0415 - heavy packages are imported where they are needed, or timed
from __future__ import annotations

import json
import tempfile
from pathlib import Path

from measure import Job, parser, report


def main() -> int:
    arguments = parser(__doc__ or "", ("int8",), ("max", "mse"))
    arguments.add_argument("--setting", choices=("default", "symmetric"), default="default")
    options = arguments.parse_args()

    def prepare() -> Job:
        import aimet_onnx
        import numpy as np
        import onnx

        schemes = {"max": "min_max", "mse": "post_training_tf_enhanced"}

        def configuration() -> dict[str, object]:
            folder = Path(aimet_onnx.__file__).parent / "common" / "quantsim_config"
            chosen = json.loads((folder / "default_config_per_channel.json").read_text())
            if options.setting == "symmetric":
                chosen["defaults"]["ops"]["is_symmetric"] = "True"
                chosen["defaults"]["unsigned_symmetric"] = "False"
            return dict(chosen)

        def job() -> None:
            arrays = dict(np.load(options.data))
            count = len(next(iter(arrays.values())))
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "configuration.json"
                file.write_text(json.dumps(configuration()))
                simulated = aimet_onnx.QuantizationSimModel(
                    onnx.load(options.model),
                    param_type=aimet_onnx.int8,
                    activation_type=aimet_onnx.int8,
                    quant_scheme=schemes[options.method],
                    config_file=str(file),
                    providers=["CPUExecutionProvider"],
                )
            simulated.compute_encodings(
                {name: array[start : start + options.batch] for name, array in arrays.items()}
                for start in range(0, count, options.batch)
            )
            onnx.save(simulated.to_onnx_qdq(), options.output)

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "setting": options.setting,
        "batch": options.batch,
    }
    return report("aimet-onnx", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
