"""Two models around If and Loop, built by hand.  Needs onnx and onnxruntime only.

if_runtime      an If on a run-time bool input, one on a sum of the data, and inside a branch one
                on a shape; branches capture outer values, hold constants and may take no input
loop_positions  a Loop of a constant trip count with a carried state and a scan output, a Loop as
                long as a dimension, and shapes made by Range, ConstantOfShape, Expand, NonZero
"""

from __future__ import annotations

import numpy as np
import onnx
from make_common import Writer, add_case, model_of, save, value

OPSET = 17
STEPS = 4
WIDTH = 6


def bare(name: str) -> onnx.ValueInfoProto:
    """A sub-graph's output whose type is left to inference."""
    return onnx.ValueInfoProto(name=name)


def shape_branches() -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """Mean over rows when there are several; the rows themselves when there is one."""
    many = Writer("many/")
    many.node("ReduceMean", "scaled", name="many/out", axes=[0], keepdims=1)
    one = Writer("one/")
    one.node("Identity", "scaled", name="one/out")
    return many.graph("many", [], [bare("many/out")]), one.graph("one", [], [bare("one/out")])


def sum_branches() -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """Both return (f32[k,WIDTH], i64[1]); the first holds an If on the number of rows."""
    positive = Writer("positive/")
    many, one = shape_branches()
    rows = positive.node("Gather", "x_shape", positive.constant(0, np.int64), axis=0)
    several = positive.node("Greater", rows, positive.constant(1, np.int64))
    positive.node("If", several, name="positive/out", then_branch=many, else_branch=one)
    positive.constant([1], np.int64, name="positive/which")

    negative = Writer("negative/")
    weights = negative.constant(np.eye(WIDTH)[::-1] * 0.5)
    negative.node("Relu", negative.node("MatMul", "x", weights), name="negative/out")
    negative.node("Shape", "x", name="negative/which", start=0, end=1)
    return (
        positive.graph("positive", [], [bare("positive/out"), bare("positive/which")]),
        negative.graph("negative", [], [bare("negative/out"), bare("negative/which")]),
    )


def if_runtime() -> onnx.GraphProto:
    w = Writer()
    w.node("Shape", "x", name="x_shape")
    flip = Writer("flip/")
    flip.node("Neg", "x", name="flip/out")
    keep = Writer("keep/")
    keep.constant([[1.0, -1.0, 0.5, 2.0, 0.0, 1.0]], name="keep/out")
    factor = w.node(
        "If",
        "flag",
        name="factor",
        then_branch=flip.graph("flip", [], [bare("flip/out")]),
        else_branch=keep.graph("keep", [], [bare("keep/out")]),
    )
    w.node("Mul", "x", factor, name="scaled")
    total = w.node("ReduceSum", "scaled", keepdims=0)
    positive, negative = sum_branches()
    condition = w.node("Greater", total, w.constant(0.0))
    y, which = w.node(
        "If", condition, name="pick", outputs=2, then_branch=positive, else_branch=negative
    )
    w.node("Tanh", y, name="y")
    w.node("Identity", which, name="which")
    return w.graph(
        "if_runtime",
        [value("x", np.float32, ["n", WIDTH]), value("flag", np.bool_, [])],
        [value("y", np.float32, ["k", WIDTH]), value("which", np.int64, [1])],
    )


def recurrent_body() -> onnx.GraphProto:
    """h' = tanh(h @ weights[step] + embedded[:, step]); also the scan output."""
    w = Writer("cell/")
    matrix = w.node("Gather", "weights", "cell/step", axis=0)
    row = w.node("Gather", "embedded", "cell/step", axis=1)
    w.node("Tanh", w.node("Add", w.node("MatMul", "cell/h", matrix), row), name="cell/h_next")
    w.node("Identity", "cell/condition", name="cell/continue")
    w.node("Identity", "cell/h_next", name="cell/scan")
    return w.graph(
        "cell",
        [
            value("cell/step", np.int64, []),
            value("cell/condition", np.bool_, []),
            value("cell/h", np.float32, None),
        ],
        [
            value("cell/continue", np.bool_, []),
            value("cell/h_next", np.float32, None),
            value("cell/scan", np.float32, None),
        ],
    )


