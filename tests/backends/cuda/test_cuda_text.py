"""CUDA C of kernels: grids, shared memory and barriers, and the launch plan."""

import json
from dataclasses import replace

import pytest
from cuda_programs import chosen_architectures, cuda_of, needs_nvcc

from graphc.backends.cuda import emit
from graphc.backends.cuda.launches import launches
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.program import program_of
from graphc.ir.text.kernel_parser import parse_kernel

SCALE = """kernel @scale(in x: f32[4,8], out y: f32[4,8]) {
  "y = 2 x"
  parallel i < 4 {
    parallel j < 8 {
      y[i, j] = x[i, j] * 2.0
    }
  }
}"""
REVERSE = """kernel @reverse(in x: f32[2,64], out y: f32[2,64]) {
  block b < 2 {
    shared tile: f32[64]
    thread t < 64 {
      tile[t] = x[b, t]
      barrier
      y[b, t] = tile[63 - t]
    }
  }
}"""
PHASES = """kernel @phases(in x: f32[300], out y: f32[300]) {
  parallel i < 300 {
    y[i] = x[i]
  }
  for j < 3 {
    y[j] = y[j + 1]
  }
  y[9] = 0.0
  parallel k < 300 {
    y[k] = y[k] + 1.0
  }
}"""
PAIR = """kernel @pair(in x: f32[300], out y: f32[300], out z: f32[10]) {
  parallel i < 300 {
    y[i] = x[i] * 2.0
  }
  parallel k < 10 {
    z[k] = x[k]
  }
}"""
SHARED_SCALAR = """kernel @total(in x: f32[300], out y: f32[300]) {
  reg sum: f32[]
  sum[] = 0.0
  for j < 300 {
    sum[] = sum[] + x[j]
  }
  parallel k < 300 {
    y[k] = sum[]
  }
}"""


def text_of(kernel: str) -> str:
    return emit(program_of(parse_kernel(kernel))).text


def test_a_thread_per_element():
    text = text_of(SCALE)
    assert text.endswith("""\
/* y = 2 x */
extern "C" __global__ void __launch_bounds__(256) scale(
    const float *__restrict__ x,
    float *__restrict__ y)
{
    const int32_t element = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (element < 32) {
        y[element] = x[element] * 2.0f;
    }
}
"""), text


def test_a_large_grid_loops_with_its_stride():
    kernel = parse_kernel(SCALE)
    (launch,) = launches(kernel, max_blocks=1)
    assert (launch.grid, launch.block) == (1, 256)
    large = parse_kernel(SCALE.replace("4", "67108864"))
    text = emit(program_of(large)).text
    assert "element < 536870912; element += (int32_t)(gridDim.x * blockDim.x)) {" in text


def test_indices_of_huge_tensors_have_64_bits():
    text = text_of(SCALE.replace("4", "1000000000"))
    assert "for (int64_t element = " in text


def test_offsets_into_huge_tensors_have_64_bits():
    """Although every term of them fits into 32."""
    kernel = """kernel @rows(in x: f32[65536,131072], out y: f32[65536,131072]) {
  block b < 65536 {
    thread t < 128 {
      y[b, t + 5] = x[b, t] + x[10, t]
    }
  }
}"""
    text = text_of(kernel)
    assert "const int64_t tmp1 = (int64_t)b * 131072 + t;\n" in text
    assert "y[tmp1 + 5] = x[tmp1] + x[t + 1310720];" in text
    smaller = text_of(kernel.replace("[65536,", "[16384,").replace("< 65536", "< 16383"))
    assert "const int32_t tmp1 = b * 131072 + t;\n" in smaller


def test_blocks_share_memory():
    text = text_of(REVERSE)
    assert text.endswith("""\
{
    ASSUME_ALIGNED(x);
    ASSUME_ALIGNED(y);
    const int32_t b = (int32_t)blockIdx.x;
    __shared__ __align__(16) float tile[64];
    const int32_t t = (int32_t)threadIdx.x;
    tile[t] = x[b * 64 + t];
    __syncthreads();
    y[b * 64 + t] = tile[t * -1 + 63];
}
"""), text


