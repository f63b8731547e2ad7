"""Kernels of graphs as nvcc makes them, in the PTX machine: results, faults, planted errors."""

import numpy as np
import pytest
from cuda_programs import BRANCHES, cuda_of, graph_of, inputs_of, needs_nvcc
from ptx_blocks import compared
from ptx_mutants import ORDERING, Subject, explanation, sampled
from ptx_texts import needs_c

import graphc
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.ptx import PtxFault, PtxKernels, run_ptx
from graphc.backends.cuda.ptx import run as ptx_run
from graphc.backends.cuda.ptx.run import PtxRun
from graphc.backends.cuda.schedule import Schedule
from graphc.errors import ModelError
from graphc.ir.interp import interpret

pytestmark = [needs_c, needs_nvcc]
GRAPHS = {
    "rows": """graph @g(%x: f32[5,300]) -> ? {
  const %s : f32[300] = random(seed=1)
  %n = LayerNormalization(%x, %s)
  %y = Softmax(%n)
  return %y
}""",
    "bytes": """graph @g(%x: i8[20,96]) -> ? {
  const %w : i8[96,24] = random(seed=1)
  %y = MatMulInteger(%x, %w)
  return %y
}""",
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name):
    source = cuda_of(GRAPHS[name])
    inputs = inputs_of(source.program)
    wanted = interpret(graph_of(GRAPHS[name]), inputs)
    for order in (0, 1):
        found = run_ptx(source, "sm_80", order)(inputs)
        for a, b in zip(found, wanted):
            np.testing.assert_allclose(a, b, 2e-5, 2e-5 * max(np.ptp(b), 1e-9))


def test_models_are_compiled_for_it():
    graph = graph_of(GRAPHS["rows"])
    (x,) = [np.linspace(-3, 3, 1500, dtype=np.float32).reshape(5, 300)]
    (wanted,) = interpret(graph, [x])
    model = graphc.compile(graph, target="cuda", simulate="ptx")
    np.testing.assert_allclose(model.run([x])[0], wanted, 1e-4, 1e-6)
    with pytest.raises(ModelError, match="expected ptx, or nothing, found 'gpu'"):
        graphc.compile(graph, target="cuda", simulate="gpu")


@pytest.mark.parametrize("subject", ["mma f16", "wgmma"])
def test_blocks_agree_with_the_simulator(subject):
    made = Subject(subject)
    found = list(compared(made.source, made.arch, ptx="\n".join(made.lines)))
    assert found and all(launch.error < 1e-3 and launch.blocks <= 2 for launch in found)


def survivors(subject, planted):
    """What nothing catches, though it changes something, and why is not known."""
    return [
        m
        for m in planted
        if not explanation(m) and not subject.caught(m) and not subject.equivalent(m)
    ]


@pytest.mark.parametrize("name", ["mma f16", "wgmma", "wgmma held"])
def test_planted_errors_are_caught(name):
    """One of every kind."""
    subject = Subject(name)
    chosen = sampled(subject, 1)
    assert len(chosen) > 25
    assert not survivors(subject, chosen)


@pytest.mark.parametrize("name", [
    "mma f16", "convolution", "sorting", "wgmma held", "wgmma convolution", "wgmma split",
])  # fmt: skip
def test_what_orders_copies_and_products_is_needed(name):
    """No fence, wait, commit, arrival or barrier can be left out, but for needless fences."""
    subject = Subject(name)
    planted = sampled(subject, 99, ORDERING)
    assert planted and not survivors(subject, planted)


def test_launches_come_in_orders_that_dependencies_allow():
    source = cuda_of(BRANCHES)
    inputs = inputs_of(source.program)
    wanted, orders = interpret(graph_of(BRANCHES), inputs), set()
    kernels = PtxKernels(machine_code(source.text, "sm_80", "ptx").decode())
    for seed in range(4):
        run = Ordered(source, kernels, inputs, seed)
        for a, b in zip(run.outputs(), wanted):
            np.testing.assert_allclose(a, b, 1e-4, 1e-5 * max(np.ptp(b), 1e-9))
        orders.add(tuple(run.started))
    assert len(orders) > 1


def test_a_dependency_that_is_missing_is_noticed(monkeypatch):
    source = cuda_of(BRANCHES)
    inputs = inputs_of(source.program)
    none = Schedule(((),) * len(source.steps), (0,) * len(source.steps))
    monkeypatch.setattr(ptx_run, "schedule", lambda steps: none)
    with pytest.raises(PtxFault, match="which was never written"):
        for seed in range(4):
            run_ptx(source, "sm_80", seed)(inputs)


class Ordered(PtxRun):
    """A run that notes in which order launches come."""

    def __init__(self, *given):
        super().__init__(*given)
        self.started = []

    def start(self, step, further=()):
        self.started.append(step.function)
        super().start(step, further)
