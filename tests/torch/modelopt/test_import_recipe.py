"""A quant_cfg becomes a plan on the exported graph: what it excludes stays float, and is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

from fuseq.errors import OptionError
from fuseq.modelopt.importing import Imported, import_recipe
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan, Region
from fuseq.quantizing import quantize
from tests.modelopt.nets import conv_input, conv_net

OFF = {"enable": False}
INT8 = {"num_bits": 8, "axis": None}
INT8_ROWS = {"num_bits": 8, "axis": 0}
OPTIONS = QuantizeOptions(policy="full", target="tensorrt:sm80")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("conv") / "conv.onnx"
    exported = torch.onnx.export(conv_net(), (conv_input(),), dynamo=True, verbose=False)
    assert exported is not None
    exported.save(str(file))
    return file


def regions(plan: Plan) -> dict[str, Region]:
    """Regions of layers by the kind of layer."""
    return {region.pattern: region for region in plan.regions if region.name.startswith("node_")}


def imported(graph: Path, quant_cfg: Any) -> Imported:
    return import_recipe(graph, quant_cfg, OPTIONS)


def test_both_spellings_give_one_plan(graph: Path) -> None:
    as_dict = {
        "*weight_quantizer": INT8_ROWS, "*input_quantizer": INT8, "*depth*": OFF, "default": OFF,
    }  # fmt: skip
    as_list = [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": INT8_ROWS},
        {"quantizer_name": "*input_quantizer", "cfg": INT8},
        {"quantizer_name": "*depth*", "enable": False},
    ]
    one, other = imported(graph, as_dict), imported(graph, as_list)
    assert one.planned.plan.tensors == other.planned.plan.tensors
    assert one.planned.plan.regions == other.planned.plan.regions
    found = regions(one.planned.plan)
    assert found["depthwise convolution"].reason == (
        "float: depthwise is excluded by '*depth*' of the ModelOpt recipe"
    )
    assert {name for name, region in found.items() if region.quantized} == {
        "conv block", "transposed convolution", "head",
    }  # fmt: skip


def test_each_glob_is_accounted_for(graph: Path) -> None:
    """Excluding globs name their layers, idle ones are named, whatever else is asked for as well."""
    found = imported(
        graph,
        [
            {"default": OFF},
            {"*weight_quantizer": INT8_ROWS},
            {"*input_quantizer": INT8},
            {"*_blocks_conv.2*_project_conv.1*output_quantizer": INT8},
            {"*stem*": OFF},
            {"*block*": OFF},
            {"nn.LayerNorm": {"*": OFF}},
            {"head.output_quantizer": INT8},
        ],
    )
    assert found.notes == (
        "quant_cfg '*_blocks_conv.2*_project_conv.1*output_quantizer' matched no quantizer of this "
        "model.",
        "quant_cfg 'nn.LayerNorm: *' matched no quantizer of this model.",
        "quant_cfg '*stem*' excluded 1 layer (stem).",
        "quant_cfg '*block*' excluded 1 layer (block).",
        "not in the plan: 2 quantizers (pool.input_quantizer, head.output_quantizer): no kernel of the "
        "plan reads a quantized tensor there.",
    )


def test_what_nothing_switched_on_is_told(graph: Path) -> None:
    found = imported(graph, {"default": OFF, "stem.*": INT8, "stem.output*": OFF})
    assert "the ModelOpt recipe switches nothing on in 4 layers (block, depthwise, up, head)." in (
        found.notes
    )
    quantized = [region for region in found.planned.plan.regions if region.quantized]
    assert [region.pattern for region in quantized] == ["conv block"]


def test_half_a_layer_stays_float(graph: Path) -> None:
    found = imported(graph, {"default": OFF, "*weight_quantizer": INT8_ROWS, "stem.input*": INT8})
    head = regions(found.planned.plan)["head"]
    assert head.reason == "float: the input_quantizer of head is off in the ModelOpt recipe"


def test_formats_are_read_and_others_listed(graph: Path) -> None:
    fp8 = {"num_bits": (4, 3), "axis": None}
    recipe = {
        "default": OFF, "*weight_quantizer": fp8, "*input_quantizer": fp8,
        "head.weight_quantizer": {"num_bits": 4, "block_sizes": {-1: 128}},
    }  # fmt: skip
    options = QuantizeOptions(policy="full", target="tensorrt-rtx:sm89", format="int8")
    found = import_recipe(graph, recipe, options)
    assert (found.options.format, found.planned.plan.format) == ("fp8", "fp8")
    problem = "num_bits 4 is neither 8 nor (4, 3)"
    assert f"not taken over: {problem} (1 quantizer (head.weight_quantizer))." in found.notes
    head = regions(found.planned.plan)["head"]
    assert head.reason == f"float: the weight_quantizer of head: {problem}"


def test_a_recipe_for_nothing_is_refused(graph: Path) -> None:
    with pytest.raises(OptionError, match="no weight quantizer of this model is switched on"):
        imported(graph, {"default": OFF})
    with pytest.raises(OptionError, match="num_bits 4 is neither"):
        imported(graph, {"default": OFF, "*weight_quantizer": {"num_bits": 4}})


def test_the_plan_can_be_applied(graph: Path, tmp_path: Path) -> None:
    recipe = {
        "default": OFF,
        "*weight_quantizer": INT8_ROWS,
        "*input_quantizer": INT8,
        "head*": OFF,
    }
    found = imported(graph, recipe)
    file = tmp_path / "q.onnx"
    quantize(graph, file, calib="random", plan=found.planned.plan, options=found.options)
    model = ir.load(file)
    stored = [value.dtype for value in model.graph.initializers.values() if _rank(value) == 4]
    assert stored == [ir.DataType.INT8] * 4
    assert "QuantizeLinear" in {node.op_type for node in model.graph}


def _rank(value: ir.Value) -> int:
    return len(value.shape or ())
