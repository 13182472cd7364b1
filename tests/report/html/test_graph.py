"""Layout, boxes and data of the drawn graph."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import random
import sys

import pytest

from fuseq.errors import MissingExtraError
from fuseq.report.html import render
from fuseq.report.html.graph_boxes import boxes
from fuseq.report.html.graph_layout import LAYER_STEP, LONGEST_ROUTED, NODE_WIDTH, layered, routed
from fuseq.report.html.graph_views import graph_data
from tests.report.html.documents import DOCUMENT
from tests.report.html.parsing import Page

drawn = pytest.mark.skipif(
    importlib.util.find_spec("fast_sugiyama") is None, reason="the report extra is not installed"
)
RESIDUAL = [edge for i in range(0, 40, 4) for edge in ((i, i + 1), (i + 1, i + 2), (i + 2, i + 3), (i, i + 3), (i + 3, i + 4))]  # fmt: skip


@drawn
def test_readers_stand_below_what_they_read() -> None:
    points = layered(41, RESIDUAL).points
    assert all(points[reader][1] > points[source][1] for source, reader in RESIDUAL)


@drawn
def test_nodes_of_a_layer_do_not_overlap() -> None:
    edges = [(0, i) for i in range(1, 9)] + [(i, 9) for i in range(1, 9)]
    points = layered(10, edges).points
    across = sorted(x for x, y in points if y == LAYER_STEP)
    assert len(across) == 8
    assert all(right - left >= NODE_WIDTH for left, right in itertools.pairwise(across))


@drawn
def test_blocks_stand_under_each_other() -> None:
    points = layered(41, RESIDUAL).points
    assert {points[i][0] for i in range(0, 41, 4)} == {points[0][0]}


@drawn
def test_an_edge_bends_around_the_nodes_that_it_passes() -> None:
    layout = layered(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert set(layout.bends) == {(0, 3)}
    assert [y for _, y in layout.bends[0, 3]] == [LAYER_STEP, 2 * LAYER_STEP]
    xs = {x for x, _ in layout.bends[0, 3]}
    assert all(abs(x - layout.points[1][0]) > NODE_WIDTH / 2 for x in xs)


def test_long_edges_are_not_routed_unless_a_node_has_no_other() -> None:
    chain = [(i, i + 1) for i in range(LONGEST_ROUTED + 10)]
    mask, last = len(chain) + 1, len(chain)
    _, kept = routed(mask + 1, [*chain, (0, last), (mask, last), (mask, last - 1)])
    assert (0, last) not in kept
    assert (mask, last - 1) in kept  # the shorter of the two
    assert set(chain) <= set(kept)


@drawn
def test_parts_cycles_and_single_nodes_are_placed() -> None:
    layout = layered(7, [(0, 1), (1, 2), (2, 0), (3, 4)])
    assert len(layout.points) == 7
    assert len(set(layout.points)) == 7


@drawn
def test_layout_repeats() -> None:
    assert layered(41, RESIDUAL) == layered(41, RESIDUAL)


def test_a_kernel_is_a_box_only_around_its_own_nodes() -> None:
    column = [(0, 0), (0, 66), (0, 132), (0, 198)]
    clean, mixed = boxes(column, [5, 5, -1, -1]), boxes(column, [5, 7, 5, 7])
    assert [(box.kernel, box.alone) for box in clean] == [(5, True)]
    assert (clean[0].top, clean[0].bottom) == (-25, 91)
    assert [(box.kernel, box.alone) for box in mixed] == [(5, False), (7, False)]


def test_a_kernel_of_one_node_has_no_box() -> None:
    assert boxes([(0, 0), (300, 0)], [1, 2]) == ()


@drawn
def test_views_hold_nodes_tensors_scales_and_kernels() -> None:
    data = graph_data(DOCUMENT)
    onnx, kernels, beside = data["views"]
    assert [view["kind"] for view in data["views"]] == ["onnx", "kernels", "kernels"]
    assert onnx["names"] == ["x", "x_q", "x_dq", "conv", "relu", "fc", "y"]
    words = data["words"]
    assert [words[i] for i in onnx["kinds"]] == ["end", "q", "dq", "", "", "", "end"]
    assert onnx["kernels"] == [-1, 0, 1, 1, 1, 2, -1]
    assert [edge[:2] for edge in onnx["edges"]] == [[i, i + 1] for i in range(6)]
    by_name = {tensor[0]: tensor[1:] for tensor in onnx["tensors"]}
    assert by_name["x8"] == [[8, 3, 8, 8], "int8", 1536, [0.0123, 0.0123], 1]
    assert by_name["x"] == [["N", 3, 8, 8], "fp32", None, None, 0]
    assert [box[0] for box in onnx["boxes"]] == [1]
    assert kernels["names"] == ["q0", "conv_q", "gemm_q"]
    assert beside["engine"] == 0
    assert data["engines"][1]["kernels"][1][5] == 15.5


@drawn
def test_kernels_without_an_onnx_file_are_a_graph() -> None:
    document = dataclasses.replace(DOCUMENT, graphs=())
    assert [view["kind"] for view in graph_data(document)["views"]] == ["kernels", "kernels"]


@drawn
def test_layers_without_outputs_are_accepted() -> None:
    """K97: TensorRT's TrainStation layers have no outputs."""
    engine = DOCUMENT.engines[1]
    station = dataclasses.replace(engine.kernels[0], name="[trainStation1]", inputs=(), outputs=())
    changed = dataclasses.replace(engine, kernels=(*engine.kernels, station))
    page = Page(render(dataclasses.replace(DOCUMENT, engines=(changed,))))
    assert "[trainStation1]" in page.text


def test_without_the_extra_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_sugiyama", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fuseq\[report\]'"):
        graph_data(DOCUMENT)
    page = Page(render(DOCUMENT))
    assert "pip install 'fuseq[report]'" in page.text
    assert page.all("canvas") == []
    assert "conv_q" in page.text


def test_nodes_stand_where_edges_are_short() -> None:
    """A weight's DQ belongs to its layer, not to the top; an unread copy of the input to the top."""
    chain = [(i, i + 1) for i in range(20)]
    weights = [(30 + i, i) for i in range(5, 20)]
    unread = [(0, 30 + i) for i in range(15)]
    assert routed(50, [*chain, *weights])[0] == "down"
    assert routed(50, [*chain, *unread])[0] == "up"


@drawn
def test_a_tangled_graph_is_laid_out_soon() -> None:
    """The network simplex would take minutes here, and the test would not end."""
    chance = random.Random(1)
    edges = [(max(0, i - chance.randint(1, 50)), i) for i in range(1, 3000) for _ in range(2)]
    assert len(set(layered(3000, edges).points)) == 3000
