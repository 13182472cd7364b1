"""Two pretrained networks become quantized engines, on a machine that needs no GPU.

    make demo        # installs what it needs into .venv, then runs this file

EfficientNet-Lite0 becomes INT8 for this machine's CPU and for two GPUs, the MiniLM sentence encoder
becomes FP8 for a GPU. Files go to demo-out/. Times of GPUs are predicted, never measured here.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

import demo_image
import demo_text
import fuseq
from demo_models import export_minilm
from demo_steps import Steps
from demo_table import table_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the files")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 110)  # a pipe has no width of its own
    missing = fuseq.parse_target(demo_text.TARGET).missing()
    if missing is not None:
        console.print(f"error: {missing}", markup=False)
        return 2
    steps = Steps(console)
    started = time.monotonic()
    try:
        with steps.progress, ProcessPoolExecutor(1, get_context("spawn")) as beside:
            text_file = out / "minilm.onnx"
            exported = beside.submit(export_minilm, text_file)
            image_rows, image_sentences = demo_image.image_rows(out, steps)
            text_rows, text_sentences = demo_text.text_rows(text_file, exported, out, steps)
    except fuseq.FuseqError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    console.print()
    console.print(table_of(demo_image.TITLE, image_rows, "top1"))
    for sentence in image_sentences:
        console.print(f"- {sentence}", highlight=False)
    console.print()
    console.print(table_of(demo_text.TITLE, text_rows, "nearest"))
    for sentence in text_sentences:
        console.print(f"- {sentence}", highlight=False)
    seconds = time.monotonic() - started
    console.print(
        f"\n{seconds:.0f} s. The files are in {out}/; predicted means by fuseq's cost model."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
