"""Commands of a page, run as they are written, on tiny models in place of the demo's.

A fenced block runs when the line before it is ``<!-- runs -->``, or ``<!-- runs: exit 2 -->`` where
that is the exit code of its last command. Blocks run in the order of the page, in one folder.
"""

from __future__ import annotations

import dataclasses
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import onnx_ir as ir
from PIL import Image

from fuseq.cli.main import run
from fuseq.model import save
from tests.graphs import from_text, normal

BLOCK = re.compile(r"<!-- runs(?:: exit (\d))? -->\n```(\w+)\n(.*?)\n```", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, and the exit code of its last command."""

    language: str
    text: str
    exit_code: int

    @property
    def commands(self) -> list[list[str]]:
        """The arguments of each ``fuseq`` command; a backslash joins lines."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fuseq ")]


def blocks(page: Path) -> list[Block]:
    """The marked blocks of a Markdown page."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, text, int(code or 0)) for code, language, text in found]


def image_model() -> ir.Model:
    """Stands for EfficientNet-Lite0: photos in, logits out."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[batch, 3, 32, 32] input) => (float[batch, 10] logits) {
      c1 = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (input, w1)
      r1 = Relu(c1)
      c2 = Conv <kernel_shape = [1, 1]> (r1, w2)
      r2 = Relu(c2)
      p = GlobalAveragePool(r2)
      f = Flatten(p)
      logits = MatMul(f, w3)
    }"""
    return from_text(
        text,
        w1=normal(16, 3, 3, 3, seed=1),
        w2=normal(32, 16, 1, 1, seed=2),
        w3=normal(32, 10, seed=3),
    )


def text_model() -> ir.Model:
    """Stands for the sentence encoder: token numbers and a mask in, embeddings out."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (int64[batch, seq] input_ids, int64[batch, seq] attention_mask)
      => (float[batch, seq, 64] sentence_embedding)
    <int64[1] last = {-1}>
    {
      words = Gather(table, input_ids)
      mask = Cast <to = 1> (attention_mask)
      column = Unsqueeze(mask, last)
      x = Mul(words, column)
      h1 = MatMul(x, w1)
      a = Relu(h1)
      sentence_embedding = MatMul(a, w2)
    }"""
    return from_text(
        text,
        table=normal(100, 64, seed=4),
        w1=normal(64, 256, seed=5),
        w2=normal(256, 64, seed=6),
    )


def make_demo_files(folder: Path) -> None:
    """What `make demo` leaves, as far as the README names it."""
    photos = folder / "demo-out" / "photos" / "calibration"
    photos.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(4):
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    ids = random.integers(0, 100, (4, 12))
    np.savez(folder / "demo-out" / "sentences.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    save(image_model(), folder / "demo-out" / "efficientnet_lite0.onnx")
    save(text_model(), folder / "demo-out" / "minilm.onnx")


def run_blocks(page: Path, folder: Path) -> dict[str, int]:
    """Run a page's blocks in ``folder``, which is the working directory; how many of each language.

    The exit code of each block's last command is what its mark says, of those before it 0, and what
    a command writes with ``-o`` is there.
    """
    make_demo_files(folder)
    ran = {"bash": 0, "python": 0}
    for block in blocks(page):
        ran[block.language] += 1
        if block.language == "python":
            script = folder / f"block{ran['python']}.py"
            script.write_text(block.text, encoding="utf-8")
            runpy.run_path(str(script), run_name="__main__")
            continue
        codes = [run(arguments) for arguments in block.commands]
        assert codes == [0] * (len(codes) - 1) + [block.exit_code], block.text
        for arguments in block.commands:
            if "-o" in arguments and block.exit_code == 0:
                assert (folder / arguments[arguments.index("-o") + 1]).stat().st_size > 0
    return ran
