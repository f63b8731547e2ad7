"""C text of kernels: what it looks like, and that it computes what the kernel interpreter does."""

import re
from pathlib import Path

import numpy as np
import pytest

from graphc.backends.c99 import build, emit
from graphc.backends.cfamily.names import comment, identifier
from graphc.backends.cfamily.printer import Dialect, print_c
from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.expr import Const, Expr, Index, Load, cast, select
from graphc.ir.kernel import Buffer, For, Kernel, Store
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.program import program_of
from graphc.ir.text.constant_parser import random_array
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.text.program_parser import parse_program

SAMPLES = Path(__file__).parents[2] / "text" / "kernels.gir"
STRICT = (
    "-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-Werror",
    "-pedantic",
    "-Wno-tautological-compare", "-shared", "-fPIC",
)  # fmt: skip


def check(*kernels: Kernel) -> None:
    """C and the interpreter agree on random inputs (outputs are written, not updated)."""
    program = program_of(*kernels)
    inputs = [random_array(t.shape, t.dtype, n) for n, (_, t) in enumerate(program.inputs)]
    found = iter(build(program, STRICT)(inputs))
    given = iter(inputs)
    for kernel in kernels:
        arrays = {}
        for buffer in kernel.params:
            is_input = buffer.access == "in"
            arrays[buffer.name] = (
                next(given) if is_input else np.zeros(buffer.shape, buffer.dtype.np)
            )
        run_kernel(kernel, arrays)
        for buffer in kernel.params:
            if buffer.access != "in":
                expected = arrays[buffer.name].astype(np.float64)
                actual = next(found).astype(np.float64)
                assert np.allclose(actual, expected, 1e-6, 1e-6, equal_nan=True), kernel.name


def test_the_text_of_a_kernel():
    kernel = parse_kernel("""kernel @scale(in x: f32[4,8], in s: f32[], out y: f32[4,8]) {
      "y = s * x  */ #define"
      parallel i < 4 {
        reg total: f32[]
        total[] = 0.0
        vector j < 8 {
          let t: f32 = x[i, j] * s[]
          y[i, j] = select(i > 0 && j < 7 || t < 0.0, t, -t)
          total[] = total[] + t * t
        }
        y[i, 0] = sqrt(total[])
      }
    }""")
    assert (
        print_c(kernel)
        == """\
/* y = s * x  * / #define */
static void scale(const float *x, const float *s, float *y)
{
    for (int64_t i = 0; i < 4; ++i) {
        float total = 0.0f;
        for (int64_t j = 0; j < 8; ++j) {
            const float t = x[i * 8 + j] * s[0];
            y[i * 8 + j] = (i > 0 && j < 7) || t < 0.0f ? t : -t;
            total = total + t * t;
        }
        y[i * 8] = sqrtf(total);
    }
}
"""
    )


def test_samples_agree_with_the_interpreter():
    texts = re.split(r"^// ---- case.*$", SAMPLES.read_text(), flags=re.MULTILINE)[1:]
    kernels = [parse_kernel(text) for text in texts]
    check(*(k for k in kernels if k.name in ("softmax", "collatz")))


def test_dialects():
    text = print_c(
        parse_kernel("kernel @k(in x: f32[4], out y: f32[4]) { for i < 4 { y[i] = x[i] } }"),
        Dialect(function="void", index=dtypes.i32, restrict="restrict"),
    )
    assert "void k(const float *restrict x, float *restrict y)" in text
    assert "for (int32_t i = 0; i < 4; ++i)" in text


def test_a_select_evaluates_one_branch():
    check(
        parse_kernel("""kernel @guarded(in x: f32[8], in n: i64[8], out y: f32[8]) {
      for i < 8 {
        y[i] = select(i < 7, exp(x[i + 1]) * exp(x[i + 1]), select(i > 7, x[n[0] * 100000000], 2.0))
      }
    }""")
    )


