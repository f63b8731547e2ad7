"""How often each instruction of machine code is executed, from counts of what PTX does.

A compiler unrolls, peels and reorders loops, but an access, a product or a barrier of PTX is one of
machine code. So the executions of loops are those with which instructions of these kinds add up to
the counts: a least-squares problem with one unknown for each loop, none of them negative, while all
that is outside loops is executed once by each warp. Where warps are specialised, how many of them
execute it is one more unknown (C. Lawson, R. Hanson, Solving Least Squares Problems, 1974).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from graphc.backends.cuda.prediction.kinds import kind_of_sass
from graphc.backends.cuda.prediction.sample import Sample
from graphc.backends.cuda.prediction.sass import OUTSIDE, Sass


def executions(sass: Sass, sample: Sample) -> dict[int, float]:
    """Executions of instructions by the number of the innermost loop they are in, by all warps."""
    loops = len(sass.loops)
    static: dict[int, Counter[str]] = {place: Counter() for place in (*range(loops), OUTSIDE)}
    for instruction, place in zip(sass.instructions, sass.places):
        kind = kind_of_sass(instruction)
        if kind is not None and kind in sample.executions and place in static:
            static[place][kind] += 1
    known = {kind for kinds in static.values() for kind in kinds}
    kinds = sorted(k for k, n in sample.executions.items() if n and k in known)
    matrix = np.array([[static[loop][k] for loop in range(loops)] for k in kinds], np.float64)
    outside = np.array([static[OUTSIDE][k] for k in kinds], np.float64)
    wanted = np.array([sample.executions[k] for k in kinds], np.float64)
    if sample.is_specialised:
        matrix = np.concatenate([matrix.reshape(len(kinds), loops), outside[:, None]], axis=1)
    else:
        wanted -= outside * sample.warps
    weights = np.array([1 / max(sample.executions[k], 1) for k in kinds], np.float64)
    matrix = matrix.reshape(len(kinds), loops + sample.is_specialised)
    solved = _non_negative(matrix * weights[:, None], wanted * weights)
    once = float(solved[-1]) if sample.is_specialised else float(sample.warps)
    return {OUTSIDE: once, **{n: float(x) for n, x in enumerate(solved[:loops])}}


def _non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x >= 0 with the least |matrix x - wanted|: unknowns that would be negative are set to 0, the
    most negative first."""
    unknowns = matrix.shape[1]
    solved, active = np.zeros(unknowns), list(range(unknowns))
    while active and matrix.size:
        part = np.linalg.lstsq(matrix[:, active], wanted, rcond=None)[0]
        if part.min() >= 0:
            solved[active] = part
            break
        active.pop(int(part.argmin()))
    return solved
