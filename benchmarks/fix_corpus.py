"""The corpus of `fuseq fix`: files that the real tools write, and what fix makes of them.

    python fix_corpus.py make OUT --python zoo=ENV/bin/python --python modelopt=... --python ort=... \
        --python nncf=... --python torchao=...
    python fix_corpus.py keep OUT ../tests/data/fix_corpus      # the tiny files, without metadata, as test data
    python fix_corpus.py table OUT --target tensorrt-rtx:sm89 --target tensorrt-rtx:sm80

`make` exports seven tiny networks (corpus/nets.py) and quantizes them with each tool in its own environment;
what exists is not made again. `table` runs where fuseq is installed and takes other folders of this shape too:
OUT/<tool>/<model>-<variant>.onnx, OUT/float/<model>.onnx and .npz (--float FOLDER, --data FILE).
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_KEPT_BYTES = 200_000


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of the corpus: ``arguments`` go to the tool's script behind model, data and output."""

    tool: str
    net: str
    variant: str
    environment: str
    script: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.tool}/{self.net}-{self.variant}"


def modelopt_onnx(net: str, fmt: str) -> Entry:
    return Entry("modelopt-onnx", net, fmt, "modelopt", "modelopt_onnx.py", ("--format", fmt))


def ort(net: str, setting: str) -> Entry:
    arguments = ("--setting", setting, "--skip-symbolic-shape")
    return Entry("ort-static", net, setting, "ort", "ort_static.py", arguments)


def nncf(net: str, preset: str, *more: str) -> Entry:
    return Entry("nncf-onnx", net, preset, "nncf", "nncf_onnx.py", ("--preset", preset, *more))


def in_torch(tool: str, net: str, variant: str, environment: str) -> Entry:
    return Entry(tool, net, variant, environment, "../corpus/quantize_torch.py", (variant,))


def entries() -> list[Entry]:
    """Every file of the corpus."""
    return [
        *(modelopt_onnx(net, "int8") for net in ("resnet", "mobilenet", "efficientnet", "vit")),
        *(modelopt_onnx(net, "int8") for net in ("text", "unet", "convnext")),
        *(modelopt_onnx(net, "fp8") for net in ("resnet", "efficientnet", "vit", "text")),
        *(ort(net, "default") for net in ("resnet", "text")),
        *(ort(net, "best") for net in ("efficientnet", "vit", "unet")),
        *(ort(net, "s8s8") for net in ("mobilenet", "convnext")),
        *(ort(net, "u8u8") for net in ("mobilenet", "vit")),
        *(ort(net, "qoperator") for net in ("resnet", "mobilenet", "unet")),
        *(ort(net, "tensorrt") for net in ("resnet", "unet")),
        *(Entry("ort-dynamic", n, "int8", "ort", "ort_dynamic.py") for n in ("vit", "text")),
        *(nncf(net, "performance") for net in ("resnet", "unet")),
        nncf("mobilenet", "mixed"),
        *(nncf(net, "performance", "--transformer") for net in ("vit", "text")),
        *(in_torch("torchao", net, "pt2e-xnnpack", "torchao") for net in ("resnet", "convnext")),
        *(in_torch("torchao", net, "pt2e-x86", "torchao") for net in ("mobilenet", "vit")),
        in_torch("torchao", "resnet", "pt2e-qat", "torchao"),
        *(in_torch("torch-fx", net, "fx-qat", "torchao") for net in ("resnet", "mobilenet")),
        *(
            in_torch("modelopt-torch", net, "modelopt-int8", "modelopt")
            for net in ("resnet", "vit")
        ),
        in_torch("modelopt-torch", "vit", "modelopt-fp8", "modelopt"),
    ]


def make(out: Path, pythons: dict[str, str], only: str) -> None:
    """Run every tool whose environment is given, one at a time; a tool that fails leaves its log."""
    out = out.resolve()
    floats = out / "float"
    if not floats.is_dir() and "zoo" in pythons:
        script = str(HERE / "corpus" / "export_float.py")
        subprocess.run([pythons["zoo"], script, str(floats)], check=True)
    for entry in entries():
        file = out / f"{entry.name}.onnx"
        if (
            entry.environment not in pythons
            or file.exists()
            or not fnmatch.fnmatch(entry.name, only)
        ):
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        python, script = pythons[entry.environment], str(HERE / "other_tools" / entry.script)
        if entry.script.endswith("quantize_torch.py"):
            command = [python, script, *entry.arguments, entry.net, str(file)]
        else:
            data = [str(floats / f"{entry.net}{end}") for end in (".onnx", ".npz")]
            command = [python, script, *data, str(file), *entry.arguments]
        with file.with_suffix(".log").open("w") as log, tempfile.TemporaryDirectory() as folder:
            # tools leave files where they run
            done = subprocess.run(command, stdout=log, stderr=log, check=False, cwd=folder)
        print(entry.name, "made" if file.exists() else f"failed ({done.returncode})", flush=True)


