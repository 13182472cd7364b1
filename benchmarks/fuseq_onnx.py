"""fuseq itself, measured the way the other tools are.

python fuseq_onnx.py MODEL.onnx CALIB.npz OUT.onnx --format int8 --method max --target tensorrt-rtx:sm89
"""

# ruff: noqa: PLC0415 - the import is timed apart from the work
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "other_tools"))

from measure import Job, parser, report

from compile_one import sample_shapes


def main() -> int:
    methods = ("max", "percentile", "entropy", "mse")
    arguments = parser(__doc__ or "", ("int8", "fp8"), methods)
    arguments.add_argument("--target", default="tensorrt-rtx:sm89")
    arguments.add_argument("--policy", choices=("pays", "full"), default="pays")
    arguments.add_argument("--engine-batch", type=int, default=8, help="batch that is planned for")
    options = arguments.parse_args()

    def prepare() -> Job:
        import onnxruntime  # noqa: F401 - fuseq imports these three where it needs them
        import onnxscript.optimizer  # noqa: F401
        import tensorrt_rtx_bindings  # noqa: F401

        from fuseq import QuantizeOptions, quantize

        def job() -> None:
            chosen = QuantizeOptions(
                format=options.format,
                target=options.target,
                method=options.method,
                policy=options.policy,
                batch=options.engine_batch,
                shapes={
                    name: (options.engine_batch, *shape)
                    for name, shape in sample_shapes(options.data).items()
                },
            )
            quantize(options.model, options.output, calib=options.data, options=chosen)

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "target": options.target,
        "policy": options.policy,
        "plan_batch": options.engine_batch,
    }
    return report("fuseq", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
