"""Templates of operators for random graphs, with weights. See generator.py for the rules."""

from templates import (  # noqa: F401  (each registers its templates)
    attention,
    contractions,
    control,
    elementwise,
    idioms,
    layers,
    learning,
    movement,
    quantised,
    recurrent,
    reductions,
    sampling,
    windows,
)
from templates.table import choose

__all__ = ["choose"]
