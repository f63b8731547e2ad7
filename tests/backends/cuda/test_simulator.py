"""The simulator: runs what is right, and catches what would go wrong on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import cuda_of, inputs_of, needs_compiler

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.errors import ModelError
from graphc.ir.program import program_of
from graphc.ir.text.kernel_parser import parse_kernel

pytestmark = needs_compiler

REVERSE = """kernel @reverse(in x: f32[3,64], out y: f32[3,64]) {
  block b < 3 {
    shared tile: f32[64]
    thread t < 64 {
      tile[t] = x[b, t]
      barrier
      y[b, t] = tile[63 - t]
    }
  }
}"""
LAYER_NORM = """graph @g(%x: f32[3,1500]) -> ? {
  const %s : f32[1500] = random(seed=1)
  %y = LayerNormalization(%x, %s)
  return %y
}"""
PRODUCT = """graph @g(%x: f32[40,33], %w: f32[33,70]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""


def reverse() -> CudaSource:
    return emit(program_of(parse_kernel(REVERSE)))


def planted(source: CudaSource, old: str, new: str) -> CudaSource:
    """The source with its first `old` replaced."""
    assert old in source.text
    return replace(source, text=source.text.replace(old, new, 1))


def test_threads_of_a_block_wait_for_one_another():
    source = reverse()
    (x,) = inputs_of(source.program)
    (y,) = simulate(source, orders=(0, 1, 2))([x])
    assert np.array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("graph", [LAYER_NORM, PRODUCT])
def test_a_removed_barrier_is_caught(graph):
    source = cuda_of(graph)
    inputs = inputs_of(source.program)
    simulate(source)(inputs)
    barrier = "__syncthreads();"
    pieces = source.text.split(barrier)
    for position in range(1, len(pieces)):
        text = barrier.join(pieces[:position]) + barrier.join(pieces[position:])
        with pytest.raises(SimulationError, match="no barrier between|unwritten element"):
            simulate(replace(source, text=text))(inputs)


def test_an_off_by_one_bound_is_caught():
    source = cuda_of("""graph @g(%x: f32[30]) -> ? {
  %y = Sqrt(%x)
  return %y
}""")
    inputs = inputs_of(source.program)
    with pytest.raises(SimulationError, match=r"\[30\], which has 30 elements"):
        simulate(planted(source, "< 30", "<= 30"))(inputs)


def test_an_unwritten_element_is_caught():
    source = cuda_of("""graph @g(%x: f32[30]) -> ? {
  %y = Sqrt(%x)
  return %y
}""")
    with pytest.raises(SimulationError, match="output y: element 29 was never written"):
        simulate(planted(source, "< 30", "< 29"))(inputs_of(source.program))


def test_an_unwritten_element_between_kernels_is_caught():
    graph = """graph @g(%x: f32[40,33]) -> ? {
  const %w : f32[33,70] = random(seed=1)
  const %v : f32[70,20] = random(seed=2)
  %a = MatMul(%x, %w)
  %y = MatMul(%a, %v)
  return %y
}"""
    source = cuda_of(graph)
    first, second = source.steps
    assert [s.space for s in second.slots].count("arena") == 1
    simulate(source)(inputs_of(source.program))
    fewer = replace(source, steps=[replace(first, grid=first.grid - 1), second])
    with pytest.raises(SimulationError, match=f"{second.function}: read of the unwritten element"):
        simulate(fewer)(inputs_of(source.program))


def run_body(body: str, threads: int = 64) -> np.ndarray:
    """What a kernel body leaves in `y`, over threads `t` of one block and an input `x`."""
    text = REVERSE.replace("[3,64]", f"[1,{threads}]").replace("b < 3", "b < 1")
    text = text.replace("63", str(threads - 1)).replace("f32[64]", f"f32[{threads}]")
    source = emit(program_of(parse_kernel(text.replace("t < 64", f"t < {threads}"))))
    start = source.text.index("    tile[t] =")
    source = replace(source, text=source.text[:start] + body + "\n}\n")
    x = np.arange(threads, dtype=np.float32).reshape(1, threads)
    return simulate(source, orders=(0, 1, 5))([x])[0][0]


LARGE = REVERSE.replace("63 -", "16383 -").replace("64", "16384").replace("t < 16384", "t < 512")
LARGE = LARGE.replace(
    """      tile[t] = x[b, t]
      barrier
      y[b, t] = tile[16383 - t]""",
    """      for k < 32 {
        tile[k * 512 + t] = x[b, k * 512 + t]
      }
      barrier
      for k < 32 {
        y[b, k * 512 + t] = tile[16383 - k * 512 - t]
      }""",
)


def test_shared_memory_that_the_launch_asks_for():
    source = emit(program_of(parse_kernel(LARGE)))
    (step,) = source.steps
    (x,) = inputs_of(source.program)
    assert step.shared == 1 << 16
    (y,) = simulate(source)([x])
    assert np.array_equal(y, x[:, ::-1])
    less = replace(source, steps=[replace(step, shared=step.shared - 16)])
    with pytest.raises(SimulationError, match="tile ends beyond the 65520 bytes"):
        simulate(less)([x])
    with pytest.raises(SimulationError, match="which has 16384 elements"):
        simulate(planted(source, "+ 16383]", "+ 16384]"))([x])
    with pytest.raises(SimulationError, match="no barrier|unwritten"):
        simulate(planted(source, "__syncthreads();", ""))([x])


def test_threads_that_miss_a_barrier_are_caught():
    with pytest.raises(SimulationError, match="ended while others wait"):
        run_body("if (t > 3) { __syncthreads(); } y[t] = x[t];")


def test_results_that_depend_on_the_order_of_threads_are_caught():
    with pytest.raises(SimulationError, match="depends on the order of threads"):
        run_body("y[t] = x[t]; if (t < 3) { y[0] = x[t]; }")


def test_shuffles():
    lanes = np.arange(64)
    xor = run_body("y[t] = __shfl_xor_sync(0xffffffffu, (float)x[t], 5);")
    assert np.array_equal(xor, lanes ^ 5)
    down = run_body("y[t] = __shfl_down_sync(0xffffffffu, (float)x[t], 3);")
    assert np.array_equal(down, np.where(lanes % 32 < 29, lanes + 3, lanes))
    up = run_body("y[t] = __shfl_up_sync(0xffffffffu, (float)x[t], 3);")
    assert np.array_equal(up, np.where(lanes % 32 >= 3, lanes - 3, lanes))
    first = run_body("y[t] = __shfl_sync(0xffffffffu, (float)x[t], 0);")
    assert np.array_equal(first, lanes // 32 * 32)


def test_votes():
    ballot = run_body("y[t] = (float)(__ballot_sync(0xffffffffu, t % 32 < 3) == 7u);")
    assert ballot.all()
    votes = run_body(
        "y[t] = (float)(__any_sync(0xffffffffu, t == 5) * 2 + __all_sync(0xffffffffu, t >= 32));"
    )
    assert np.array_equal(votes, np.where(np.arange(64) < 32, 2, 1))


def test_warps_order_what_their_threads_share():
    body = "tile[t] = x[t]; __syncwarp(); y[t] = tile[t ^ 1];"
    assert np.array_equal(run_body(body), np.arange(64) ^ 1)
    with pytest.raises(SimulationError, match="no barrier between|unwritten"):
        run_body("tile[t] = x[t]; __syncwarp(); y[t] = tile[63 - t];")


def test_shuffles_do_not_order_memory():
    body = "tile[t] = x[t]; const float v = __shfl_xor_sync(0xffffffffu, (float)x[t], 1);"
    assert np.array_equal(run_body(f"{body} __syncwarp(); y[t] = tile[t ^ 1] - v;"), np.zeros(64))
    with pytest.raises(SimulationError, match="no barrier between"):
        run_body(f"{body} y[t] = tile[t ^ 1] - v;")


def test_atomics():
    body = "y[t] = 0.0f; __syncthreads(); atomicAdd(&y[t % 2], (float)x[t]);"
    found = run_body(body)
    assert found[0] == sum(range(0, 64, 2)) and found[1] == sum(range(1, 64, 2))


def test_inputs_are_checked():
    with pytest.raises(ModelError, match="takes 1 inputs, found 0"):
        simulate(reverse())([])
    with pytest.raises(ModelError, match=r"input x takes"):
        simulate(reverse())([np.zeros((3, 63), np.float32)])
