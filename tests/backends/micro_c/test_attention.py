"""Attention in a bundle is one function, which keeps no matrix of scores in the arena."""

import numpy as np
import pytest
from differential import build, floats

from graphc.driver import program_for
from graphc.ir.compare import compare
from graphc.ir.interp import interpret
from graphc.targets.micro_c import MicroC

LENGTH, SIZE = 75, 16


def attention(b, q, k, v, m):
    scores = b.Add(b.MatMul(q, b.Transpose(k, perm=[0, 1, 3, 2])), m)
    return b.MatMul(b.Softmax(scores), v)


@pytest.mark.parametrize("cpu, opt", [("generic", "speed"), ("cortex-m0plus", "size")])
def test_scores_are_not_in_the_arena(cpu, opt):
    g = np.random.default_rng(0)
    q, k, v = (floats(g, 1, 2, LENGTH, SIZE) for _ in range(3))
    hidden = g.random((LENGTH, LENGTH)) < 0.5
    hidden[:, 0] = False
    mask = np.where(hidden, -np.inf, 0).astype(np.float32)
    graph, inputs = build(attention, q=q, k=k, v=v, m=mask)
    target = MicroC(cpu=cpu, opt=opt, sanitize=True)
    program = program_for(graph, target)
    assert [name.split("_")[0] for name in program.kernels] == ["attention"]
    assert program.arena_bytes == 0
    (found,) = target.load(program)(inputs)
    agreement = compare("y", found, interpret(graph, inputs)[0])
    assert agreement.within(2e-5), agreement
