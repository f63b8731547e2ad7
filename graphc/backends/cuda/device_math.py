"""Fast approximate math on GPUs: exponentials, quotients and activations by single instructions.

expf, erff, tanhf and division of float32 take 8, 22, 15 and ten or more instructions, division with
a branch. They limit kernels that wait for little else: epilogues of products, rows of f16.
`ex2.approx` and `rcp.approx` are one instruction each, accurate to 2**-22 or so. The functions
below are made of them, without branches. `shorten` uses them where they do no harm:

* Where erf or tanh is added to 1, the sum is what counts, and 1 + erf(-t) = 2**(t p(t)) with a
  polynomial p: within 2**-22, and nearer where the sum is small. 1 + tanh(x) is
  2 / (1 + exp(-2 x)). A constant that x is multiplied by joins the others.
* a / (1 + exp(x)) is a product with an inverse. The sum is scaled, so that no inverse is below the
  normal numbers of float32, where `rcp.approx.ftz` gives 0.
* A value that is rounded to f16 or bf16 needs 11 or 8 digits. So do the operands of the rounding,
  through ops that leave relative errors as they are: products, quotients, choices, roots.

A quotient of two numbers of n digits is never a half of the last digit, and farther than 2**-2n
from one. So it is rounded rightly but for a few pairs of f16, of which one in the last digit is
off. Numbers of f16 are far from the ends of float32; other divisors that are not are scaled.
Operations without such instructions are as in C, and so is the host's arithmetic. The polynomials
are our own fits of log2(1 - erf(t)) / t, by Lawson's reweighting in float64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from graphc.backends.cfamily.spell import Speller, Text
from graphc.ir.dtypes import DType, bf16, f16, f32
from graphc.ir.expr import Call, Const, Expr, fold_call, walk
from graphc.ir.kernel import Kernel, map_body
from graphc.ir.scalar.ops import TABLE, ScalarOp

_INSTRUCTION = """\
[[maybe_unused]] static __device__ inline float {name}(float x)
{{
#ifdef __CUDA_ARCH__
    float result;
    asm("{instruction}.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return {host};
#endif
}}
"""
_FUNCTION = """\
[[maybe_unused]] static __device__ inline float {name}({parameters})
{{
{body}
}}
"""
_SCALED = """\
    const float size = fabsf(b);
    const float scale = size > 0x1p64f ? 0x1p-64f : size < 0x1p-64f ? 0x1p64f : 1.0f;
    return a * inverse(b * scale) * scale;"""
_ERF = """\
    const float t = fabsf(x);
    const float rest = power_of_2(({polynomial}) * t);
    {result}"""
_SUM = "return x < 0.0f ? rest : 2.0f - rest;"
_ALONE = "return t < 0x1p-7f ? x * 1.12837917f : copysignf(1.0f - rest, x);"
_TANH = """\
    const float beyond = 1.0f - 2.0f * inverse(1.0f + power_of_2(x * 2.88539008f));
    return fabsf(x) < 0x1p-7f ? x : beyond;"""
_ERFC_F32 = (-3.965544e-05, 3.9756697e-04, -1.3300354e-03, -1.0428486e-03, 2.8495807e-02,
             -1.4859569e-01, -9.183916e-01, -1.6279104)  # fmt: skip
_ERFC_NARROW = (-2.0931964e-03, 2.5206396e-02, -1.4093201e-01, -9.2385215e-01, -1.6267496)
_ERF_NARROW = (-2.9960992e-03, 2.9797263e-02, -1.4893694e-01, -9.183765e-01, -1.6279082)


def _erf(coefficients: Sequence[float], result: str) -> str:
    """A function of erf, by Horner's scheme, the highest power first."""
    text = f"{coefficients[0]}f"
    for position, c in enumerate(coefficients[1:]):
        text = f"({text}) * t" if position else f"{text} * t"
        text += f" {'-' if c < 0 else '+'} {abs(c)}f"
    return _ERF.format(polynomial=text, result=result)


_BODIES = {  # parameters and statements
    "exp_f16": ("x", "    return power_of_2(x * 1.44269504f);"),
    "exp_bf16": ("x", "    return any_power_of_2(x * 1.44269504f);"),
    "div_f16": ("a, b", "    return a * inverse(b);"),
    "div_bf16": ("a, b", _SCALED),
    "logistic_f32": ("x", "    return 0.25f * inverse(0.25f + 0.25f * expf(x));"),
    "logistic_f16": ("x", "    return inverse(1.0f + power_of_2(x * 1.44269504f));"),
    "logistic_bf16": (
        "x",
        "    const float power = power_of_2(x * 1.44269504f - 24.0f);\n"
        "    return 0x1p-24f * inverse(0x1p-24f + power);",
    ),
    "erf_plus_1_f32": ("x", _erf(_ERFC_F32, _SUM)),
    "erf_plus_1_narrow": ("x", _erf(_ERFC_NARROW, _SUM)),
    "erf_narrow": ("x", _erf(_ERF_NARROW, _ALONE)),
    "tanh_plus_1": (
        "x, scale",
        "    return inverse(0.5f + 0.5f * power_of_2(x * (scale * -2.88539008f)));",
    ),
    "tanh_narrow": ("x", _TANH),
}  # fmt: skip
_INSTRUCTIONS = {  # and what the host has instead
    "power_of_2": ("ex2.approx.ftz", "exp2f(x)"),
    "any_power_of_2": ("ex2.approx", "exp2f(x)"),
    "inverse": ("rcp.approx.ftz", "1.0f / x"),
}
_OPS = {n: ScalarOp(n, len(p.split(", ")), "same", None) for n, (p, _) in _BODIES.items()}
FUNCTIONS = frozenset(_BODIES)


def functions_text(needed: set[str]) -> str:
    """The functions above that are needed, after the instructions they use."""
    texts = [_function(name) for name in sorted(needed & FUNCTIONS)]
    used = {name for text in texts for name in re.findall(r"\w+", text)}
    texts[:0] = [
        _INSTRUCTION.format(name=name, instruction=instruction, host=host)
        for name, (instruction, host) in _INSTRUCTIONS.items()
        if name in used
    ]
    return "".join(text + "\n" for text in texts)


def _function(name: str) -> str:
    parameters, body = _BODIES[name]
    listed = ", ".join(f"float {x}" for x in parameters.split(", "))
    return _FUNCTION.format(name=name, parameters=listed, body=body)


class DeviceSpeller(Speller):
    """Spells calls of the functions above."""

    def float_op(self, node: Call, args: Sequence[Text]) -> Text:
        if node.op.name not in _OPS:
            return super().float_op(node, args)
        result = self.call(node.op.name, *args)
        return result if node.dtype is f32 else self.rounded(result, node.dtype)


# ---------------------------------------------------------------- where they are used

_NARROW = (f16, bf16)
_KEEP_ERRORS = ("mul", "div", "neg", "abs", "min", "max", "sqrt", "select")


def shorten(kernel: Kernel) -> Kernel:
    """The kernel with the functions above where they are as good as those of C."""
    return replace(kernel, body=map_body(kernel.body, _shortened))


def _shortened(root: Expr) -> Expr:
    digits = _digits(root)
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        new = tuple(done[child] for child in node.children)
        changed = any(a is not b for a, b in zip(new, node.children))
        result = node.rebuild(new) if changed else node
        done[node] = _shorter(result, digits[node]) if isinstance(result, Call) else result
    return done[root]


def _digits(root: Expr) -> dict[Expr, DType | None]:
    """The narrow type whose digits are what is seen of each value; None if all are."""
    seen = {root: root.dtype if root.dtype in _NARROW else None}
    for node in reversed(list(walk(root))):
        for position, child in enumerate(node.children):
            kind = _digits_of_operand(node, position, seen[node])
            seen[child] = _finer(seen[child], kind) if child in seen else kind
    return seen


def _digits_of_operand(node: Expr, position: int, kind: DType | None) -> DType | None:
    dtype = node.children[position].dtype
    if dtype in _NARROW:
        return dtype
    if dtype is not f32 or not isinstance(node, Call):
        return None
    if node.op.name == "cast":
        return node.dtype if node.dtype in _NARROW else None
    return kind if node.op.name in _KEEP_ERRORS else None


def _finer(a: DType | None, b: DType | None) -> DType | None:
    return a if a is b else f16 if a and b else None


def _shorter(node: Call, kind: DType | None) -> Expr:
    """The node by a function above, if there is one for so many digits."""
    short = _of_sum(node, kind) if node.dtype is f32 else None
    if short is not None or kind is None:
        return node if short is None else short
    name, exact = node.op.name, node.dtype is kind
    if name == "exp":
        return _call(f"exp_{kind}", *node.args)
    if name == "div":
        return _call("div_f16" if exact and kind is f16 else "div_bf16", *node.args)
    if name in ("erf", "tanh"):
        return _call(f"{name}_narrow", *node.args)
    return node


def _of_sum(node: Call, kind: DType | None) -> Expr | None:
    """1 + erf(x), 1 + tanh(x) or a / (1 + exp(x)) of float32; None for all else."""
    if (x := _added_to_1(node, "erf")) is not None:
        return _call(f"erf_plus_1_{'narrow' if kind else 'f32'}", x)
    if (x := _added_to_1(node, "tanh")) is not None:
        return _call("tanh_plus_1", *_scaled(x))
    if node.op.name == "div" and (x := _added_to_1(node.args[1], "exp")) is not None:
        gate = _call(f"logistic_{kind or f32}", x)
        return fold_call(TABLE["mul"], (node.args[0], gate), f32)
    return None


def _scaled(x: Expr) -> tuple[Expr, Expr]:
    """A value as the product of another one and a positive constant."""
    if isinstance(x, Call) and x.op.name == "mul":
        for value, scale in (x.args, x.args[::-1]):
            if isinstance(scale, Const) and scale.value > 0:
                return value, scale
    return x, Const(1.0, x.dtype)


def _added_to_1(node: Expr, function: str) -> Expr | None:
    """x of function(x) + 1, in float32."""
    if not (isinstance(node, Call) and node.op.name == "add" and node.dtype is f32):
        return None
    for one, term in (node.args, node.args[::-1]):
        if isinstance(one, Const) and one.value == 1 and isinstance(term, Call):
            if term.op.name == function:
                return term.args[0]
    return None


def _call(name: str, *args: Expr) -> Call:
    return Call(_OPS[name], args, args[0].dtype)
