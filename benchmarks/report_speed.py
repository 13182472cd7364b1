"""How long a page takes: layout and writing on the CPU, and with --browser paint and frames in Chromium.

    python benchmarks/report_speed.py report.json ... [--nodes 5000] [--browser]

Frames are counted while the graph moves for 120 frames at five zooms. "script ms" is what the page's own code
takes of a frame by the clock; "CPU ms" is the processor time of all of Chromium's processes for a frame, which
other load on the machine disturbs least: 33 ms is 30 frames a second on one idle core.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from fuseq.report import document_json
from fuseq.report.document import (
    Document,
    EngineRow,
    GraphNode,
    GraphRow,
    GraphTensor,
    KernelRow,
    TensorRow,
)
from fuseq.report.html import write_report
from fuseq.report.html.graph_views import graph_data

OPERATORS = (
    *("Conv", "Relu", "QuantizeLinear", "DequantizeLinear", "MatMul"),
    *("Add", "LayerNormalization", "Mul", "Sigmoid", "Mul"),
)
MOVES = {
    "near": ("d.start(); d.scale = 0.9", "d.move(3, -12)"),
    "middle": ("d.scale = 0.3", "d.move(2, -12)"),
    "far": ("d.scale = 0.1", "d.move(0, -6)"),
    "whole": ("d.all()", "d.move(0, i % 2 ? 1 : -1)"),
    "zooming": ("d.start()", "d.zoom(i < 60 ? 0.95 : 1 / 0.95)"),
}
FRAMES = """
const done = arguments[0]; const d = document.getElementById('graph-stage').graph.drawing; SETUP;
let i = 0, own = 0; const start = performance.now(); const draw = d.draw.bind(d);
d.draw = () => { const from = performance.now(); draw(); own += performance.now() - from; };
const frame = () => {
  if (i++ < 120) { STEP; requestAnimationFrame(frame); return; }
  delete d.draw; done([120 / ((performance.now() - start) / 1000), own / 120]);
};
requestAnimationFrame(frame);
"""


def made_up(count: int) -> Document:
    """Residual blocks of ten operators, three nodes a kernel."""
    nodes: list[GraphNode] = []
    before = skip = "x"
    for i in range(count):
        op = OPERATORS[i % 10]
        inputs = (before, skip) if op == "Add" else (before,)
        precision = ("fp16", "fp8", "int8")[i % 3]
        nodes.append(GraphNode(f"/layers.{i // 10}/{op}_{i}", op, inputs, (f"t{i}",), precision, f"layers.{i // 10}", "model.py:1", i // 3))  # fmt: skip
        before = f"t{i}"
        skip = before if op == "Add" else skip
    tensors = tuple(GraphTensor(f"t{i}", (8, 64, 56, 56), "fp16", 3211264) for i in range(count))
    kernels = tuple(_kernel(i, nodes) for i in range((count + 2) // 3))
    engine = EngineRow(
        "quantized", "FP8", "tensorrt-rtx:sm89", False, "fp16", "fp8", "", None, "", 10**7, kernels,
        0, 20 * len(kernels), 10 * len(kernels), 1.5 * len(kernels), None, 0.2, 0.0,
    )  # fmt: skip
    graph = GraphRow("quantized", tuple(nodes), tensors, ("x",), (before,))
    return Document("check", "0", f"{count} nodes", engines=(engine,), graphs=(graph,))


def _kernel(i: int, nodes: list[GraphNode]) -> KernelRow:
    names = tuple(node.name for node in nodes[3 * i : 3 * i + 3])
    reads = (TensorRow(f"t{3 * i - 1}", (8, 64), "fp16", 10),)
    writes = (TensorRow(f"t{3 * i + 2}", (8, 64), "fp16", 10),)
    return KernelRow(f"kernel_{i}", "gemm", "gemm", "fp16", "fp16", False, reads, writes, 10, 20, 10, 1.5, None, names, f"layers.{i // 3}", ())  # fmt: skip


def measure(name: str, document: Document, browser: bool) -> None:
    start = time.process_time()
    views = graph_data(document)["views"]
    layout_s = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        start = time.process_time()
        write_report(page, document)
        page_s = time.process_time() - start
        nodes = len(views[0]["names"]) if views else 0
        print(f"{name}: {nodes} nodes, layout {layout_s:.2f} CPU s, page {page_s:.2f} CPU s, {page.stat().st_size / 1e6:.2f} MB")  # fmt: skip
        if browser and views:
            in_browser(page)


def in_browser(page: Path) -> None:
    driver = chromium()
    try:
        driver.get(page.as_uri())
        paint = driver.execute_script("return performance.getEntriesByName('first-paint')[0]?.startTime")  # fmt: skip
        print(f"  first paint {paint:.0f} ms")
        driver.execute_script("document.getElementById('graph').scrollIntoView()")
        while not driver.execute_script("return !!document.getElementById('graph-stage').graph"):
            time.sleep(0.05)
        for name, (setup, step) in MOVES.items():
            code = FRAMES.replace("SETUP", setup).replace("STEP", step)
            before = processor_s(driver)
            rate, own = driver.execute_async_script(code)
            cpu_ms = (processor_s(driver) - before) * 1e3 / 120
            print(
                f"  {name}: {rate:.0f} frames/s, {own:.2f} script ms, {cpu_ms:.1f} CPU ms a frame"
            )
        print(f"  console: {driver.get_log('browser') or 'nothing'}")
    finally:
        driver.quit()


def processor_s(driver: Any) -> float:
    """Processor time of the browser and of all its processes."""
    service = psutil.Process(driver.service.process.pid)
    times = [process.cpu_times() for process in service.children(recursive=True)]
    return sum(each.user + each.system for each in times)


def chromium() -> Any:
    from selenium import webdriver  # noqa: PLC0415
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--window-size=1280,900", f"--user-data-dir={tempfile.mkdtemp()}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("documents", nargs="*", type=Path)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--browser", action="store_true")
    chosen = parser.parse_args()
    for file in chosen.documents:
        measure(str(file), document_json.load(file), chosen.browser)
    measure("made up", made_up(chosen.nodes), chosen.browser)


if __name__ == "__main__":
    main()
