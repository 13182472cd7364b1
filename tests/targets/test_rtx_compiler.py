"""A model is the same after it was compiled, whether it was compiled or refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import onnx_ir as ir
import pytest

from fuseq.errors import TargetError
from fuseq.model import profile_for
from fuseq.targets import parse_target
from tests.graphs import conv_net


@pytest.mark.parametrize("refused", [False, True])
def test_weights_are_held_by_the_model_after_it_was_compiled(refused: bool) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    model = conv_net()
    if refused:
        model.graph[0].op_type = "NoSuchOperator"
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    message = ir.to_proto(model).SerializeToString()
    target = parse_target("tensorrt-rtx:sm89", None)
    if refused:
        with pytest.raises(TargetError):
            target.compile(model, profile_for(model))
    else:
        assert target.compile(model, profile_for(model)).kernels
    assert all(model.graph.initializers[name].const_value is t for name, t in before.items())
    assert ir.to_proto(model).SerializeToString() == message


def test_models_compiled_from_two_threads_have_their_own_layers_and_no_warning() -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    target = parse_target("tensorrt-rtx:sm89", None)
    models = [conv_net() for _ in range(4)]
    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(lambda model: target.compile(model, profile_for(model)), models))
    alone = target.compile(models[0], profile_for(models[0]))
    for engine in engines:
        assert engine.kernels == alone.kernels
        assert engine.notes == alone.notes
