"""Sums of products in vector registers, for the M-profile Vector Extension (Helium).

A computation matches as for register tiles (analysis/weighted.py), if the outputs that the constant
factor tells apart are neighbours. There are two ways to sum: sixteen products of bytes at a time
where bytes lie in a row along the innermost summed indices (dot_products.py), and four columns at a
time (column_lanes.py).
"""

from __future__ import annotations

from graphc.backends.micro_c.strategies.helium.column_lanes import Lanes
from graphc.backends.micro_c.strategies.helium.dot_products import Dots
from graphc.backends.micro_c.strategies.helium.matching import has_byte_rows, problem
from graphc.backends.micro_c.strategies.helium.sums import HeliumOptions
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.weighted import match_product
from graphc.passes.lower.lowered import Lowered

MIN_DEPTH = 2  # products summed, below which a plain nest does as well


def lower_helium(computation: Computation, options: HeliumOptions) -> Lowered | str:
    """The kernel of a sum of products in vectors, or the reason why there is none."""
    match = match_product(computation, MIN_DEPTH)
    if isinstance(match, str):
        return match
    unknown = next((x.extent for x in match.indices if not isinstance(x.extent, int)), None)
    if unknown is not None:
        return f"helium: extents must be constant, found {unknown}"
    reason = problem(match)
    if reason:
        return f"helium: {reason}"
    return (Dots if has_byte_rows(match) else Lanes)(match, options).lowered()
