"""An operator of your own: its body says what one element of the result is.

Interpreter, fusion and the code for every target follow from that body. The file is also a plugin:
with `--plugin examples/own_operator.py` ONNX models may hold the operator as a node.
"""

import numpy as np

import graphc
from graphc import dsl
from graphc.ir.expr import tanh
from graphc.ir.opdef import Float, op


@op("TanhShrink", domain="my.ops")
def tanh_shrink(i, x: Float):
    """x - tanh(x)"""
    return x[i] - tanh(x[i])


@dsl.graph
def model(x: dsl.f32["N", 4]):  # noqa: F821  ("N" names a dimension)
    return dsl.Relu(dsl.apply("my.ops.TanhShrink", x))


if __name__ == "__main__":
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    for target in ("cpu", "c"):
        (y,) = graphc.compile(model, target=target).run({"x": x})
        print(target, y)
        assert np.allclose(y, np.maximum(x - np.tanh(x), 0), atol=1e-6)
