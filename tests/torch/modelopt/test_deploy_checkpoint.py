"""``fuseq deploy`` of a ModelOpt checkpoint: an input like a float model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fuseq.deployment.options import DeployOptions
from fuseq.deployment.running import deploy
from fuseq.errors import ModelError, OptionError
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan
from tests.modelopt.artefacts import DATA
from tests.modelopt.nets import text_input

OPTIONS = DeployOptions(
    quantize=QuantizeOptions(target="tensorrt:sm89", policy="full", batch=4), samples=4
)


def test_the_whole_way_from_a_checkpoint(tmp_path: Path) -> None:
    np.savez(tmp_path / "ids.npz", input_ids=text_input(count=8).numpy())
    calib = str(tmp_path / "ids.npz")
    done = deploy(DATA / "text_fp8", tmp_path / "out", calib=calib, options=OPTIONS)
    model = ir.load(tmp_path / "out" / "model.onnx")
    plan = Plan.load(tmp_path / "out" / "plan.json")
    stored = {value.dtype for value in model.graph.initializers.values()}
    assert ir.DataType.FLOAT8E4M3FN in stored
    assert (plan.format, plan.target) == ("fp8", "tensorrt:sm89")
    assert [r.quantized for r in plan.regions if r.pattern == "linear"] == [True] * 5
    assert [engine.format for engine in done.document.engines] == ["", "fp8"]
    assert done.kept == ()
    again = deploy(DATA / "text_fp8", tmp_path / "out", calib=calib, options=OPTIONS)
    assert {"quantize", "float-engine", "engine", "compare"} <= set(again.kept)


def test_what_cannot_be_deployed_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give the module that the weights belong to"):
        deploy(DATA / "conv_int8.pth", tmp_path / "out", calib="random", options=OPTIONS)
    plan = Plan("tensorrt:sm89", "fp8", "fp16", "full", "")
    options = dataclasses.replace(OPTIONS, plan=plan)
    with pytest.raises(OptionError, match="give one of the two"):
        deploy(DATA / "text_fp8", tmp_path / "out", calib="random", options=options)
    assert not (tmp_path / "out").exists()
