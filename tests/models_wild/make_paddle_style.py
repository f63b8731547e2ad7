"""A text-line recogniser in the habits of paddle2onnx, built by hand: every weight a Constant
node, dimensions written as -1, Shape-Slice-Concat chains, scales and assigns left in, opset 11.
Needs onnx and onnxruntime only.
"""

from __future__ import annotations

import numpy as np
from make_common import Writer, add_case, model_of, save, value

FILE = "paddle_style.onnx"
STYLE = "by hand, after paddle2onnx, opset 11"
HIDDEN = 6


class Net:
    def __init__(self) -> None:
        self.w = Writer("p2o.")
        self.random = np.random.default_rng(21)

    def parameter(self, name: str, *shape: int) -> str:
        scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[1:]))))
        return self.w.constant(self.random.standard_normal(shape) * scale, name=name)

    def ints(self, *numbers: int) -> str:
        return self.w.constant(numbers, np.int64)

    def conv_bn(self, x: str, name: str, inputs: int, outputs: int, **attributes) -> str:
        group = attributes.get("group", 1)
        kernel = self.parameter(f"{name}.w_0", outputs, inputs // group, 3, 3)
        x = self.w.node(
            "Conv",
            *(x, kernel),
            name=f"{name}.tmp_0",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            dilations=[1, 1],
            **attributes,
        )
        rows = self.random.uniform(0.5, 1.5, (4, outputs))
        names = [self.w.constant(row, name=f"{name}.bn_{k}") for k, row in enumerate(rows)]
        return self.w.node("BatchNormalization", x, *names, epsilon=1e-5, momentum=0.9)

    def hard_swish(self, x: str) -> str:
        """x * clip(x + 3, 0, 6) / 6, each step a node."""
        w = self.w
        shifted = w.node("Add", x, w.constant([3.0]))
        clipped = w.node("Clip", shifted, w.constant(0.0), w.constant(6.0))
        return w.node("Div", w.node("Mul", x, clipped), w.constant([6.0]))

    def scale(self, x: str, factor: float, bias: float) -> str:
        """paddle's scale operator: factor * x + bias."""
        x = self.w.node("Mul", x, self.w.constant([factor]))
        return self.w.node("Add", x, self.w.constant([bias]))

    def squeeze_excite(self, x: str, channels: int) -> str:
        w = self.w
        pooled = w.node("GlobalAveragePool", x)
        weight = self.parameter("se.w_0", channels, channels, 1, 1)
        bias = w.node("Reshape", self.parameter("se.b_0", channels), self.ints(1, -1, 1, 1))
        gate = w.node("Add", w.node("Conv", pooled, weight, kernel_shape=[1, 1]), bias)
        return w.node("Mul", x, w.node("HardSigmoid", gate, alpha=0.2, beta=0.5))

    def entry(self, shape: str, at: int) -> str:
        """One entry of a shape as i64[1]."""
        return self.w.node("Slice", shape, self.ints(at), self.ints(at + 1), self.ints(0))

    def upsample_like(self, x: str, like: str) -> str:
        """Nearest resize of x to the height and width of `like`."""
        w = self.w
        target = w.node("Cast", w.node("Shape", like), to=6)
        target = w.node("Slice", target, self.ints(2), self.ints(4), self.ints(0))
        target = w.node("Cast", target, to=7)
        start = w.node("Slice", w.node("Shape", x), self.ints(0), self.ints(2), self.ints(0))
        sizes = w.node("Concat", start, target, axis=0)
        return w.node(
            "Resize",
            *(x, w.constant([]), w.constant([]), sizes),
            mode="nearest",
            coordinate_transformation_mode="half_pixel",
            nearest_mode="round_prefer_floor",
        )

    def two_way_lstm(self, x: str, width: int) -> str:
        """x: f32[steps,batch,width] to f32[steps,batch,2*HIDDEN]; states sized from Shape."""
        w = self.w
        batch = self.entry(w.node("Shape", x), 1)
        target = w.node("Concat", self.ints(2), batch, self.ints(HIDDEN), axis=0)
        zeros = w.node("Expand", w.constant(np.zeros((1, 1, 1))), target)
        y = w.node(
            "LSTM",
            x,
            self.parameter("lstm.w", 2, 4 * HIDDEN, width),
            self.parameter("lstm.r", 2, 4 * HIDDEN, HIDDEN),
            self.parameter("lstm.b", 2, 8 * HIDDEN),
            *("", zeros, w.node("Identity", zeros)),
            outputs=3,
            direction="bidirectional",
            hidden_size=HIDDEN,
        )[0]
        y = w.node("Transpose", y, perm=[0, 2, 1, 3])
        return w.node("Reshape", y, self.ints(0, 0, -1))

    def build(self):
        w = self.w
        x = self.scale("x", 2.0, -1.0)
        x = self.hard_swish(self.conv_bn(x, "conv2d_0", 3, 8, strides=[2, 2], group=1))
        fine = self.hard_swish(self.conv_bn(x, "conv2d_1", 8, 8, strides=[1, 1], group=8))
        x = w.node("Relu", self.conv_bn(fine, "conv2d_2", 8, 8, strides=[2, 1], group=1))
        x = self.squeeze_excite(x, 8)
        x = w.node("Concat", w.node("Identity", self.upsample_like(x, fine)), fine, axis=1)
        x = w.node("AveragePool", x, kernel_shape=[4, 2], strides=[4, 2], ceil_mode=0)

        # f32[batch,16,1,steps] to f32[steps,batch,16], by way of a computed shape.
        shape = w.node("Shape", x)
        parts = [self.entry(shape, 0), self.entry(shape, 1), self.ints(-1)]
        x = w.node("Reshape", x, w.node("Concat", *parts, axis=0))
        x = self.two_way_lstm(w.node("Transpose", x, perm=[2, 0, 1]), 16)
        x = w.node("Transpose", x, perm=[1, 0, 2])

        x = w.node("MatMul", x, self.parameter("linear.w_0", 2 * HIDDEN, 9))
        x = w.node("Add", x, self.parameter("linear.b_0", 9))
        scores = w.node("Softmax", x, axis=2)
        w.node("Identity", self.scale(scores, 1.0, 0.0), name="softmax_0.tmp_0")
        best = w.node("ArgMax", scores, axis=2, keepdims=1)
        w.node("Cast", w.node("Squeeze", best, axes=[2]), name="cast_0.tmp_0", to=6)
        return w.graph(
            "paddle-onnx",
            [value("x", np.float32, [-1, 3, 8, -1])],
            [
                value("softmax_0.tmp_0", np.float32, [-1, -1, 9]),
                value("cast_0.tmp_0", np.int32, [-1, -1]),
            ],
        )


def main() -> None:
    save(model_of(Net().build(), 11, 7, "paddle2onnx-style"), FILE)
    random = np.random.default_rng(22)
    for name, shape in (("paddle_style", (2, 3, 8, 32)), ("paddle_style_wide", (1, 3, 8, 44))):
        image = random.uniform(0, 1, shape).astype(np.float32)
        add_case(FILE, name, STYLE, {"x": image})


if __name__ == "__main__":
    main()