def keep(out: Path, kept: Path) -> None:
    """Copy the files without metadata (module paths and stack traces of whoever made them).

    Raises:
        SystemExit: A file is larger than test data may be.
    """
    import onnx  # noqa: PLC0415

    for file in sorted(out.glob("*/*.onnx")):
        model = onnx.load(file)
        del model.metadata_props[:]
        for part in (model, model.graph):
            part.doc_string = ""
        for item in (*model.graph.node, *model.graph.value_info, *model.graph.input,
                     *model.graph.output):  # fmt: skip
            item.doc_string = ""
            del item.metadata_props[:]
        del model.graph.metadata_props[:]
        target = kept / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(model.SerializeToString())
        if target.stat().st_size > MOST_KEPT_BYTES:
            raise SystemExit(f"{target} has {target.stat().st_size} bytes, over {MOST_KEPT_BYTES}")


def files_of(out: Path, only: str) -> Iterator[Path]:
    for file in sorted(out.glob("*/*.onnx")):
        if file.parent.name != "float" and fnmatch.fnmatch(f"{file.parent.name}/{file.stem}", only):
            yield file


def table(options: argparse.Namespace) -> None:
    """One process a file and target, so that a crash costs one row; rows are kept in a JSON file."""
    rows = []
    script = str(HERE / "corpus" / "fix_one.py")
    for file in files_of(options.out, options.only):
        for target in options.target:
            command = [sys.executable, script, str(file), target, "--batch", str(options.batch)]
            for name in ("float", "data"):
                if getattr(options, name):
                    command += [f"--{name}", str(getattr(options, name))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = done.stdout.strip().splitlines()
            row = json.loads(lines[-1]) if lines else {"error": done.stderr.strip()[-300:]}
            rows.append({"file": f"{file.parent.name}/{file.stem}", "target": target, **row})
            print(markdown_row(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print(summary(rows))


COLUMNS = ("before_us", "float_us", "own_us", "fixed_us", "stranded", "pairs", "cosine",
           "cosine_in_place", "float_before", "float_after", "kept", "bit_equal", "half_equal")  # fmt: skip
HEAD = "| file | target | " + " | ".join(COLUMNS) + " |"


def markdown_row(row: dict[str, object]) -> str:
    cells = [str(row["file"]), str(row["target"])]
    if row.get("error"):
        return "| " + " | ".join([*cells, f"error: {row['error']}"]) + " |"
    return (
        "| "
        + " | ".join([*cells, *("" if row[c] is None else str(row[c]) for c in COLUMNS)])
        + " |"
    )


def summary(rows: list[dict[str, object]]) -> str:
    """What issue 3 asks of the corpus, counted."""
    good = [row for row in rows if not row.get("error")]

    def count(test: object) -> str:
        return f"{sum(bool(test(row)) for row in good)} of {len(rows)}"  # type: ignore[operator]

    scales = [sum(int(str(row[c])) for row in good) for c in ("kept", "bit_equal", "half_equal")]
    return "\n".join(
        (
            f"parse and build: {len(good)} of {len(rows)}",
            f"no stranded Q or DQ: {count(lambda r: r['stranded'] == 0)}",
            f"not above the float engine: {count(lambda r: r['fixed_us'] <= r['float_us'] * 1.0005)}",
            f"within 2 % of own PTQ: {count(lambda r: r['fixed_us'] <= r['own_us'] * 1.02)}",
            f"cosine to the file >= 0.999: {count(lambda r: (r['cosine'] or 0) >= 0.999)}",
            f"the same in place: {count(lambda r: (r['cosine_in_place'] or 0) >= 0.999)}",
            "not farther from the float model than the file (0.0005): "
            + count(lambda r: r["float_after"] >= (r["float_before"] or 0) - 0.0005),
            f"scales of tensors quantized before and after: {scales[0]}, bit-equal {scales[1]}, "
            f"equal after rounding to FP16 {scales[2]}",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("--python", action="append", default=[], help="environment=interpreter")
    keeping = commands.add_parser("keep")
    showing = commands.add_parser("table")
    for each in (making, keeping, showing):
        each.add_argument("out", type=Path)
    for each in (making, showing):
        each.add_argument("--only", default="*", help="glob on tool/net-variant")
    keeping.add_argument("kept", type=Path)
    showing.add_argument("--target", action="append", default=[])
    showing.add_argument("--batch", type=int, default=8)
    showing.add_argument("--float", type=Path, help="folder of the float models")
    showing.add_argument("--data", type=Path, help=".npz with calibration and comparison samples")
    showing.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.command == "make":
        pythons = dict(entry.split("=", 1) for entry in options.python)
        make(options.out, pythons, options.only)
    elif options.command == "keep":
        keep(options.out, options.kept)
    else:
        options.target = options.target or ["tensorrt-rtx:sm89", "tensorrt-rtx:sm80"]
        print(HEAD + "\n" + "| --- " * (2 + len(COLUMNS)) + "|")
        table(options)


if __name__ == "__main__":
    main()