def test_shared_values_are_computed_once():
    x: Expr = Load("x", (Index("i", 4),), dtypes.f32)
    for _ in range(64):
        x = x * x + 1.0
    i = Index("i", 4)
    buffers = (Buffer("x", dtypes.f32, (4,)), Buffer("y", dtypes.f32, (4,), "out"))
    for value in (x, select(i > 1, x, x + x * x)):
        kernel = Kernel("deep", buffers, (For(i, (Store("y", (i,), value),)),))
        assert len(print_c(kernel)) < 10000


def test_loops_whose_condition_needs_temporaries():
    check(
        parse_kernel("""kernel @newton(in x: f32[8], out y: f32[8], out n: i32[8]) {
      for i < 8 {
        let a: f32 = abs(x[i]) + 1.0
        reg r: f32[]
        r[] = a
        n[i] = 0
        while (r[] * r[] - a) * (r[] * r[] - a) > 1e-6 && n[i] < 20 {
          r[] = 0.5 * (r[] + a / r[])
          n[i] = n[i] + 1
        }
        y[i] = r[]
      }
    }""")
    )


def test_extents_are_evaluated_once():
    check(
        parse_kernel("""kernel @extents(in n: i64[4], out y: i64[16]) {
      reg t: i64[]
      for j < 16 {
        y[j] = 0
      }
      t[] = abs(n[0]) % 4 + 3
      for i < select(t[] > 4, t[], t[] + 1) {
        t[] = t[] + 1
        y[i + abs(n[1]) * 0] = t[] * 3 - 1
        for j < t[] // 9 {
          y[15] = y[15] + 1
        }
      }
    }""")
    )


def test_names_become_identifiers():
    assert identifier("a/b:0") == "a_b_0"
    assert identifier("0") == "v0"
    assert identifier("float") == "float_1"
    assert identifier("expf") == "expf_1"
    assert identifier("min_f32") == "min_f32_1"
    assert identifier("x", {"x", "x_1"}) == "x_2"
    assert comment("a */ b /* c \\") == "/* a * / b / * c / */"
    check(
        parse_kernel("""kernel @"run"(in "a b": f32[4], in "a:b": f32[4], out exp: f32[4]) {
      for int < 4 {
        let tmp1: f32 = exp("a b"[int])
        exp[int] = tmp1 * tmp1 + "a:b"[int] * ("a:b"[int] + tmp1)
      }
    }""")
    )


def test_local_arrays_of_every_width():
    check(
        parse_kernel("""kernel @widths(in x: f32[16], out y: f32[16]) {
      stack h: f16[16]
      stack b: bf16[2,8]
      stack q: i4[16]
      stack z: bool[]
      for i < 16 {
        h[i] = cast<f16>(x[i])
        b[i // 8, i % 8] = cast<bf16>(x[i])
        q[i] = cast<i4>(x[i] * 3.0)
      }
      z[] = x[0] > 0.0
      for i < 16 {
        y[i] = select(z[], cast<f32>(h[15 - i]), cast<f32>(b[i % 2, i // 2])) + cast<f32>(q[i])
      }
    }""")
    )


COMPARISONS = (Expr.__lt__, Expr.__ge__, Expr.eq, Expr.ne)
LOGIC = (Expr.__and__, Expr.__or__, Expr.__xor__)
ARITHMETIC = (Expr.__add__, Expr.__sub__, Expr.__mul__, lambda a, b: a - (b - a), lambda a, b: -a)
INTEGER = (*ARITHMETIC, Expr.__floordiv__, Expr.__mod__, lambda a, b: (a & b) | (a ^ b))
VALUES = (dtypes.f32, dtypes.i64, dtypes.i32, dtypes.boolean)


