"""Every tool on the same models and data, compiled by the same compiler, run on this CPU: one command.

    python bench.py OUT [--only 'GLOB'] [--python NAME=INTERPRETER ...]       # `make bench`

1. Builds the environment of each tool that a chosen row needs (environments.py), under OUT/env.
2. Makes the data and the float models that are wanted (calib_data.py, zoo.py), OUT/data and OUT/zoo.
3. Quantizes: one process a row (quantize_all.py), OUT/files.
4. Compiles all of it and asks how close it is to float (side_by_side.py).
5. Runs the INT8 files on this CPU, taking turns with the float model (cpu_race.py).
6. Writes OUT/bench.json and the page (bench_page.py).
What exists is not made again, so a run that was stopped goes on. GLOB, or several with spaces between them, is
on tool/model-format-variant, as in 'nncf-onnx/*' or '*/resnet50-int8*'. A tool that cannot be installed, crashes, or whose file the compiler
refuses keeps its row, with its words. Runs in fuseq's environment (fuseq[rtx]).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench_page
from environments import BuildError, Environments
from quantize_all import DATA_OF, Row, failed, rows, run
from side_by_side import REAL_WEIGHTS, Cache, closeness, quantization, table, wanted_target

HERE = Path(__file__).resolve().parent
CPU = "onnxruntime:cpu"
FP8_FROM_SM = 89
Table = dict[str, Any]


def prepared(environments: Environments, options: argparse.Namespace, models: set[str]) -> None:
    """Make the data and the float models that do not exist yet.

    Raises:
        SystemExit: The environment that makes them cannot be built, or a maker fails.
    """
    missing = sorted(name for name in models if not (options.zoo / f"{name}.onnx").is_file())
    commands = []
    if not (options.data / "calib.npz").is_file():
        commands.append([str(HERE / "calib_data.py"), str(options.data)])
    if missing:
        named = [word for name in missing for word in ("--model", name)]
        commands.append(
            [str(HERE / "zoo.py"), str(options.zoo), "--data", str(options.data), *named]
        )
    for command in commands:
        try:
            done = subprocess.run([environments.python("zoo"), *command], check=False)
        except BuildError as error:
            raise SystemExit(f"environment zoo: {error}") from error
        if done.returncode != 0:
            raise SystemExit(f"{Path(command[0]).name} ended with code {done.returncode}")


def quantized(environments: Environments, chosen: list[Row], options: argparse.Namespace) -> None:
    """Run every row that has no result yet; an environment that fails leaves its rows, to try again."""
    for row in chosen:
        result = options.files / f"{row.name}.json"
        if result.is_file() and json.loads(result.read_text()).get("no_environment"):
            result.unlink()
        try:
            python = environments.python(row.environment)
        except BuildError as error:
            result.parent.mkdir(parents=True, exist_ok=True)
            result.write_text(json.dumps({**failed(row, str(error)), "no_environment": True}))
            print(f"{row.name}: {error}", flush=True)
            continue
        run(row, python, options.zoo, options.data, options.files)


def compiled(models: list[str], options: argparse.Namespace) -> list[Table]:
    """The tables of the chosen models: one for each format, target and batch."""
    settings = argparse.Namespace(
        zoo=options.zoo, data=options.data, out=options.files, cache=options.cache, fidelity=True
    )
    made = []
    for model in models:
        for target in options.target:
            formats = (
                ("int8", "fp8") if int(target.partition("sm")[2]) >= FP8_FROM_SM else ("int8",)
            )
            for batch in options.batch:
                for number_format in formats:
                    lines = table(model, number_format, target, batch, settings)
                    head = {"model": model, "format": number_format, "target": target}
                    if len(lines) > 1:
                        made.append({**head, "batch": batch, "rows": lines})
    return made


def raced(model: str, options: argparse.Namespace) -> Table | None:
    """The model's INT8 files on this CPU, the float model first; None without any."""
    results = sorted(options.files.glob(f"*/{model}-int8*.json"))
    said = {result.with_suffix(".onnx"): quantization(result) for result in results}
    said = {file: row for file, row in said.items() if wanted_target(row, CPU)}
    files = [file for file in said if file.is_file()]
    if not said:
        return None
    lines = _times(model, files, options) if files else {}
    floating = options.zoo / f"{model}.onnx"
    first = {"tool": "FP32, no Q/DQ", **lines.get(str(floating), {})}
    own = [
        _with_closeness(model, f, {**r, **lines.get(str(f), {})}, options) for f, r in said.items()
    ]
    head = {"model": model, "format": "int8", "target": CPU, "batch": options.cpu_batch}
    return {**head, "rows": [first, *own]}


