"""A model in the habits of tf2onnx, built by hand: NHWC in and out, transposes around every
convolution, SAME padding, int32 shape arithmetic, opset 11.  Needs onnx and onnxruntime only.
"""

from __future__ import annotations

import numpy as np
from make_common import Writer, add_case, model_of, save, value

FILE = "tf2onnx_style.onnx"
STYLE = "by hand, after tf2onnx, opset 11"
SCOPE = "StatefulPartitionedCall/model/"


class Net:
    """Writes the layers; every activation outside a layer is NHWC."""

    def __init__(self) -> None:
        self.w = Writer(SCOPE)
        self.random = np.random.default_rng(11)

    def weights(self, name: str, *shape: int) -> str:
        scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[1:]))))
        return self.w.initializer(SCOPE + name, self.random.standard_normal(shape) * scale)

    def to_nchw(self, x: str, name: str) -> str:
        return self.w.node("Transpose", x, name=f"{SCOPE}{name}__6", perm=[0, 3, 1, 2])

    def to_nhwc(self, x: str, name: str) -> str:
        return self.w.node("Transpose", x, name=f"{SCOPE}{name}:0", perm=[0, 2, 3, 1])

    def conv(self, x: str, name: str, inputs: int, outputs: int, size: int, **attributes) -> str:
        group = attributes.get("group", 1)
        kernel = self.weights(f"{name}/ReadVariableOp:0", outputs, inputs // group, size, size)
        x = self.to_nchw(x, f"{name}/Conv2D")
        x = self.w.node("Conv", x, kernel, auto_pad="SAME_UPPER", **attributes)
        return self.to_nhwc(x, f"{name}/Conv2D")

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        scale = self.random.uniform(0.5, 1.5, (4, channels))
        parameters = [
            self.w.initializer(f"{SCOPE}{name}/{part}:0", row)
            for part, row in zip(("gamma", "beta", "mean", "variance"), scale, strict=True)
        ]
        x = self.to_nchw(x, f"{name}/FusedBatchNormV3")
        x = self.w.node("BatchNormalization", x, *parameters, epsilon=1e-3)
        return self.to_nhwc(x, f"{name}/FusedBatchNormV3")

    def relu6(self, x: str) -> str:
        return self.w.node("Min", self.w.node("Relu", x), "const_six")

    def strided_slice(self, shape: str, begin: int, end: int) -> str:
        """One int32 entry of a shape, as tf.strided_slice with shrink_axis_mask."""
        bounds = [
            self.w.initializer(f"const_slice_{begin}_{end}_{part}_{len(self.w.nodes)}", [at], int)
            for part, at in (("starts", begin), ("ends", end), ("axes", 0))
        ]
        return self.w.node("Squeeze", self.w.node("Slice", shape, *bounds), axes=[0])

    def double_size(self, x: str) -> str:
        """tf.image.resize(nearest) to twice the size, the size computed in int32."""
        w = self.w
        shape = w.node("Cast", w.node("Shape", x), to=6)
        height, width = (
            w.node("Unsqueeze", w.node("Mul", self.strided_slice(shape, k, k + 1), "two"), axes=[0])
            for k in (1, 2)
        )
        size = w.node("Cast", w.node("Concat", height, width, axis=0), to=7)
        x = self.to_nchw(x, "up/resize")
        start = w.node("Slice", w.node("Shape", x), "slice_0", "slice_2")
        sizes = w.node("Concat", start, size, axis=0)
        x = w.node(
            "Resize",
            *(x, "roi", "no_scales", sizes),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return self.to_nhwc(x, "up/resize")

    def flatten(self, x: str) -> str:
        """tf.reshape(x, [tf.shape(x)[0], -1])."""
        w = self.w
        shape = w.node("Cast", w.node("Shape", x), to=6)
        batch = w.node("Unsqueeze", self.strided_slice(shape, 0, 1), axes=[0])
        target = w.node("Concat", batch, "minus_one", axis=0)
        return w.node("Reshape", x, w.node("Cast", target, to=7))

    def build(self):
        w = self.w
        w.initializer("const_six", 6.0)
        w.initializer("two", 2, np.int32)
        w.initializer("minus_one", [-1], np.int32)
        w.initializer("slice_0", [0], np.int64)
        w.initializer("slice_2", [2], np.int64)
        w.initializer("roi", [])
        w.initializer("no_scales", [])
        w.initializer("scale", 1 / 127.5)
        w.initializer("one", 1.0)
        w.initializer("paddings", [0, 1, 1, 0, 0, 1, 1, 0], np.int64)

        x = w.node("Cast", "input_1:0", to=1)
        x = w.node("Sub", w.node("Mul", x, "scale"), "one")
        x = self.conv(x, "conv1", 3, 8, 3, strides=[2, 2])
        x = skip = self.relu6(self.batch_norm(x, "bn1", 8))
        x = self.conv(x, "depthwise", 8, 8, 3, group=8)
        x = self.relu6(w.node("Add", x, self.weights("depthwise/bias:0", 8)))
        x = w.node("Add", self.batch_norm(self.conv(x, "project", 8, 8, 1), "bn2", 8), skip)
        x = w.node("Pad", x, "paddings", mode="constant")
        x = self.to_nchw(x, "max_pool/MaxPool")
        x = w.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="VALID")
        x = self.to_nhwc(x, "max_pool/MaxPool")

        up = self.conv(self.double_size(x), "heat", 8, 2, 3)
        w.node("Sigmoid", up, name="Identity_1:0")

        mean = w.node("ReduceMean", x, axes=[1, 2], keepdims=1)
        x = self.flatten(w.node("Mul", x, w.node("Sigmoid", mean)))
        x = w.node("MatMul", x, self.weights("dense/MatMul:0", 4 * 4 * 8, 6))
        x = w.node("Add", x, self.weights("dense/bias:0", 6))
        w.node("Softmax", x, name="Identity:0", axis=1)
        return w.graph(
            "tf2onnx",
            [value("input_1:0", np.uint8, ["unk__40", 16, 16, 3])],
            [
                value("Identity:0", np.float32, ["unk__41", 6]),
                value("Identity_1:0", np.float32, ["unk__42", "unk__43", "unk__44", 2]),
            ],
        )


def main() -> None:
    save(model_of(Net().build(), 11, 6, "tf2onnx-style"), FILE)
    image = np.random.default_rng(12).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    add_case(FILE, "tf2onnx_style", STYLE, {"input_1:0": image})


if __name__ == "__main__":
    main()
