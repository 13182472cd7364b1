"""Replace an exporter's stack traces by one source line and one module path a node.

The traces are half of the graph's bytes (CLIP ViT-L/14: 2.5 MB); what a user asks for is the line.
"""

from __future__ import annotations

import onnx_ir as ir

from fuseq.source_lines import MODULE_KEY, SOURCE_KEY, module_path, source_line

_BULKY_PREFIXES = ("pkg.torch.onnx.", "pkg.onnxscript.", "namespace", "fuseq.call")


def condense_metadata(model: ir.Model) -> None:
    """Change ``metadata_props`` of all nodes in place; nothing that computes is touched."""
    for node in model.graph.all_nodes():
        source, module = source_line(node), module_path(node)
        for key in list(node.metadata_props):
            if key.startswith(_BULKY_PREFIXES):
                del node.metadata_props[key]
        if source:
            node.metadata_props[SOURCE_KEY] = source
        if module:
            node.metadata_props[MODULE_KEY] = module
        for value in node.outputs:
            for key in list(value.metadata_props):
                if key.startswith(_BULKY_PREFIXES):
                    del value.metadata_props[key]