def random_expr(rng: np.random.Generator, dtype, depth: int, i: Index) -> Expr:
    """A random tree over loads of x (f32), n (i64), m (i32) and the index."""

    def pick(choices):
        return choices[int(rng.integers(len(choices)))]

    def draw(t=dtype):
        return random_expr(rng, t, depth - 1, i)

    if depth == 0 or rng.random() < 0.1:
        return pick(leaves(rng, dtype, i))
    kind = rng.random()
    if kind < 0.15:
        return select(draw(dtypes.boolean), draw(), draw())
    if dtype is dtypes.boolean:
        if kind < 0.3:
            return ~draw()
        other = pick(VALUES[:3])
        return (
            pick(COMPARISONS)(draw(other), draw(other))
            if kind < 0.6
            else pick(LOGIC)(draw(), draw())
        )
    if kind < 0.3:
        return cast(draw(pick([t for t in VALUES if t is not dtype])), dtype)
    return pick(ARITHMETIC if dtype.is_float else INTEGER)(draw(), draw())


def leaves(rng: np.random.Generator, dtype, i: Index) -> list[Expr]:
    number = int(rng.integers(-5, 6))
    if dtype is dtypes.boolean:
        return [Load("x", (i,), dtypes.f32) > 0.5, i < 3]
    source = {dtypes.f32: "x", dtypes.i64: "n", dtypes.i32: "m"}[dtype]
    nodes = [Load(source, (i,), dtype), Const(number, dtype)]
    return [*nodes, i] if dtype is dtypes.i64 else nodes


def test_random_expressions():
    rng = np.random.default_rng(0)
    i = Index("i", 24)
    kernels = []
    for number in range(120):
        dtype = (dtypes.f32, dtypes.i64, dtypes.i32, dtypes.boolean)[number % 4]
        value = random_expr(rng, dtype, 5, i)
        inputs = [Buffer(name, t, (24,)) for name, t in
                  (("x", dtypes.f32), ("n", dtypes.i64), ("m", dtypes.i32))]  # fmt: skip
        output = Buffer("y", dtype, (24,), "out")
        body = (For(i, (Store("y", (i,), value),)),)
        kernels.append(Kernel(f"k{number}", (*inputs, output), body))
    check(*kernels)


def test_what_plain_c_lacks_is_refused():
    for body in ("thread t < 2 { barrier }", "intrin dot(1)"):
        with pytest.raises(UnsupportedError, match="kernel @k: .*plain C"):
            print_c(parse_kernel(f"kernel @k() {{ {body} }}"))


PROGRAM = """
program @m {
  input x : f32[4]
  output y : f32[8]
  arena 32 bound 16
  const 0 : f32[4] = [1.0, 2.0, 3.0, 4.0]
  run @add(input 0 : f32[4], const 0 : f32[4], arena + 16 : f32[4])  loc("first", "*/")
  run @add(arena + 16 : f32[4], const 0 : f32[4], arena + 16 : f32[4])
  run @add(arena + 16 : f32[4], input 0 : f32[4], output 0 : f32[4])
  run @add(arena + 16 : f32[4], const 0 : f32[4], output 0 + 16 : f32[4])
  kernel @add(in a: f32[4], in b: f32[4], out c: f32[4]) {
    parallel i < 4 {
      c[i] = a[i] + b[i]
    }
  }
}
"""


def test_a_program():
    program = parse_program(PROGRAM)
    run = build(program, STRICT)
    x, c = np.float32([1, 10, 100, 1000]), program.constants[0]
    (y,) = run([x])
    assert (y == np.concatenate([x + c + c + x, x + c + c + c])).all()
    text = emit(program)
    assert text == emit(parse_program(PROGRAM))
    assert (
        "/* first, * / */\n    add((const float *)inputs[0], (const float *)constants[0]," in text
    )
    with pytest.raises(ModelError, match=r"input x takes f32\[4\], found float64\[4\]"):
        run([x.astype(np.float64)])
    with pytest.raises(ModelError, match="takes 1 inputs, found 2"):
        run([x, x])
