"""What C compilers must not do to floats, whatever flags they get, as text that opens a C file.

Kernels take for granted that floats are rounded to nearest even, that sums and quotients stay as
they are written, and that there are NaN, infinity and two zeros. Three things may happen to that:

* -fassociative-math, -freciprocal-math, -fno-signed-zeros and -funsafe-math-optimizations, which
  -ffast-math and -Ofast imply, are taken back by pragmas, as is -fsingle-precision-constant.
* -ffinite-math-only, which they imply too, cannot be: gcc's code for x86 and clang's functions of
  floats have been made for it by then. It is refused by #error; and so is what else a compiler
  says of fast floats that knows none of the pragmas.
* Floats may be *more* precise than written, by fused multiply-add (-ffp-contract) or on an x87
  (FLT_EVAL_METHOD 2). Nothing here depends on that: where bits of a float are looked at, they are
  stored first, so no rounding rests on the width of a sum.

That the pragmas were heeded shows in gcc's macros, but in C++, which is read ahead of its pragmas.
Clang takes back everything on x86, AArch64 and others. On Arm and RISC-V it keeps -fno-signed-zeros
and, before version 18, -freciprocal-math: zeros may lose their sign, and quotients be off by a unit
in the last place. None of this costs an instruction where the flags are the usual ones.
"""

from __future__ import annotations

import re

FLAGS = "-fno-fast-math -fno-finite-math-only"  # what undoes what is refused, after other flags
USES = re.compile(r"\b(?:float|double|float32x4_t)\b")
DOUBLE = re.compile(r"\bdouble\b")

RULES = """\
/* Floats: sums stay in order, quotients are quotients, zeros have signs. What
 * -funsafe-math-optimizations and its kind allow is taken back, or refused if it cannot be. */
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ + 0 != 0
#error "-ffinite-math-only (of -ffast-math, -Ofast): this code needs NaN and infinity. {advice}"
#endif
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wignored-pragmas"
#pragma float_control(precise, on)
#pragma clang diagnostic pop
#pragma clang fp reassociate(off)
#if __clang_major__ >= 18
#pragma clang fp reciprocal(off)
#endif
#elif defined(__INTEL_COMPILER) || defined(_MSC_VER)
#pragma float_control(precise, on)
#else
#if defined(__GNUC__)
#pragma GCC optimize("no-fast-math", "no-unsafe-math-optimizations", "no-associative-math", \\
    "no-reciprocal-math", "signed-zeros", "no-single-precision-constant")
#endif
#if (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \\
    defined(__NO_SIGNED_ZEROS__)) && !(defined(__GNUC__) && defined(__cplusplus))
#error "-ffast-math or a part of it, which this compiler cannot take back here. {advice}"
#endif
#endif
"""
CONSTANT_RULES = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-single-precision-constant")
#endif
"""
ADVICE = f"Add {FLAGS} for this file, after the other flags"
DOUBLES = "typedef char {name}_assert_double[sizeof(1.0) == 8 && DBL_MANT_DIG == 53 ? 1 : -1];\n"


def has_floats(text: str) -> bool:
    """Whether C text computes with floats."""
    return USES.search(text) is not None


def float_rules(text: str) -> str:
    """What stands before C text for it to mean what it says: nothing if it has no floats."""
    return RULES.format(advice=ADVICE) if has_floats(text) else ""


def constant_rules(text: str) -> str:
    """What stands before C text of constants for doubles to keep their digits."""
    return CONSTANT_RULES if DOUBLE.search(text) else ""


def double_check(name: str, text: str) -> str:
    """A declaration that doubles, if C text has any, are those of IEEE 754; needs float.h."""
    return DOUBLES.format(name=name) if DOUBLE.search(text) else ""
