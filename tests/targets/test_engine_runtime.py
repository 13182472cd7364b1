"""What running an engine says where there is no GPU, and that the calls it makes exist.

Engines themselves run only on a GPU; the test that does so is skipped elsewhere.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from fuseq.compiling import compile_model
from fuseq.errors import MissingExtraError, TargetError
from fuseq.passes.typing import set_precision
from fuseq.targets.engine_files import engine_kind
from fuseq.targets.engine_runtime import lane, runner
from fuseq.targets.engine_runtime.cuda import call, gpu_missing, import_runtime
from fuseq.targets.engine_runtime.lane import DTYPES
from fuseq.targets.engine_runtime.runner import open_engine, runtime_missing
from fuseq.targets.tensorrt_rtx.compiler import import_compiler
from tests.graphs import conv_net

NO_GPU = gpu_missing()
without_gpu = pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
with_gpu = pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))


@pytest.fixture(scope="module")
def plan() -> bytes:
    model = conv_net()
    set_precision(model, "fp16")
    found = compile_model(model, "tensorrt-rtx:sm89", keep_plan=True).plan_bytes
    assert found is not None
    return found


def test_an_engine_is_told_from_a_model_by_its_first_bytes(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "e.engine"
    file.write_bytes(plan)
    assert engine_kind(file) == "tensorrt-rtx"
    file.write_bytes(b"ftrt" + plan[4:])
    assert engine_kind(file) == "tensorrt"
    file.write_bytes(b"\x08\x0a")
    assert engine_kind(file) is None


@without_gpu
def test_without_a_gpu_one_sentence_says_so(plan) -> None:  # type: ignore[no-untyped-def]
    assert runtime_missing("tensorrt-rtx") == NO_GPU
    assert "no GPU here" in str(NO_GPU)
    said = pytest.raises(TargetError, match="an engine runs on a GPU, and there is no GPU here")
    with said, open_engine(plan, "tensorrt-rtx"):
        pass


@without_gpu
def test_a_cuda_call_that_fails_names_itself_and_cudas_words() -> None:
    with pytest.raises(TargetError, match="cudaStreamCreate failed: CUDA driver"):
        call(import_runtime().cudaStreamCreate)


def test_every_cuda_call_exists_in_the_bindings() -> None:
    runtime = import_runtime()
    names = set(re.findall(r"_cuda\.(\w+)", inspect.getsource(lane)))
    assert {"cudaMalloc", "cudaGraphLaunch", "cudaEventElapsedTime"} <= names
    assert [name for name in names if not hasattr(runtime, name)] == []


def test_every_tensorrt_call_exists_in_the_bindings() -> None:
    trt = import_compiler()
    source = inspect.getsource(lane) + inspect.getsource(runner)
    for owner, pattern in (
        (trt.ICudaEngine, r"\bengine\.(\w+)"),
        (trt.IExecutionContext, r"\b_?context\.(\w+)"),
        (trt.IRuntimeConfig, r"\bconfig\.(\w+)"),
        (trt.EngineInspector, r"\binspector\.(\w+)"),
        (trt, r"\btrt\.(\w+)"),
    ):
        used = set(re.findall(pattern, source))
        assert used
        assert [name for name in used if not hasattr(owner, name)] == []


def test_every_type_of_an_input_is_known() -> None:
    names = {name for name in dir(import_compiler().DataType) if name.isupper()}
    # 4-bit and scale types are never inputs or outputs
    assert names - set(DTYPES) == {"INT4", "FP4", "E8M0"}


def test_full_tensorrt_that_is_not_installed_says_what_to_install() -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    if runtime_missing("tensorrt") is None:
        pytest.skip("TensorRT is installed")
    with pytest.raises(MissingExtraError, match=r"pip install 'fuseq\[trt\]'"):
        runner.import_tensorrt("tensorrt")


@with_gpu
def test_an_engine_runs_and_its_layers_are_timed(plan) -> None:  # type: ignore[no-untyped-def]
    feeds = {"x": np.random.default_rng(0).random((1, 16, 8, 8), np.float32)}
    with open_engine(plan, "tensorrt-rtx", cuda_graph=True) as engine:
        engine.upload(feeds)
        assert engine.run() > 0
        (output,) = engine.download().values()
        assert output.shape == (1, 16, 4, 4)
        assert np.isfinite(output.astype(np.float32)).all()
        assert all(us >= 0 for us in engine.layer_times_us(feeds, 3).values())
