"""Write side_by_side.json into docs/benchmarks.md, as the section "Side by side with other tools".

    python side_by_side_table.py OUT/side_by_side.json [--docs docs/benchmarks.md]

One line a model, format, target and batch: the engine of the float model typed FP16, of ModelOpt's ONNX
file and of fuseq's, as side_by_side.py compiled them. The rest of the page stays as it is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HEADING = "## Side by side with other tools"
MODELOPT, FUSEQ, FLOAT = "modelopt-onnx", "fuseq", "FP16"
NAMES = {
    "efficientnet_lite0": "EfficientNet-Lite0",
    "efficientnet_b0": "EfficientNet-B0",
    "mobilenetv2": "MobileNetV2",
    "resnet50": "ResNet-50",
    "vit_s16": "ViT-S/16",
    "minilm": "MiniLM",
    "clip_text": "CLIP ViT-L/14 text",
    "clip_image": "CLIP ViT-L/14 image",
}
INTRO = """
Written by `benchmarks/side_by_side_table.py` from the rows of `benchmarks/side_by_side.py`. Every file is compiled by
TensorRT-RTX 1.7.1 for the same GPU; kernels / activation MB / predicted us. ModelOpt: 0.47, its ONNX quantizer, the same
16 images or prompts (64 sentences for MiniLM), max. fuseq: `--policy pays`, which leaves float what gains less than 2 %
(`--min-gain`); where nothing is left its engine is the FP16 engine. FP16 is the float model in fuseq's canonical form.
No GPU ran: times are the cost model's ([how far off](cost-model.md)).
Rows of 1 December, on a machine with a load of 45; "not run": ModelOpt's quantizer did not end in 30
minutes there (ViT-S/16 FP8, CLIP) or was not started, and rows that are missing (other formats of CLIP, the rest of batch
64) wait for a quiet machine.
"""
LEGEND = """
alone: kernels of fuseq's engine that only quantize, dequantize or change type. stranded: those around which the engine
is predicted slower than without them (FQ101). products: how many GEMMs, attentions and convolutions take which type.
"""

TORCH = """
ModelOpt's PyTorch export of EfficientNet-Lite0 (sm89, batch 8) quantizes one layer of fifty, the classifier, and is
predicted at 377.9 us against 383.6 in FP16. The quantized layer is not what gains: 3.2 us are its FP16 input and
output (`--io-types convert` has the same), 2.7 us a change of layout that the compiler adds before the last average
and that a Q in front of the average avoids; the classifier itself is 0.2 us slower in INT8. Written as AveragePool, or
as a mean over a transposed tensor, the float graph loses that kernel as well (380.9 us); fuseq does not rewrite it yet.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path)
    docs = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
    parser.add_argument("--docs", type=Path, default=docs)
    options = parser.parse_args()
    lines = compared(json.loads(options.rows.read_text()))
    section = "\n".join([HEADING, INTRO, *table(lines), LEGEND, *summed_up(lines), TORCH])
    options.docs.write_text(with_section(options.docs.read_text(), section))


def compared(rows: list[Row]) -> list[dict[str, Row]]:
    """Rows of one model, format, target and batch together, by tool; only what fuseq was run for."""
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        tool = next((t for t in (MODELOPT, FUSEQ, FLOAT) if row["tool"].startswith(t)), None)
        if tool is not None and "full" not in row["tool"]:
            key = (row["target"], row["at_batch"], row["format"] == "fp8", _order(row["model"]))
            groups.setdefault(key, {})[tool] = row
    return [groups[key] for key in sorted(groups) if FUSEQ in groups[key]]


def _order(model: str) -> int:
    return list(NAMES).index(model)


def table(lines: list[dict[str, Row]]) -> list[str]:
    """Markdown of the rows."""
    made = [
        "| model | format, target, batch | FP16 | ModelOpt ONNX | fuseq | gain | alone | stranded | "
        "file MB | products |",
        "|" + " --- |" * 10,
    ]
    for line in lines:
        floating, ours = line[FLOAT], line[FUSEQ]
        what = f"{ours['format'].upper()}, {ours['target'].partition(':')[2]}, {ours['at_batch']}"
        cells = [NAMES[ours["model"]], what, figures(floating), figures(line.get(MODELOPT))]
        cells += [figures(ours), gain(ours, floating), shown(ours.get("alone"))]
        cells += [shown(ours.get("stranded")), shown(ours.get("file_mb")), products(ours)]
        made.append("| " + " | ".join(cells) + " |")
    return made


def figures(row: Row | None) -> str:
    """Kernels / activation MB / predicted us; why not, where there is no engine."""
    if row is None:
        return "not run"
    if not row.get("kernels"):
        return "fails"
    return f"{row['kernels']} / {row['activation_mb']:.0f} / {row['predicted_us']:.0f}"


def gain(row: Row, floating: Row) -> str:
    if not row.get("predicted_us"):
        return "-"
    if not _is_quantized(row):
        return "stays float"
    return f"{100 * (1 - row['predicted_us'] / floating['predicted_us']):.1f} %"


def products(row: Row) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in (row.get("products") or {}).items())


def shown(value: object) -> str:
    return "-" if value is None else str(value)


def _is_quantized(row: Row) -> bool:
    return any(kind.endswith(("int8", "fp8")) for kind in row.get("products") or {})


def summed_up(lines: list[dict[str, Row]]) -> list[str]:
    """What was asked, and in how many rows it holds."""
    ours = [line[FUSEQ] for line in lines]
    both = [line for line in lines if line.get(MODELOPT, {}).get("kernels")]
    pairs = [(line[FUSEQ], line[MODELOPT]) for line in both]
    transformers = [r for r in ours if r["format"] == "fp8" and _order(r["model"]) >= 4]

    def count(name: str) -> str:
        less = sum((a.get(name) or 1e9) < b[name] for a, b in pairs)
        return f"{less} of {len(pairs)}"

    level = sum(
        (line[FUSEQ].get("predicted_us") or 1e9) <= line[FLOAT]["predicted_us"] for line in lines
    )
    return [
        f"- Compiles strongly typed at the first try: {sum(bool(r.get('kernels')) for r in ours)} of {len(ours)}.",
        f"- Predicted at most FP16's time: {level} of {len(lines)}.",
        f"- Fewer kernels than ModelOpt's ONNX file: {count('kernels')}; fewer activation bytes: "
        f"{count('activation_mb')}; shorter predicted time: {count('predicted_us')}.",
        f"- Rows without stranded Q or DQ: {sum(r.get('stranded') == 0 for r in ours)} of {len(ours)}.",
        "- FP8 transformers whose attentions all take FP8: "
        f"{sum(_all_fp8(r, 'attention') for r in transformers)} of {len(transformers)}; with no kernel "
        f"alone: {sum(r.get('alone') == 0 for r in transformers)}.",
    ]


def _all_fp8(row: Row, kind: str) -> bool:
    found = [name for name in row.get("products") or {} if name.startswith(kind)]
    return found == [f"{kind} fp8"]


def with_section(page: str, section: str) -> str:
    """The page with the section put in place of the old one, or at its end."""
    before, heading, rest = page.partition(HEADING + "\n")
    if not heading:
        return page.rstrip("\n") + "\n\n" + section
    _, mark, after = rest.partition("\n## ")
    return before + section + (mark + after if mark else "")


if __name__ == "__main__":
    main()
