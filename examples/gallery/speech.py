"""silero-vad, a network with an LSTM and If branches: what is quantized, what is not, and why.

    pip install --group gallery && pip install --no-deps silero-vad==6.2.3
    python examples/gallery/speech.py --out gallery-out

The state goes from chunk to chunk, so errors could add up: 400 chunks of 32 ms run in turn, each with the
state that the same file gave before. The sound is made here (vowels of three formants between pauses, with
noise), and what is judged is agreement with FP32 on "speech or not". Only the convolutions around the LSTM
are in the main graph; the LSTM is in a branch, and no target runs it in 8 bits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packages import installed
from rows import Feeds, Model, outputs_of
from tables import main

RATE_HZ = 16000
CARRIED = {"state": "stateN"}
"""Input that takes an output of the chunk before."""
CHUNK, CONTEXT = 512, 64
"""Samples that are new in each chunk, and those repeated of the chunk before, as silero-vad wants them."""
FORMANTS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
"""Three resonances of an adult's ah, ee, oo and eh (Peterson and Barney, 1952)."""


def models(out: Path) -> Sequence[Model]:
    """The network of 16 kHz, opset 15."""
    del out
    file = installed("silero_vad", "data/silero_vad_16k_op15.onnx")
    exact: list[np.ndarray] = []

    def judge(outputs: list[Feeds]) -> float:
        speech = np.array([batch["output"][0, 0] > 0.5 for batch in outputs])
        if not exact:  # the float model is judged first
            exact.append(speech)
        return 100 * float((exact[0] == speech).mean())

    model = Model(
        "silero_vad", file, {"input": (1, CONTEXT + CHUNK), "state": (2, 1, 128), "sr": ()},
        recorded(file, chunks(sound(8.0, seed=1))), chunks(sound(12.8, seed=2)),
        "chunks as in FP32", judge, carried=CARRIED,
    )  # fmt: skip
    return [model]


def sound(seconds: float, seed: int) -> np.ndarray:
    """Float32 [samples], -1 to 1: syllables of 0.1 to 0.4 s, pauses, and noise under both."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < seconds * RATE_HZ:
        if rng.random() < 0.3:
            parts.append(np.zeros(int(rng.uniform(0.2, 0.8) * RATE_HZ)))
        parts.append(_syllable(FORMANTS_HZ[int(rng.integers(len(FORMANTS_HZ)))], rng))
    clean = np.concatenate(parts)[: int(seconds * RATE_HZ)]
    return (clean + rng.normal(0, 0.003, len(clean))).astype(np.float32).clip(-1, 1)


def chunks(samples: np.ndarray) -> list[Feeds]:
    """Inputs of each chunk, with a state of zeros for the first to begin with."""
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    return [
        {
            "input": padded[None, start : start + CONTEXT + CHUNK],
            "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(RATE_HZ, np.int64),
        }
        for start in range(0, len(samples) - CHUNK + 1, CHUNK)
    ]


def recorded(file: Path, batches: list[Feeds]) -> list[Feeds]:
    """The batches with the states that the float model had in use: zeros alone would calibrate nothing."""
    outputs = outputs_of(file, batches, as_written=False, carried=CARRIED)
    later = (
        {**batch, "state": before["stateN"]}
        for batch, before in zip(batches[1:], outputs, strict=False)
    )
    return [batches[0], *later]


def _syllable(formants: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Pulses of a falling voice through three resonances, which rise and fade."""
    count = int(rng.uniform(0.1, 0.4) * RATE_HZ)
    pitch = np.linspace(rng.uniform(100, 220), rng.uniform(80, 160), count)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
    made = np.zeros(count)
    for harmonic in range(1, 30):
        hertz = harmonic * pitch
        gain = sum(1 / (1 + ((hertz - f) / (60 + 0.05 * f)) ** 2) for f in formants)
        made += gain * np.sin(harmonic * phase) / harmonic**0.5
    return 0.3 * made / np.abs(made).max() * np.sin(np.linspace(0, np.pi, count)) ** 0.5


if __name__ == "__main__":
    sys.exit(main(__doc__, models, "gallery-out"))
