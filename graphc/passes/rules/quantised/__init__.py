"""Quantised operators in integers: q(op(d(x), d(w))) with d(x) = (x - zx) * sx, q(r) = r / sy + zy.

    operators      QLinear operators in terms of dequantise, compute, quantise
    moves          q and d change places with operators that only move or choose elements
    tables         functions of one 8-bit value are 256 results, computed at compile time
    per_channel_products
                   convolutions and matrix products: sums in int32, rescaled once
    sums           sums, differences and products of two values
    pairs          what ONNX Runtime gives for all pairs of them, and which form gives the same
    means          means, in which a tie is rounded as floats would round it
    normalised     softmax
    kernels        how ONNX Runtime would compute it, where that decides how halves are rounded
    inference      the rule that dispatches to the families above

Real factors are applied in fixed point (graphc.ir.ops.fixed_point). Results are within one unit of
the exactly rounded ones, and nearly always equal. One module per family; importing the package
registers the rules.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