def _with_closeness(model: str, file: Path, row: Table, options: argparse.Namespace) -> Table:
    """The row with how close its file is to float, for models whose weights are real."""
    if not file.is_file() or model not in REAL_WEIGHTS:
        return row
    key = f"{file}|fidelity"
    close = options.cache.get(key, file)
    if close is None:
        close = closeness(model, options.zoo, options.data, file)
        close = options.cache.put(key, file, close)
    return {**row, **{name: value for name, value in close.items() if name != "mtime"}}


def _times(model: str, files: list[Path], options: argparse.Namespace) -> dict[str, Table]:
    """The lines of cpu_race.py, from the cache while no file has changed."""
    floating = options.zoo / f"{model}.onnx"
    stamps = [[str(file), file.stat().st_mtime] for file in (floating, *files)]
    key = f"{model}|race|{options.cpu_batch}|{options.threads}"
    known = options.cache.rows.get(key)
    if known and known["stamps"] == stamps:
        return dict(known["lines"])
    print(f"timing {len(files)} files of {model} on this CPU", flush=True)
    command = [sys.executable, str(HERE / "cpu_race.py"), str(floating)]
    command += [str(options.data / DATA_OF.get(model, "calib.npz")), *map(str, files)]
    command += ["--batch", str(options.cpu_batch), "--seconds", str(options.seconds)]
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return {str(file): {"cpu_error": f"code {done.returncode}"} for file in (floating, *files)}
    lines: dict[str, Table] = json.loads(done.stdout.splitlines()[-1])
    options.cache.put(key, floating, {"stamps": stamps, "lines": lines})
    return lines


def kept(file: Path, tables: list[Table]) -> list[Table]:
    """Tables of earlier runs, those of this run in their place, in the order of their names."""
    before: list[Table] = json.loads(file.read_text())["tables"] if file.is_file() else []
    both = {_name(one): one for one in (*before, *tables)}
    return [both[name] for name in sorted(both)]


def _name(one: Table) -> tuple[str, str, str, int]:
    return one["model"], one["format"], one["target"], one["batch"]


def parsed() -> argparse.Namespace:
    """The options, with the folders that depend on others filled in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="*", help="globs on tool/model-format-variant")
    parser.add_argument("--python", action="append", default=[], help="an environment that exists")
    parser.add_argument("--zoo", type=Path, help="folder of the float models; default OUT/zoo")
    parser.add_argument("--data", type=Path, help="folder of the data; default OUT/data")
    parser.add_argument("--files", type=Path, help="folder of the tools' files; default OUT/files")
    parser.add_argument("--target", action="append", help="default: tensorrt-rtx:sm89 and sm80")
    parser.add_argument("--batch", action="append", type=int, help="of the engines; default: 8")
    parser.add_argument("--cpu-batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing, each file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", type=Path, help="Markdown to write; default OUT/benchmarks.md")
    options = parser.parse_args()
    options.target = options.target or ["tensorrt-rtx:sm89", "tensorrt-rtx:sm80"]
    options.batch = options.batch or [8]
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("zoo", "data", "files"):
        setattr(options, name, (getattr(options, name) or options.out / name).resolve())
    options.files.mkdir(parents=True, exist_ok=True)
    options.cache = Cache(options.files / "side_by_side_cache.json", fresh=False)
    return options


def main() -> int:
    options = parsed()
    given = dict(entry.split("=", 1) for entry in options.python)
    globs = options.only.split()
    chosen = [row for row in rows() if any(fnmatch.fnmatch(row.name, glob) for glob in globs)]
    if not chosen:
        raise SystemExit(f"--only {options.only!r} names no row; `--only '*'` runs all")
    environments = Environments((options.out / "env").resolve(), given)
    models = list(dict.fromkeys(row.model for row in chosen))
    prepared(environments, options, set(models))
    quantized(environments, chosen, options)
    races = [one for model in models if (one := raced(model, options)) is not None]
    file = options.out / "bench.json"
    tables = kept(file, [*compiled(models, options), *races])
    about = bench_page.machine(options.threads)
    file.write_text(json.dumps({"about": about, "tables": tables}, indent=1))
    page = options.page or options.out / "benchmarks.md"
    page.write_text(bench_page.page(about, tables))
    print(f"{len(chosen)} rows, {len(tables)} tables: {file}, {page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
