"""A comparison as people read it, and as JSON."""

from __future__ import annotations

import math
from typing import Any

from graphc.analysis.report import NAME_WIDTH
from graphc.analysis.text import table
from graphc.comparing.compare import Comparison, Layer, Output
from graphc.comparing.differences import Difference

COLUMNS: tuple[str, ...] = (
    "layer", "operator", "max abs", "of range", "SQNR dB", "cosine", "ULP", "", "alone", "SQNR dB",
)  # fmt: skip
LARGEST = 3  # contributions that are named


def data(comparison: Comparison) -> dict[str, Any]:
    """As JSON."""
    first = comparison.first
    return {
        "samples": comparison.samples, "limit": comparison.limit, "agrees": comparison.agrees,
        "first": None if first is None else first.pair.layer,
        "departing": [layer.pair.layer for layer in comparison.departing],
        "why_not_apart": comparison.why_not_apart,
        "outputs": [_output(output) for output in comparison.outputs],
        "layers": [_layer(layer) for layer in comparison.layers],
    }  # fmt: skip


def _layer(layer: Layer) -> dict[str, Any]:
    pair = layer.pair
    return {
        "layer": pair.layer, "operator": pair.operator, "value": pair.name, "other": pair.other,
        **layer.whole.data(), "own": None if layer.own is None else layer.own.data(),
    }  # fmt: skip


def _output(output: Output) -> dict[str, Any]:
    agreement = output.agreeing / output.rows if output.rows else None
    return {
        "name": output.name, **output.difference.data(), "rows": output.rows,
        "agreement": agreement,
        "top1": _part(output.right, output.rows),
        "reference_top1": _part(output.reference_right, output.rows),
    }  # fmt: skip


def _part(count: int | None, of: int) -> float | None:
    return None if count is None or not of else count / of


# ---------------------------------------------------------------- text


def layers_text(comparison: Comparison, top: int | None) -> str:
    """A table of layers in order: all, or those that lose most by themselves (at most `top`), and
    the first that departs."""
    shown = comparison.layers
    if top is not None and len(shown) > top:
        chosen = sorted(shown, key=lambda x: -_loss(x, comparison))[:top]
        first = comparison.first
        chosen += [] if first is None else [first]
        shown = [layer for layer in shown if any(layer is x for x in chosen)]
    rows = [COLUMNS]
    rows += [_row(layer, comparison) for layer in shown]
    lines = [table(rows, left=2)]
    if len(shown) < len(comparison.layers):
        lines.append(f"... and {len(comparison.layers) - len(shown)} more; see --all")
    return "\n".join(lines)


def _loss(layer: Layer, comparison: Comparison) -> float:
    return comparison.distance(layer.whole if layer.own is None else layer.own)


def _row(layer: Layer, comparison: Comparison) -> tuple[str, ...]:
    whole, own = layer.whole, layer.own
    name = layer.pair.layer
    short = name if len(name) <= NAME_WIDTH else "..." + name[3 - NAME_WIDTH :]
    mark = "departs" if layer is comparison.first else ""
    return (
        short, layer.pair.operator, f"{whole.max_abs:.2g}", _relative(whole), _decibels(whole),
        f"{whole.cosine:.6f}", "" if whole.ulp is None else f"{whole.ulp:.5g}", mark,
        "" if own is None else _relative(own), "" if own is None else _decibels(own),
    )  # fmt: skip


def _relative(difference: Difference) -> str:
    return "differs" if difference.problem else f"{difference.relative:.2g}"


def _decibels(difference: Difference) -> str:
    value = difference.sqnr
    return ("exact" if value > 0 else "none") if math.isinf(value) else f"{value:.1f}"


def _sqnr(difference: Difference) -> str:
    return f"SQNR {_decibels(difference)}" + ("" if math.isinf(difference.sqnr) else " dB")


def verdict(comparison: Comparison) -> list[str]:
    """Who departs, and who loses most."""
    lines = []
    first = comparison.first
    if first is None:
        lines.append(f"no layer departs: {_limit(comparison)}")
    else:
        lines.append(f"first layer that departs: {_named(first)}: {_told(first, comparison)}")
        others = [x for x in comparison.departing if x is not first]
        if others:
            names = ", ".join(_named(layer) for layer in others[:LARGEST])
            more = f" and {len(others) - LARGEST} more" if len(others) > LARGEST else ""
            lines.append(f"others that depart by themselves: {names}{more}")
    largest = comparison.contributions[:LARGEST]
    if largest:
        parts = [f"{_named(x)} {_amount(x.own, comparison)}" for x in largest if x.own]
        lines.append(f"largest differences of layers given exact inputs: {'; '.join(parts)}")
    if comparison.why_not_apart:
        lines.append(f"layers were not run alone: {comparison.why_not_apart}")
    return lines


def _named(layer: Layer) -> str:
    return f'{layer.pair.operator} "{layer.pair.layer}"'


def _limit(comparison: Comparison) -> str:
    if comparison.by_noise:
        return f"the limit is {-20 * math.log10(max(comparison.limit, 1e-30)):.1f} dB SQNR"
    return f"the limit is {comparison.limit:.2g} of a value's range"


def _amount(difference: Difference, comparison: Comparison) -> str:
    if difference.problem:
        return difference.problem
    if comparison.by_noise:
        return _sqnr(difference)
    return f"{difference.relative:.2g} of its range"


def _told(layer: Layer, comparison: Comparison) -> str:
    own, whole = layer.own, layer.whole
    if own is not None and comparison.distance(own) > comparison.limit:
        return f"given exact inputs, its result is off: {_amount(own, comparison)}"
    apart = ", and it is right alone" if own is not None else ""
    off = _amount(whole, comparison)
    return f"its result is off, though what it reads is within the limit{apart}: {off}"


def outputs_text(comparison: Comparison) -> list[str]:
    """Each output in a line."""
    lines = []
    for output in comparison.outputs:
        difference = output.difference
        if difference.problem:
            lines.append(f"output {output.name}: {difference.problem}")
            continue
        line = (
            f"output {output.name}: max abs {difference.max_abs:.3g}, {difference.relative:.2g} of "
            f"its range, {_sqnr(difference)}, cosine {difference.cosine:.6f}"
        )
        if output.rows:
            line += f"; same largest element in {100 * output.agreeing / output.rows:.4g}% of rows"
        if output.right is not None:
            right = 100 * output.right / output.rows
            reference = 100 * (output.reference_right or 0) / output.rows
            line += f"; top-1 {right:.4g}% (the reference {reference:.4g}%)"
        lines.append(line)
    return lines
