"""Target torch:cuda without a GPU: its plans, its fusions, and the same numbers on the CPU."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

torch = pytest.importorskip("torch")

import fuseq  # noqa: E402
import fuseq.torch  # noqa: E402
from fuseq import QuantizeOptions  # noqa: E402
from fuseq.errors import ModelError, OptionError, TargetError  # noqa: E402
from fuseq.targets import parse_target  # noqa: E402
from fuseq.targets.base import ShapeProfile  # noqa: E402
from fuseq.targets.torch_cuda.fusions import Attention, Linear  # noqa: E402
from fuseq.targets.torch_cuda.lowering import lower  # noqa: E402
from fuseq.targets.torch_cuda.target import TorchCuda  # noqa: E402
from fuseq.torch.compiling import compile as compile_plan  # noqa: E402

WIDTH, HEADS, LENGTH = 64, 2, 12


class Block(torch.nn.Module):
    """A transformer block behind an embedding table and a patch-like linear layer of 40 columns."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(1200, WIDTH)
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, 20)
        self.causal = causal

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.table(tokens)
        batch, length, width = x.shape
        y = self.first(x)
        parts = (
            layer(y).view(batch, length, HEADS, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))
        return {"logits": self.head(x), "last": x}


def tokens(batch: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 1200, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))


def prepared(fmt: str, causal: bool = False) -> Block:
    module = fuseq.torch.prepare(Block(causal).eval(), tokens(2), fmt, "torch:cuda")
    return fuseq.torch.calibrate(module, [tokens(4, seed) for seed in (1, 2)])


def test_only_cuda_is_a_device() -> None:
    with pytest.raises(OptionError, match="torch:cpu.*write torch:cuda"):
        parse_target("torch:cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_plans_but_does_not_compile() -> None:
    target = parse_target("torch:cuda")
    assert target.missing() is not None and "no NVIDIA GPU" in target.missing()
    with pytest.raises(TargetError, match="no NVIDIA GPU"):
        target.compile(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), ShapeProfile({}))


def test_the_plan_holds_what_its_kernels_run_and_says_why_not() -> None:
    found = fuseq.torch.prepared_of(prepared("fp8")).plan
    patterns = {
        (region.pattern, region.quantized, len(region.nodes) > 0) for region in found.regions
    }
    assert ("attention", True, True) in patterns and ("embedding table", True, True) in patterns
    refused = [
        region for region in found.regions if region.pattern == "linear" and not region.quantized
    ]
    assert len(refused) == 1  # the head: 20 columns
    assert refused[0].reason == "float: no kernel takes a weight of 64 x 20, no multiples of 16"


def test_int8_attention_stays_float_with_its_reason() -> None:
    found = fuseq.torch.prepared_of(prepared("int8")).plan
    reasons = [region.reason for region in found.regions if region.pattern == "attention"]
    assert reasons == ["float: attention has no INT8 kernel; PyTorch's FP16 one runs"]


@pytest.mark.parametrize(("fmt", "in_eight_bits"), [("fp8", True), ("int8", False)])
def test_a_block_is_six_kernels_of_ours(fmt: str, in_eight_bits: bool) -> None:
    model = fuseq.torch.export(prepared(fmt), None).model
    lowered = lower(model, {"tokens": (3, LENGTH)}, torch.device("cpu"))
    fusions = [each.fusion for each in lowered.fused]
    assert [type(fusion) for fusion in fusions] == [Linear, Attention, Linear, Linear, Linear]
    merged, attention, out, up, down = fusions
    assert isinstance(up, Linear) and isinstance(down, Linear) and isinstance(out, Linear)
    assert (merged.quantize is not None) is in_eight_bits  # Q, K and V leave the GEMM in FP8
    assert attention.quantize is not None  # the projection's input
    assert up.activation == "gelu" and up.quantize is not None
    assert out.residual is not None and down.residual is not None
    call = lowered.fused[1].call
    stored = call.args[0].meta["val"].dtype
    assert stored == (torch.float8_e4m3fn if in_eight_bits else torch.float16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fmt", ["fp8", "int8"])
def test_the_compiled_module_answers_like_the_module(fmt: str, causal: bool) -> None:
    module = prepared(fmt, causal)
    compiled = compile_plan(module, device="cpu")
    batch = tokens(3, 9)
    with torch.no_grad():
        expected = Block(causal).eval()(batch)
        faked = module(batch)
        found = compiled(batch)
        by_name = compiled(tokens=batch)
    assert set(found) == {"logits", "last"}
    for name in found:
        similarity = torch.nn.functional.cosine_similarity(
            found[name].double().flatten(), expected[name].double().flatten(), dim=0
        )
        twin = torch.nn.functional.cosine_similarity(
            found[name].double().flatten(), faked[name].double().flatten(), dim=0
        )
        assert similarity > 0.998 and twin > 0.999
        assert torch.equal(found[name], by_name[name])


def test_a_qdq_file_runs_as_onnx_runtime_runs_it(tmp_path) -> None:
    """In FP32, node by node: its integer kernels for the CPU saturate where the processor is old."""
    module = fuseq.torch.prepare(
        Block().eval(), tokens(2),
        options=QuantizeOptions(format="int8", target="torch:cuda", precision="fp32"),
    )  # fmt: skip
    fuseq.torch.calibrate(module, [tokens(4, 1)])
    file = tmp_path / "block.onnx"
    fuseq.torch.export(module, file)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(file, settings)
    batch = tokens(3, 9).numpy()
    expected = dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {"tokens": batch}),
            strict=True,
        )
    )
    found = TorchCuda().run(fuseq.load(file), {"tokens": batch})
    for name, array in expected.items():
        error = np.abs(found[name] - array)
        assert np.quantile(error, 0.9) < 1e-4 * array.std()
        assert error.max() < 0.05 * array.std()  # a value at a tie may fall either way


def test_weights_take_half_the_memory() -> None:
    compiled = compile_plan(prepared("fp8"), device="cpu")
    compiled(tokens(3))
    (lowered,) = compiled.run._lowered.values()
    stored = sum(t.numel() * t.element_size() for t in lowered.module.buffers())
    half = sum(parameter.numel() * 2 for parameter in Block().parameters())
    assert stored < 0.56 * half  # scales a row of 64 weigh more than those of 768


def test_another_number_of_axes_is_named() -> None:
    compiled = compile_plan(prepared("fp8"), device="cpu")
    with pytest.raises(ModelError, match="'tokens' has 2 axes, the tensor given has 3"):
        compiled(tokens(3)[None])


def test_an_argument_that_is_missing_is_named() -> None:
    compiled = compile_plan(prepared("fp8"), device="cpu")
    with pytest.raises(ModelError, match="'tokens' is missing"):
        compiled(None)
