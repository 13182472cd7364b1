"""Run every other tool on the same models and data, one at a time, each in its own environment.

    python quantize_all.py ZOO DATA OUT --python modelopt=ENV/bin/python --python nncf=ENV/bin/python

ZOO and DATA are what zoo.py and calib_data.py made. Writes OUT/<tool>/<model>-<format>[-variant].onnx,
a .json with times and memory beside each and a .log with what the tool said. Rows whose .json exists
are skipped. Standard library alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import subprocess
from pathlib import Path

TOOLS = Path(__file__).resolve().parent / "other_tools"
NETS = ("efficientnet_lite0", "efficientnet_b0", "mobilenetv2", "resnet50", "vit_s16")
ENCODERS = ("clip_text", "clip_image")
DATA_OF = {
    "clip_image": "calib_clip_image.npz",
    "clip_text": "calib_clip_text.npz",
    "minilm": "calib_minilm.npz",
    **{m: f"calib_{m}.npz" for m in ("yolov8n", "ppocr_detection", "ppocr_recognition")},
}
IN_PYTORCH = ("modelopt-torch", "torchao-pt2e")
"""Tools that build the network of zoo.py themselves: they get its name in place of a file."""

LONGEST_S = 1800
"""A quantization that takes longer is ended, and its row says so."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One quantization: ``variant`` is what the file name says about settings beyond the format."""

    tool: str
    environment: str
    script: str
    model: str
    number_format: str
    variant: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.tool}/{self.model}-{self.number_format}{variant}"


def modelopt_onnx(model: str, number_format: str, variant: str = "", *arguments: str) -> Row:
    return Row(
        "modelopt-onnx", "modelopt", "modelopt_onnx.py", model, number_format, variant, arguments
    )


def modelopt_torch(model: str, number_format: str) -> Row:
    return Row("modelopt-torch", "modelopt", "modelopt_torch.py", model, number_format)


def ort_static(model: str, setting: str, method: str) -> Row:
    return Row(
        "ort-static",
        "ort",
        "ort_static.py",
        model,
        "int8",
        f"{setting}-{method}",
        ("--setting", setting, "--method", method),
    )


def nncf_onnx(model: str, preset: str) -> Row:
    transformer = ("--transformer",) if model in ("vit_s16", "minilm", *ENCODERS) else ()
    arguments = ("--preset", preset, *transformer)
    return Row("nncf-onnx", "nncf", "nncf_onnx.py", model, "int8", preset, arguments)


def torchao(model: str, setting: str) -> Row:
    arguments = ("--setting", setting)
    return Row("torchao-pt2e", "torchao", "torchao_pt2e.py", model, "int8", setting, arguments)


def aimet(model: str, setting: str) -> Row:
    arguments = ("--setting", setting)
    return Row("aimet-onnx", "aimet", "aimet_qdq.py", model, "int8", f"{setting}-max", arguments)


def fuseq_onnx(
    model: str,
    number_format: str,
    target: str = "tensorrt-rtx:sm89",
    batch: int = 8,
    policy: str = "pays",
    method: str = "max",
) -> Row:
    variant = f"{target.partition(':')[2]}-b{batch}-{policy}-{method}"
    arguments = (
        *("--target", target, "--engine-batch", str(batch)),
        *("--policy", policy, "--method", method),
    )
    return Row("fuseq", "fuseq", "../fuseq_onnx.py", model, number_format, variant, arguments)


def fuseq_rows() -> list[Row]:
    """Each model and format for sm89 at two batches, INT8 for sm80 too, and the CPU."""
    lite0 = "efficientnet_lite0"
    models = (*NETS, "minilm", *ENCODERS)
    sm80, cpu = "tensorrt-rtx:sm80", "onnxruntime:cpu"
    return [
        *(fuseq_onnx(m, f, batch=b) for b in (8, 64) for f in ("int8", "fp8") for m in models),
        *(fuseq_onnx(m, "int8", sm80) for m in models),
        *(fuseq_onnx(m, "int8", cpu) for m in models),
        *(
            fuseq_onnx(lite0, "int8", cpu, policy="full", method=m)
            for m in ("max", "percentile", "entropy")
        ),
        *(fuseq_onnx(lite0, "int8", policy="full", method=m) for m in ("max", "entropy")),
        fuseq_onnx("resnet50", "int8", policy="full"),
        fuseq_onnx("minilm", "fp8", policy="full"),
    ]