def decay_body() -> onnx.GraphProto:
    """total' = total / 2 + sum of embedded[:, step]; no scan output, a constant condition."""
    w = Writer("decay/")
    begin = w.node("Unsqueeze", "decay/step", w.constant([0], np.int64))
    end = w.node("Add", begin, w.constant([1], np.int64))
    row = w.node("Slice", "embedded", begin, end, w.constant([1], np.int64))
    amount = w.node("ReduceSum", row, w.constant([1, 2], np.int64), keepdims=0)
    half = w.node("Mul", "decay/total", w.constant(0.5))
    w.node("Add", half, amount, name="decay/total_next")
    w.constant(True, np.bool_, name="decay/continue")
    return w.graph(
        "decay",
        [
            value("decay/step", np.int64, []),
            value("decay/condition", np.bool_, []),
            value("decay/total", np.float32, ["n"]),
        ],
        [value("decay/continue", np.bool_, []), value("decay/total_next", np.float32, ["n"])],
    )


def loop_positions() -> onnx.GraphProto:
    w = Writer()
    random = np.random.default_rng(31)
    w.initializer("weights", random.standard_normal((STEPS, WIDTH, WIDTH)) * 0.4)
    w.initializer("frequencies", 1.0 / 10.0 ** (np.arange(WIDTH) / WIDTH))
    w.initializer("kept_columns", [1, 0, 1, 1, 0, 1], np.bool_)
    zero, one = w.constant([0], np.int64), w.constant([1], np.int64)

    shape = w.node("Shape", "x")
    batch = w.node("Gather", shape, w.constant(0, np.int64), axis=0)
    length = w.node("Gather", shape, w.constant(1, np.int64), axis=0)
    rows, steps = w.node("Unsqueeze", batch, zero), w.node("Unsqueeze", length, zero)

    # sin(position * frequency), made for every length and stretched over the batch.
    ticks = w.node("Range", w.constant(0, np.int64), length, w.constant(1, np.int64))
    ticks = w.node("Unsqueeze", w.node("Cast", ticks, to=1), one)
    table = w.node("Sin", w.node("Mul", ticks, "frequencies"))
    target = w.node("Concat", rows, steps, w.constant([WIDTH], np.int64), axis=0)
    w.node("Add", "x", w.node("Expand", table, target), name="embedded")

    # Columns chosen by NonZero of a constant, times a filled tensor of a computed shape.
    columns = w.node("Squeeze", w.node("NonZero", "kept_columns"), zero)
    chosen = w.node("Gather", "embedded", columns, axis=2)
    area = w.node("Concat", rows, steps, one, axis=0)
    fill = onnx.numpy_helper.from_array(np.array([0.25], np.float32))
    chosen = w.node("Mul", chosen, w.node("ConstantOfShape", area, value=fill))
    flat = w.node("Concat", rows, w.constant([-1], np.int64), axis=0)
    w.node("Reshape", chosen, flat, name="chosen")

    start = w.node("Concat", rows, w.constant([WIDTH], np.int64), axis=0)
    start = w.node("ConstantOfShape", start)
    last, every = w.node(
        "Loop",
        *(w.constant(STEPS, np.int64), w.constant(True, np.bool_), start),
        name="recurrent",
        outputs=2,
        body=recurrent_body(),
    )
    w.node("Identity", last, name="last")
    w.node("Transpose", every, name="every", perm=[1, 0, 2])
    w.node("Loop", length, "", w.node("ConstantOfShape", rows), name="total", body=decay_body())
    return w.graph(
        "loop_positions",
        [value("x", np.float32, ["n", "length", WIDTH])],
        [
            value("chosen", np.float32, ["n", "m"]),
            value("last", np.float32, ["n", WIDTH]),
            value("every", np.float32, ["n", STEPS, WIDTH]),
            value("total", np.float32, ["n"]),
        ],
    )


def main() -> None:
    style = f"by hand, If on run-time values and on a shape, opset {OPSET}"
    file = "if_runtime.onnx"
    save(model_of(if_runtime(), OPSET, 8, "graphc-tests"), file)
    random = np.random.default_rng(32)
    rows = np.abs(random.standard_normal((3, WIDTH))).astype(np.float32)
    off, on = np.array(False), np.array(True)
    add_case(file, "if_runtime_many", style, {"x": rows, "flag": off})
    add_case(file, "if_runtime_one", style, {"x": rows[:1], "flag": off})
    add_case(file, "if_runtime_negative", style, {"x": rows, "flag": on})

    style = f"by hand, Loop and computed shapes, opset {OPSET}"
    file = "loop_positions.onnx"
    save(model_of(loop_positions(), OPSET, 8, "graphc-tests"), file)
    for name, shape in (("loop_positions", (2, 5, WIDTH)), ("loop_positions_long", (1, 9, WIDTH))):
        x = random.standard_normal(shape).astype(np.float32)
        add_case(file, name, style, {"x": x})


if __name__ == "__main__":
    main()
