"""Time, precision and error by module of the user's model, every module with its children."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fuseq.report.document import EngineRow, KernelRow, LayerRow, ModuleRow
from fuseq.report.document_closeness import TensorErrorRow


@dataclasses.dataclass
class _Sum:
    float_us: float = 0.0
    quantized_us: float = 0.0
    kernels: int = 0
    layers: int = 0
    quantized_layers: int = 0
    worst: TensorErrorRow | None = None


def module_rows(
    float_engine: EngineRow | None,
    quantized_engine: EngineRow | None,
    layers: Iterable[LayerRow] = (),
    errors: Iterable[TensorErrorRow] = (),
) -> tuple[ModuleRow, ...]:
    """One row a module, parents before children; the first is the whole model, path "".

    A kernel counts for the module that most of its nodes came from, and for all modules around it.
    Times are measured ones where both engines have them for every kernel, else predicted.
    """
    engines = [engine for engine in (float_engine, quantized_engine) if engine is not None]
    measured = bool(engines) and all(
        kernel.measured_us is not None for engine in engines for kernel in engine.kernels
    )
    sums: dict[str, _Sum] = {"": _Sum()}
    counted = quantized_engine or float_engine
    for engine in engines:
        _add_kernels(sums, engine, measured, engine is quantized_engine, engine is counted)
    for layer in layers:
        for entry in _around(sums, layer.module):
            entry.layers += 1
            entry.quantized_layers += layer.quantized
    for error in errors:
        for entry in _around(sums, error.module):
            if (error.relative or 0.0) > (entry.worst.relative or 0.0 if entry.worst else 0.0):
                entry.worst = error
    has = (float_engine is not None, quantized_engine is not None)
    return tuple(_row(path, entry, has, measured) for path, entry in _in_tree_order(sums))


def _add_kernels(
    sums: dict[str, _Sum], engine: EngineRow, measured: bool, is_quantized: bool, counts: bool
) -> None:
    for kernel in engine.kernels:
        us = _us(kernel, measured)
        for entry in _around(sums, kernel.module):
            entry.kernels += counts
            entry.quantized_us += us if is_quantized else 0.0
            entry.float_us += 0.0 if is_quantized else us


def _row(path: str, entry: _Sum, has: tuple[bool, bool], measured: bool) -> ModuleRow:
    """``has``: there is a float engine, and a quantized one."""
    return ModuleRow(
        path=path,
        depth=path.count(".") + 1 if path else 0,
        float_us=entry.float_us if has[0] else None,
        quantized_us=entry.quantized_us if has[1] else None,
        measured=measured,
        kernels=entry.kernels,
        layers=entry.layers,
        quantized_layers=entry.quantized_layers,
        worst_tensor=entry.worst.name if entry.worst else "",
        worst_relative=entry.worst.relative if entry.worst else None,
        worst_sqnr_db=entry.worst.sqnr_db if entry.worst else None,
    )


def _us(kernel: KernelRow, measured: bool) -> float:
    return (kernel.measured_us if measured else kernel.predicted_us) or 0.0


def _around(sums: dict[str, _Sum], path: str) -> list[_Sum]:
    """The sums of the module and of everything around it."""
    parts = path.split(".") if path else []
    paths = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
    return [sums.setdefault(each, _Sum()) for each in paths]


def _in_tree_order(sums: dict[str, _Sum]) -> list[tuple[str, _Sum]]:
    """Parents before children, siblings in the order in which the model runs them."""
    order = {path: number for number, path in enumerate(sums)}

    def key(path: str) -> list[int]:
        parts = path.split(".") if path else []
        return [order[".".join(parts[: depth + 1])] for depth in range(len(parts))]

    return sorted(sums.items(), key=lambda item: key(item[0]))
