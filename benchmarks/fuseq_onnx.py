"""fuseq itself, measured the way the other tools are.

python fuseq_onnx.py MODEL.onnx CALIB.npz OUT.onnx --format int8 --method max --target tensorrt-rtx:sm89
"""

# ruff: noqa: PLC0415 - the import is timed apart from the work
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "other_tools"))

from measure import Job, parser, report


def main() -> int:
    methods = ("max", "percentile", "entropy", "mse")
    arguments = parser(__doc__ or "", ("int8", "fp8"), methods)
    arguments.add_argument("--target", default="tensorrt-rtx:sm89")
    arguments.add_argument("--policy", choices=("pays", "full"), default="pays")
    options = arguments.parse_args()

    def prepare() -> Job:
        import fuseq

        def job() -> None:
            fuseq.quantize(
                options.model,
                options.output,
                format=options.format,
                target=options.target,
                calib=options.data,
                method=options.method,
                policy=options.policy,
                batch=options.batch,
            )

        return job

    settings = {
        "model": options.model,
        "format": options.format,
        "method": options.method,
        "target": options.target,
        "policy": options.policy,
        "batch": options.batch,
    }
    return report("fuseq", settings, options.output, prepare)


if __name__ == "__main__":
    raise SystemExit(main())
