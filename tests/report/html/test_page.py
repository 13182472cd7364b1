"""The page: self-contained, nothing unescaped, its numbers those of the document."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fuseq.errors import ModelError
from fuseq.report import document_json
from fuseq.report.document import Document
from fuseq.report.html import render, write_report
from fuseq.report.html.charts import Bar, bars
from fuseq.report.html.markup import text
from fuseq.report.shares import by_precision, by_type, shares
from tests.report.html.documents import DOCUMENT, QUANTIZED, engine, hostile, kernel
from tests.report.html.parsing import Page

GOOD = Page(render(DOCUMENT))


def numbers_of(row: Any) -> set[float]:
    """Every number of a document, and the number of entries of every list in it."""
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return set().union(*(numbers_of(getattr(row, f.name)) for f in dataclasses.fields(row)))
    if isinstance(row, tuple):
        return set().union({float(len(row))}, *(numbers_of(item) for item in row))
    return {float(row)} if isinstance(row, (int, float)) and not isinstance(row, bool) else set()


def test_every_number_is_the_documents_own() -> None:
    grouped = [
        s for e in DOCUMENT.engines for key in (by_type, by_precision) for s in shares(e, key)
    ]
    derived = {share.time_us for share in grouped} | {float(share.kernels) for share in grouped}
    places = {float(i) for e in DOCUMENT.engines for i in range(1, len(e.kernels) + 1)}
    allowed = numbers_of(DOCUMENT) | derived | places
    shown = [float(each["value"]) for each in GOOD.all("data")]
    assert len(shown) > 100
    assert [value for value in shown if value not in allowed] == []


def test_kernel_times_stand_in_the_page_unrounded() -> None:
    shown = {each["value"] for each in GOOD.all("data")}
    for row in (*DOCUMENT.engines[0].kernels, *DOCUMENT.engines[1].kernels):
        assert repr(row.predicted_us) in shown
    assert repr(DOCUMENT.engines[1].predicted_us) in shown
    assert repr(DOCUMENT.comparisons[0].outputs[0].sqnr_db) in shown


def test_page_of_a_document_is_page_of_its_json(tmp_path: Path) -> None:
    document_json.save(DOCUMENT, tmp_path / "report.json")
    assert render(document_json.load(tmp_path / "report.json")) == render(DOCUMENT)


def test_predicted_and_measured_are_told_apart() -> None:
    measured = engine("quantized", "INT8", (kernel("k", "gemm", "int8", 5.0, (), measured_us=7.5),))
    page = Page(render(Document("profile", "0.1.0", "m", engines=(measured,))))
    chips = [each["class"] for each in page.all("span") if "chip" in each.get("class", "")]
    assert {"chip measured", "chip predicted"} <= set(chips)
    assert "Measured" in page.text and "Predicted" in page.text
    only = Page(render(dataclasses.replace(DOCUMENT, comparisons=())))
    body = [each["class"] for each in only.all("span") if each.get("class") == "chip measured"]
    assert len(body) == 1  # the legend at the foot of the page


def test_uncertainty_is_that_of_the_engine() -> None:
    document = dataclasses.replace(DOCUMENT, engines=(engine("q", "Q", QUANTIZED.kernels, 0.37),))
    assert "\N{PLUS-MINUS SIGN} 37 %" in Page(render(document)).text


@pytest.mark.parametrize("attribute", ["src", "href", "action", "data", "poster", "srcset"])
def test_nothing_is_loaded(attribute: str) -> None:
    values = [each[attribute] for _, each in GOOD.elements if attribute in each]
    assert [value for value in values if not value.startswith("#")] == []


def test_styles_and_scripts_reach_for_nothing() -> None:
    assert not re.search(r"url\(|@import|https?:", "".join(GOOD.styles))
    code = GOOD.scripts[-1]
    assert not re.search(
        r"\bfetch\(|XMLHttpRequest|import\(|innerHTML|insertAdjacent|eval\(|https?:", code
    )


def test_policy_allows_exactly_the_pages_own_script() -> None:
    policy = next(e["content"] for e in GOOD.all("meta") if e.get("http-equiv"))
    kinds = [each.get("type", "") for each in GOOD.all("script")]
    code = [text for text, kind in zip(GOOD.scripts, kinds, strict=True) if not kind]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code]
    assert "default-src 'none'" in policy
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes


def test_hostile_names_stay_text() -> None:
    page = Page(render(hostile(DOCUMENT)))
    plain = Page(render(DOCUMENT))
    assert {name for name, _ in page.elements} == {name for name, _ in plain.elements}
    assert len(page.all("script")) == len(plain.all("script"))
    assert page.all("img") == []
    for name, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on")], name
    assert "onerror=alert(1)" in page.text  # it is shown, as text


def test_control_characters_do_not_reach_the_page() -> None:
    text = render(hostile(DOCUMENT))
    assert [char for char in set(text) if not char.isprintable() and char != "\n"] == []
    assert "\ufffd[31m\ufffd\ufffd" in text


def test_data_of_the_graph_cannot_end_its_script() -> None:
    pytest.importorskip("fast_sugiyama", reason="the report extra is not installed")
    page = Page(render(hostile(DOCUMENT)))
    at = next(i for i, each in enumerate(page.all("script")) if each.get("id") == "graph-data")
    data = json.loads(page.scripts[at])
    assert any("<img src=x" in name for name in data["views"][0]["names"])
    assert "<" not in page.scripts[at]


def test_same_document_same_page() -> None:
    assert render(DOCUMENT) == render(DOCUMENT)


def test_an_empty_document_has_a_page() -> None:
    page = Page(render(Document("check", "0.1.0", "empty.onnx")))
    assert "empty.onnx" in page.text
    assert page.all("canvas") == []


def test_findings_carry_their_rules_pages() -> None:
    assert "About FQ101" in GOOD.text
    assert "A kernel of its own reads a whole tensor and writes it again" in GOOD.text
    assert "costs 4.1" in GOOD.text


def test_a_rule_of_another_version_has_no_page() -> None:
    strange = dataclasses.replace(DOCUMENT.findings[0], code="FQ999", rule="new-rule")
    page = Page(render(dataclasses.replace(DOCUMENT, findings=(strange,))))
    assert "FQ999 new-rule" in page.text and "About FQ999" not in page.text


def test_every_jump_in_the_page_lands() -> None:
    identities = {each["id"] for _, each in GOOD.elements if "id" in each}
    assert len(identities) == sum("id" in each for _, each in GOOD.elements)
    for link in GOOD.all("a"):
        assert link["href"].removeprefix("#") in identities


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")
    bad = dataclasses.replace(QUANTIZED, kernels=(kernel("k", "gemm", "int8", float("nan"), ()),))
    with pytest.raises(ValueError, match="JSON"):
        write_report(page, dataclasses.replace(DOCUMENT, engines=(bad,)))
    assert page.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html"]
    with pytest.raises(ModelError, match="cannot be written"):
        write_report(tmp_path / "missing" / "report.html", DOCUMENT)


def test_every_layer_says_its_precision_and_why_it_is_float() -> None:
    """K23 and K99: what is still float, and the precision of each layer in the engine."""
    assert "conv block: 1 of 2 quantized" in GOOD.text
    assert "float: deformable attention has no int8 kernel" in GOOD.text
    planned = [text for text in GOOD.cells("layers-table") if text in ("int8", "fp16")]
    assert planned == ["int8", "int8", "fp16", "fp16"]


def test_the_first_tensor_that_differs_is_named() -> None:
    """K105: compared layer by layer."""
    assert "The error first jumps at r: 30 times what its inputs carry" in GOOD.text


def test_the_headline_is_the_comparison_of_the_last_engine() -> None:
    """A deployment also compares the float engine with the file: its agreement is not the headline."""
    (mine,) = DOCUMENT.comparisons
    perfect = dataclasses.replace(mine.outputs[0], top1=1.0, sqnr_db=90.125)
    float_row = dataclasses.replace(mine, other="float", outputs=(perfect,), tensors=(), metrics=())
    for rows in ((float_row, mine), (mine, float_row)):
        text = Page(render(dataclasses.replace(DOCUMENT, comparisons=rows))).text
        assert "Top-1 agreement98.4 %64 samples, measuredSQNR 31.7 dB" in text


def test_slowest_quantizers_are_named_with_their_time() -> None:
    assert "Slowest Q/DQ and casts, INT8q04.1 \N{MICRO SIGN}s predicted" in GOOD.text


def test_bars_of_groups_leave_room_for_the_longest_label_of_all() -> None:
    """So that the bars of groups one above the other begin alike, whichever engines each shows."""
    rows = [Bar(text("INT8"), 1.0, text("1 us"), "after")]
    assert 'style="--letters:13"' in bars(rows, labels=["FP16, no Q/DQ", "INT8"])
    assert "--letters" not in bars(rows)
