"""Modules that the command line puts off: a command runs without them, and whoever asks has them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PUT_OFF = "import sys\nfrom fuseq.cli.later import put_off_imports\nput_off_imports()\n"


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PUT_OFF + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_graphs_are_read_without_sympy() -> None:
    code = """
import onnx_ir as ir
value = ir.Value(name="x", shape=ir.Shape(["batch", 3]), type=ir.TensorType(ir.DataType.FLOAT))
print(value.shape, "sympy.core" in sys.modules)
"""
    assert _run(code) == "[batch,3] False"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import onnx_ir as ir\nprint(ir.SymbolicDim('n') * 2 + 1)", "2*n + 1"),
        ("import sympy\nprint(sympy.Symbol('n') * 2)", "2*n"),
        ("from sympy import Symbol\nprint(Symbol('n') * 2)", "2*n"),
        ("import sympy.core\nprint(sympy.core.Symbol('n') * 2)", "2*n"),
        ("from sympy.core.symbol import Symbol\nprint(Symbol('n') * 2)", "2*n"),
    ],
)
def test_whoever_asks_for_sympy_has_it(code: str, shown: str) -> None:
    assert _run(code) == shown
