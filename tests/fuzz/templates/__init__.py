"""Templates of operators for random graphs, with weights. See generator.py for the rules."""

from templates import (  # noqa: F401  (each registers its templates)
    attention,
    contractions,
    control,
    elementwise,
    idioms,
    layers,
    layers_afterwards,
    layers_attention,
    layers_control,
    layers_counted,
    layers_fronts,
    layers_norms,
    layers_numbered,
    layers_picking,
    layers_places,
    layers_products,
    layers_quantised,
    layers_recurrent,
    layers_regions,
    layers_statistics,
    layers_turned,
    layers_windows,
    learning,
    movement,
    quantised,
    recurrent,
    reductions,
    sampling,
    windows,
)
from templates.table import choose, families

__all__ = ["choose", "families"]
