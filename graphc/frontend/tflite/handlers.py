"""What builds each operator of TensorFlow Lite, by its name in the schema."""

from __future__ import annotations

from graphc.frontend.tflite import (
    elementwise,
    more_products,
    movement,
    pooling,
    quantising,
    tables,
)
from graphc.frontend.tflite.registry import HANDLERS as HANDLERS

MODULES = (elementwise, more_products, movement, pooling, quantising, tables)  # that fill HANDLERS