def rows() -> list[Row]:
    """The whole plan, the cheap rows first."""
    lite0 = "efficientnet_lite0"
    return [
        *(modelopt_onnx(model, "int8") for model in NETS),
        *(modelopt_onnx(model, "fp8") for model in NETS),
        modelopt_onnx(lite0, "int8", "fp32", "--precision", "fp32"),
        modelopt_onnx(lite0, "int8", "entropy-fp32", "--method", "entropy", "--precision", "fp32"),
        *(modelopt_torch(model, "int8") for model in (lite0, "efficientnet_b0", "resnet50")),
        *(
            ort_static(lite0, setting, method)
            for setting in ("default", "best", "tensorrt")
            for method in ("minmax", "entropy", "percentile")
        ),
        *(ort_static(m, s, "minmax") for s in ("best", "tensorrt") for m in (*NETS[1:], "minilm")),
        nncf_onnx(lite0, "mixed"),
        *(nncf_onnx(model, "performance") for model in (*NETS, "minilm")),
        torchao(lite0, "default"),
        *(torchao(model, "symmetric") for model in (*NETS, "minilm")),
        aimet(lite0, "default"),
        *(aimet(model, "symmetric") for model in (*NETS, "minilm")),
        *(modelopt_onnx(model, "fp8") for model in ("minilm", *ENCODERS)),
        *(modelopt_onnx(model, "int8") for model in ("minilm", *ENCODERS)),
        *fuseq_rows(),
    ]


def run(row: Row, python: str, zoo: Path, data: Path, out: Path) -> None:
    """Run one row and print its JSON line; a tool that crashes or hangs leaves a row too."""
    target = out / f"{row.name}.onnx"
    result = target.with_suffix(".json")
    if result.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    model = row.model if row.tool in IN_PYTORCH else str(zoo / f"{row.model}.onnx")
    command = [
        *(python, str(TOOLS / row.script), model),
        *(str(data / DATA_OF.get(row.model, "calib.npz")), str(target)),
        *("--format", row.number_format, *row.arguments),
    ]
    log = target.with_suffix(".log")
    with log.open("w") as stream:
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                check=False,
                timeout=LONGEST_S,
            )
            ending = f"ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            ending = f"not ready after {LONGEST_S} s"
    if not result.exists():
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        result.write_text(
            json.dumps(failed(row, f"{ending}: {(said or ['no message'])[-1][:300]}"))
        )
    print(result.read_text().strip(), flush=True)


def failed(row: Row, error: str) -> dict[str, object]:
    """The JSON of a row that its tool did not write itself."""
    said = dict(zip(row.arguments[::2], row.arguments[1::2], strict=False))
    settings: dict[str, object] = {key.removeprefix("--"): value for key, value in said.items()}
    if "engine-batch" in settings:
        settings["plan_batch"] = int(said["--engine-batch"])
        del settings["engine-batch"]
    return {
        "tool": row.tool,
        "model": row.model,
        "format": row.number_format,
        **settings,
        "error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="environment=interpreter: modelopt, ort, nncf, fuseq",
    )
    parser.add_argument("--only", default="*", help="glob on tool/model-format-variant")
    options = parser.parse_args()
    pythons = dict(entry.split("=", 1) for entry in options.python)
    for row in rows():
        if fnmatch.fnmatch(row.name, options.only) and row.environment in pythons:
            run(row, pythons[row.environment], options.zoo, options.data, options.out)


if __name__ == "__main__":
    main()