def test_the_end_of_a_launch_orders_threads():
    found = launches(parse_kernel(PHASES))
    assert [(x.kernel.name, x.grid, x.block) for x in found] == [
        ("phases_0", 2, 256), ("phases_1", 1, 1), ("phases_2", 2, 256),
    ]  # fmt: skip


def test_loops_that_do_not_depend_on_each_other_are_one():
    (found,) = launches(parse_kernel(PAIR))
    assert (found.kernel.name, found.grid, found.block) == ("pair", 2, 256)
    assert len(launches(parse_kernel(PAIR.replace("x[k]", "y[k]")))) == 2
    assert len(launches(parse_kernel(PAIR.replace("x[i]", "z[0]")))) == 2
    assert len(launches(parse_kernel(PAIR.replace("z[k]", "y[k]")))) == 2
    by_vectors = PAIR.replace("y[i] = x[i] * 2.0", "intrin store_vector(y[i], x[i], x[i])")
    assert by_vectors != PAIR and len(launches(parse_kernel(by_vectors))) == 1
    assert len(launches(parse_kernel(by_vectors.replace("x[k]", "y[k]")))) == 2
    (found,) = launches(parse_kernel(PAIR.replace("< 10", "< 0")))
    assert found.grid == 2


def test_pieces_that_share_variables_stay_together():
    (found,) = launches(parse_kernel(SHARED_SCALAR))
    assert (found.grid, found.block) == (1, 1)
    assert "threadIdx" not in text_of(SHARED_SCALAR)


def test_no_launch_without_elements():
    assert launches(parse_kernel(SCALE.replace("4", "0"))) == []


def test_a_block_loop_has_one_form():
    kernel = parse_kernel(REVERSE)
    (blocks,) = kernel.body
    twice = replace(blocks, body=(*blocks.body, blocks.body[-1]))
    with pytest.raises(InternalError, match="one thread loop"):
        launches(replace(kernel, body=(twice,)))


def test_a_loop_may_be_written_out_in_part():
    loops = SCALE.replace("parallel", "unroll", 1)
    assert loops != SCALE and "    #pragma unroll\n" in text_of(loops)
    kernel = parse_kernel(loops)
    (outer,) = kernel.body
    text = emit(program_of(replace(kernel, body=(replace(outer, width=4),)))).text
    assert "    #pragma unroll 4\n" in text


def test_large_arrays_are_parts_of_what_the_launch_asks_for():
    two = REVERSE.replace("64", "12288").replace("thread t", "shared more: f32[5]\n    thread t")
    source = emit(program_of(parse_kernel(two)))
    assert source.plan()["launches"][0]["shared"] == source.steps[0].shared == 4 * 12288 + 20
    assert (
        """\
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    float *const tile = (float *)(shared_memory + 0); /* 12288 elements */
    float *const more = (float *)(shared_memory + 49152); /* 5 elements */
"""
        in source.text
    )


def test_too_much_shared_memory():
    with pytest.raises(UnsupportedError, match="262144 bytes of shared memory; GPUs have 232448"):
        text_of(REVERSE.replace("64", "65536"))


def test_the_launch_plan():
    source = cuda_of("""graph @g(%x: f32[3,50]) -> ? {
  %a = Relu(%x)  loc("first")
  %y = Softmax(%a)  loc("second")
  return %y
}""")
    plan = json.loads(json.dumps(source.plan()))
    assert plan["inputs"] == [{"name": "x", "dtype": "f32", "shape": [3, 50]}]
    assert [n for launch in plan["launches"] for n in launch["nodes"]] == ["first", "second"]
    for launch in plan["launches"]:
        assert f"{launch['function']}(" in source.text
    assert "first" in source.text and "second" in source.text


def test_operands_in_one_place_are_not_restricted():
    program = program_of(parse_kernel(SCALE))
    (step,) = program.steps
    same = replace(step.slots[0], space="output")
    program.steps = [replace(step, slots=(same, step.slots[1]))]
    assert "__restrict__" not in emit(program).text


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_kernels_compile(arch):
    large = REVERSE.replace("tile: f32[64]", "tile: f32[16384]").replace("reverse", "large")
    kernels = (SCALE, REVERSE, PHASES, SHARED_SCALAR, large)
    text = emit(program_of(*map(parse_kernel, kernels))).text
    assert compile_cuda(text, arch, strict=True)
