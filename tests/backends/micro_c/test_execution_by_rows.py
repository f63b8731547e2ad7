"""Programs with layers by rows give what those of whole images give: integers to the bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from commands import graphc, ok
from onnx import TensorProto, helper, numpy_helper
from quantised_models import QuantisedModel

from graphc.driver import Settings, to_program, typed
from graphc.errors import InternalError
from graphc.ir.program import While
from graphc.passes.lower.program import composed
from graphc.passes.lower.rows.bands import Gathered
from graphc.passes.lower.rows.candidates import all_segments
from graphc.passes.lower.rows.compact import Replay, compact_schedule
from graphc.passes.lower.rows.schedule import Fill, Read, Run, Slide, Stage, schedule
from graphc.passes.lower.rows.segments import RowPlan
from graphc.targets.micro_c import MicroC


class Chosen(MicroC):
    """Makes the programs of the longest segment too, at some heights of bands."""

    def draft(self, graph, lower):
        plain = super().draft(graph, lower)
        known = sorted(all_segments(graph, composed(graph)), key=lambda s: len(s.ops))
        plans = [
            replace(RowPlan.even(s, height), compact=compact)
            for s in known[-1:]
            for height, compact in ((1, False), (3, False), (2, True))
        ]
        self.made.extend((plan, self.finished(lower(graph, rows=plan))) for plan in plans)
        return plain


def programs(source):
    """The plain program, and (plan, program) for those by rows."""
    target = Chosen(cpu="cortex-m4", sanitize=True)
    object.__setattr__(target, "made", [])
    plain = to_program(typed(source), target, Settings())
    return target, plain, target.made


def check(source, feeds, least=1):
    target, plain, made = programs(source)
    assert len(made) >= least
    expected = target.load(plain)(feeds)
    for plan, program in made:
        found = target.load(program)(feeds)
        told = f"{plan.bands} of {plan.segment.heights}"
        for a, b in zip(expected, found):
            if a.dtype.kind == "f":  # whose sums may be in another order
                np.testing.assert_allclose(a, b, 1e-5, 1e-6 * np.abs(a).max(), err_msg=told)
            else:
                np.testing.assert_array_equal(a, b, told)
    return plain, made


class FloatModel:
    """A graph of layers over images."""

    def __init__(self, shape, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []
        self.shape, self.last = shape, "x"
        self.given = (shape[0], *shape[2:], shape[1])
        self.feeds = [self.random.standard_normal(self.given).astype(np.float32)]
        self.add("Transpose", perm=[0, 3, 1, 2])

    def add(self, kind, *inputs, **attrs):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.last, *inputs], [name], **attrs))
        self.last = name
        return name

    def conv(self, channels, kernel, depthwise=False, last=None, **attrs):
        name, own = f"w{len(self.constants)}", self.channels
        shape = (own, 1, *kernel) if depthwise else (channels, own, *kernel)
        weights = self.random.standard_normal(shape).astype(np.float32)
        self.constants.append(numpy_helper.from_array(weights, name))
        self.channels = own if depthwise else channels
        return self.add("Conv", name, group=own if depthwise else 1, kernel_shape=kernel, **attrs)

    @property
    def channels(self):
        return self.shape[1]

    @channels.setter
    def channels(self, count):
        self.shape = (self.shape[0], count, *self.shape[2:])

    def model(self):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.given)
        y = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.constants)
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


@pytest.mark.parametrize(("height", "width"), [(5, 6), (7, 1), (12, 6)])
def test_strides_and_paddings(height, width):
    shape = (1, 2, height, width)
    net = FloatModel(shape, height)
    net.conv(3, (3, 3), pads=[1, 1, 1, 1])
    net.conv(0, (3, 3), depthwise=True, pads=[0, 1, 2, 1], strides=[2, 1])
    net.add("Relu")
    net.conv(4, (1, 1))
    net.add("MaxPool", kernel_shape=[2, 1], pads=[1, 0, 0, 0], strides=[1, 1])
    net.conv(2, (3, 1), pads=[2, 0, 2, 0], dilations=[2, 1])
    check(net.model(), net.feeds)


def test_rows_that_no_stride_reads_are_no_trouble():
    shape = (1, 2, 11, 4)
    net = FloatModel(shape)
    net.conv(3, (1, 1), strides=[3, 1])
    net.conv(3, (2, 1), strides=[2, 1])
    check(net.model(), net.feeds)


def test_residual_sums():
    shape = (1, 8, 9, 5)
    net = FloatModel(shape)
    first = net.conv(8, (3, 3), pads=[1, 1, 1, 1])
    net.conv(0, (3, 3), depthwise=True, pads=[1, 1, 1, 1])
    net.conv(8, (1, 1))
    net.add("Add", first)
    net.conv(6, (3, 3), strides=[2, 2])
    _, made = check(net.model(), net.feeds)
    assert len(made[0][0].segment.ops) >= 4


def test_weights_that_are_not_finite_meet_no_padding():
    shape = (1, 1, 5, 5)
    net = FloatModel(shape)
    net.conv(1, (3, 3), pads=[1, 1, 1, 1])
    net.conv(1, (3, 3), pads=[1, 1, 1, 1])
    weights = numpy_helper.to_array(net.constants[0]).copy()
    weights[0, 0, 0, 0] = np.inf
    net.constants[0] = numpy_helper.from_array(weights, "w0")
    _, _, made = programs(net.model())
    assert made == []


def quantised(height=13, width=7):
    """A small MobileNet with a residual sum and a mean over all rows."""
    m = QuantisedModel(seed=3)
    x = m.node("Transpose", m.activation((1, height, width, 3)), perm=[0, 3, 1, 2])

    def conv(value, shape, group=1, **attrs):
        weights, bias = m.weights(shape), m.weights(shape[:1], bits=32)
        made = m.node("Conv", value, weights, bias, group=group, kernel_shape=shape[2:], **attrs)
        return m.dequantise(m.quantise(made, 0.9), 0.9, -5)

    same = {"pads": [1, 1, 1, 1]}
    value = conv(x, (8, 3, 3, 3), strides=[2, 2], **same)
    rest = conv(value, (8, 1, 3, 3), 8, **same)
    rest = conv(rest, (8, 8, 1, 1))
    value = m.dequantise(m.quantise(m.node("Add", value, rest), 1.3), 1.3, -5)
    value = conv(value, (8, 1, 3, 3), 8, strides=[2, 1], **same)
    value = conv(value, (16, 8, 1, 1))
    m.result = m.build(m.quantise(m.node("GlobalAveragePool", value), 0.5))
    return m


def test_quantised_layers():
    m = quantised(25, 16)
    plain, made = check(m.result.SerializeToString(), m.feeds)
    longest = max(made, key=lambda pair: len(pair[0].segment.ops))[1]
    assert longest.arena_bytes < plain.arena_bytes
    assert any(isinstance(step, While) for step in longest.steps)


def test_mean_of_all_rows_is_gathered():
    m = QuantisedModel(seed=1)
    x = m.node("Transpose", m.activation((1, 40, 3, 4)), perm=[0, 3, 1, 2])
    value = m.node("Conv", x, m.weights((4, 4, 3, 3)), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    value = m.dequantise(m.quantise(value, 0.7), 0.7, -5)
    result = m.build(m.quantise(m.node("GlobalAveragePool", value), 0.137))
    plain, made = check(result.SerializeToString(), m.feeds)
    assert any(p.arena_bytes < plain.arena_bytes for _, p in made)


def test_budget_chooses_the_fastest_that_fits(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    path.write_bytes(quantised(24, 16).result.SerializeToString())
    options = [path, "--target", "c", "--cpu", "cortex-m4"]
    told = json.loads(ok(capsys, "inspect", *options, "--trades", "--json"))
    trades = told["programs"][0]["trades"]
    rams, costs = ([t[key] for t in trades] for key in ("ram", "instructions"))
    assert len(trades) >= 2 and trades[0]["layers_by_rows"] == 0
    assert rams == sorted(rams, reverse=True) and costs == sorted(costs)
    shown = ok(capsys, "inspect", *options, "--ram", rams[-1])
    assert "RAM against instructions" in shown and "more that nothing reads again" in shown
    ok(capsys, "compile", *options, "--ram", rams[0], "-o", tmp_path / "whole")
    ok(capsys, "compile", *options, "--ram", rams[-1], "-o", tmp_path / "rows")
    whole, rows = ((tmp_path / n / "m.c").read_text() for n in ("whole", "rows"))
    assert "for (int32_t trip0" in rows and "for (int32_t trip0" not in whole
    less = ["--ram", rams[-1] - 1, "-o", tmp_path / "b"]
    code, _, error = graphc(capsys, "compile", *options, *less)
    assert code and "are needed" in error


def test_programs_are_the_same_each_time():
    source = quantised().result.SerializeToString()
    texts = [[str(replace(p, trades=())) for _, p in programs(source)[2]] for _ in range(2)]
    assert texts[0] == texts[1]


def test_model_of_one_row_has_no_segments():
    net = FloatModel((1, 2, 1, 1))
    net.conv(2, (1, 1))
    net.add("Sigmoid")
    net.conv(2, (1, 1))
    assert programs(net.model())[2] == [] or check(net.model(), net.feeds)


def test_sums_over_rows_with_weights_of_their_own_are_gathered():
    m = QuantisedModel(seed=4)
    x = m.node("Transpose", m.activation((1, 9, 1, 8)), perm=[0, 3, 1, 2])
    value = m.node("Conv", x, m.weights((8, 8, 1, 1)), kernel_shape=[1, 1])
    value = m.dequantise(m.quantise(value, 0.7), 0.7, -5)
    value = m.node("Conv", value, m.weights((8, 1, 9, 1)), kernel_shape=[9, 1], group=8)
    source = m.build(m.quantise(value, 0.9)).SerializeToString()
    _, made = check(source, m.feeds, least=3)
    ends = {plan.segment.by_rows[-1] for plan, _ in made}
    assert all(isinstance(end, Gathered) and end.sliced for end in ends)


@pytest.mark.parametrize(
    "bands, compact",
    [
        ((1, 2, 3, 2, 5, 1, 2), False),
        ((4, 1, 2, 1, 2, 3, 1), True),
        ((1, 1, 1, 1, 1, 1, 1), True),
        ((2, 3, 1, 4, 1, 2, 4), True),
    ],
)
def test_stages_have_bands_of_their_own(bands, compact):
    m = quantised(25, 6)
    target = MicroC(cpu="cortex-m4", sanitize=True)
    made = []

    class Given(MicroC):
        def draft(self, graph, lower):
            plain = super().draft(graph, lower)  # which optimises the graph
            segment = max(all_segments(graph, composed(graph)), key=lambda s: len(s.ops))
            given = (bands * 2)[: len(segment.heights)]
            plan = RowPlan(segment, tuple(map(min, given, segment.heights)), compact)
            made.append(self.finished(lower(graph, rows=plan)))
            return plain

    plain = to_program(typed(m.result.SerializeToString()), Given(cpu="cortex-m4"), Settings())
    for a, b in zip(target.load(plain)(m.feeds), target.load(made[0])(m.feeds)):
        np.testing.assert_array_equal(a, b)


CHAIN = [Stage(20, 3), *(Stage(20, 3, (Read(n, 1, -1, 1),)) for n in range(3))]


def test_compact_schedules_keep_what_windows_need():
    """Two rows of each stage, and besides a band that is made and one that is read."""
    assert compact_schedule(CHAIN, [8] * 3, 24).nbytes == (3 * 2 + 2 * 3) * 8


@pytest.mark.parametrize("left_out", [Slide, Fill, Run])
def test_replay_finds_events_that_are_missing(left_out):
    plan = compact_schedule(CHAIN, [8] * 3, 24)
    Replay(CHAIN, [8] * 3, plan.nbytes).check(plan.events)
    one = next(e for e in plan.events if isinstance(e, left_out))
    with pytest.raises(InternalError):
        Replay(CHAIN, [8] * 3, plan.nbytes).check([e for e in plan.events if e is not one])


def test_rows_that_wait_while_the_result_goes_on_are_kept():
    stages = [Stage(8, 2), Stage(8, 2, (Read(0, 1, 0, 0),)), Stage(8, 1, (Read(1, 1, 0, 0),))]
    assert schedule(stages).keeps[1] and not schedule(stages).keeps[0]
