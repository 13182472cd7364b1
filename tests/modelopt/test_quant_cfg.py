"""Recipes in both spellings, against what the real ModelOpt made of them."""

from __future__ import annotations

from typing import Any

import pytest

from fuseq.errors import OptionError
from fuseq.modelopt.quant_cfg import apply_recipe, read_recipe
from tests.modelopt.artefacts import recorded

RECORDED = recorded("recipes.json")
OFF = {"enable": False}
INT8 = {"num_bits": 8, "axis": None}


def settings_of(quant_cfg: Any) -> dict[str, list[Any]]:
    applied = apply_recipe(read_recipe(quant_cfg), RECORDED["classes"])
    return {
        name: [setting.enabled, setting.attributes.num_bits, setting.attributes.axis]
        for name, setting in applied.settings.items()
    }


@pytest.mark.parametrize("name", RECORDED["recipes"])
def test_settings_are_those_of_the_real_modelopt(name: str) -> None:
    expected = RECORDED["found"][name]
    found = settings_of(RECORDED["recipes"][name])
    on = {name: how for name, how in found.items() if how[0]}
    wanted = {name: how for name, how in expected.items() if how[0]}
    assert {name: [how[0], _listed(how[1]), how[2]] for name, how in on.items()} == wanted
    assert set(found) == set(expected)


def test_default_is_applied_first_wherever_it_stands() -> None:
    first = {"default": OFF, "*weight_quantizer": INT8, "head*": OFF}
    last = {"*weight_quantizer": INT8, "head*": OFF, "default": OFF}
    assert settings_of(first) == settings_of(last)
    assert settings_of(last)["stem.weight_quantizer"] == [True, 8, None]
    assert read_recipe(first).notes == ()
    assert "0.47 would apply it at its place" in read_recipe(last).notes[0]


def test_a_whole_configuration_is_read_like_its_quant_cfg() -> None:
    assert read_recipe({"quant_cfg": {"*": OFF}, "algorithm": "max"}) == read_recipe({"*": OFF})


@pytest.mark.parametrize(
    ("cfg", "problem"),
    [
        ({"num_bits": 4, "block_sizes": {-1: 128}}, "num_bits 4 is neither 8 nor (4, 3)"),
        ({"num_bits": (2, 1)}, "num_bits (2, 1) is neither 8 nor (4, 3)"),
        ({"num_bits": True}, "num_bits True is neither 8 nor (4, 3)"),
        ({"num_bits": 8, "axis": (0, 1)}, "axis (0, 1) is neither one axis nor None"),
        ({"num_bits": 8, "unsigned": True}, "unsigned=True has no equivalent in an engine's Q/DQ"),
        ({"num_bits": (4, 3), "type": "dynamic"}, "type='dynamic' has no equivalent"),
        ([{"num_bits": 8}, {"num_bits": (4, 3)}], "is neither 8 nor (4, 3)"),
        ({"num_bits": 8, "narrow_range": True, "calibrator": "histogram"}, ""),
        ({"num_bits": [4, 3]}, ""),
    ],
)
def test_what_has_no_equivalent_says_so(cfg: Any, problem: str) -> None:
    entry = read_recipe([{"quantizer_name": "*", "cfg": cfg}]).entries[0]
    assert entry.attributes is not None
    assert (problem in entry.attributes.problem) if problem else entry.attributes.problem == ""


@pytest.mark.parametrize(
    ("quant_cfg", "message"),
    [
        ("*", "quant_cfg is a str"),
        ([3], "quant_cfg entry 0 is a int"),
        ([{"quantizer_name": "*"}], "says neither attributes nor enable"),
        ([{"quantizer_name": "*", "cfg": {}}], "says neither attributes nor enable"),
        ([{"quantizer_name": "*", "enabled": True}], "has the keys ['enabled']"),
        ([{"*a": OFF, "*b": OFF}], "has no quantizer_name"),
        ({len: OFF}, "functions as filters are not read"),
        ({"nn.Linear": None}, "needs a dict of globs"),
        ({"*": 8}, "has attributes of type int"),
    ],
)
def test_what_modelopt_would_not_take_is_refused(quant_cfg: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_recipe(quant_cfg)
    assert message in str(caught.value)


def _listed(bits: object) -> object:
    return list(bits) if isinstance(bits, tuple) else bits
