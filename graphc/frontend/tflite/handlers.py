"""What builds each operator of TensorFlow Lite, by its name in the schema."""

from __future__ import annotations

from graphc.frontend.tflite import elementwise, movement, pooling, products, quantising, tables
from graphc.frontend.tflite.registry import HANDLERS as HANDLERS

MODULES = (elementwise, movement, pooling, products, quantising, tables)  # that fill HANDLERS
