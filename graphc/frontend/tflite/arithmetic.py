"""The numbers of TensorFlow Lite's kernels, computed as its reference kernels compute them.

A real factor is a multiplier of 31 fractional bits, from 1/2 to 1, times a power of two. A product
with it is rounded twice (graphc.ir.ops.gemmlowp). Functions of one value of 8 bits, which the
kernels compute in fixed point, are tables here. All arrays are of int64.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import UnsupportedError

ONE = (1 << 31) - 1  # of 31 fractional bits
LEAST = -(1 << 31)
MOST_FACTOR = 2.0**30
EXPONENTIALS = (  # exp(-2**n) of 31 fractional bits, for n = -2, -1, ...
    1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242,
)  # fmt: skip
EXP_EIGHTH, THIRD = 1895147668, 715827883  # exp(-1/8), 1/3
FIRST_GUESS = 1515870810, -1010580540  # 48/17 and -32/17 of 29 fractional bits


def quantise_multiplier(real: float) -> tuple[int, int]:
    """The multiplier and the exponent of a real factor: multiplier / 2**31 * 2**exponent.

    UnsupportedError for factors of 2**30 and more: of scales that are too far apart.
    """
    if real == 0:
        return 0, 0
    if not abs(real) < MOST_FACTOR:
        raise UnsupportedError(f"a quotient of its scales is {real}, which is out of reach")
    fraction, exponent = math.frexp(real)
    whole = round_away(fraction * (1 << 31))
    if whole == 1 << 31:
        whole, exponent = whole // 2, exponent + 1
    return (0, 0) if exponent < -31 else (whole, exponent)


def round_away(real: float) -> int:
    """The nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(real) + 0.5), real))


def product(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
    """a * b / 2**31, halves rounded up."""
    total = np.asarray(np.asarray(a, np.int64) * b + (1 << 30), np.int64)
    return np.minimum(total >> 31, ONE)


def divide(x: np.ndarray, exponent: int) -> np.ndarray:
    """x / 2**exponent, halves rounded away from zero."""
    below = np.where(x < 0, 1, 0) if exponent else 0
    return np.asarray(x + ((1 << exponent) >> 1) - below, np.int64) >> exponent


def multiply(x: np.ndarray, multiplier: int, exponent: int) -> np.ndarray:
    """x times a real factor, as MultiplyByQuantizedMultiplier has it."""
    return divide(product(wrapped(x << max(exponent, 0)), multiplier), max(-exponent, 0))


def wrapped(x: np.ndarray) -> np.ndarray:
    """Integers as int32 holds them."""
    return x.astype(np.int64).astype(np.int32).astype(np.int64)


def shifted_left(x: np.ndarray, bits: int) -> np.ndarray:
    """x * 2**bits, kept within int32."""
    return np.clip(np.asarray(x, np.int64) << bits, LEAST, ONE)


# ---------------------------------------------------------------- functions in fixed point


def exponential(x: np.ndarray, integer_bits: int) -> np.ndarray:
    """exp(x) of 31 fractional bits, for x not above zero with so many integer bits."""
    fractional = 31 - integer_bits
    quarter = 1 << fractional - 2
    part = (x & quarter - 1) - quarter
    result = _exponential_near_zero(shifted_left(part, integer_bits))
    rest = part - x
    for n, factor in zip(range(-2, integer_bits), EXPONENTIALS):
        result = np.where(rest & (1 << fractional + n), product(result, factor), result)
    return np.where(x == 0, ONE, result)


def _exponential_near_zero(x: np.ndarray) -> np.ndarray:
    """exp(x) for x in -1/4..0."""
    x = x + (1 << 28)
    square = product(x, x)
    cube, fourth = product(square, x), product(square, square)
    rest = divide(product(divide(fourth, 2) + cube, THIRD) + square, 1)
    return EXP_EIGHTH + product(EXP_EIGHTH, x + rest)


def _newton(x: np.ndarray) -> np.ndarray:
    """2 / (1 + x) for x in 0..1, of 29 fractional bits."""
    total = x + ONE
    half = (total + np.where(total >= 0, 1, -1)) // 2
    guess = FIRST_GUESS[0] + product(half, FIRST_GUESS[1])
    for _ in range(3):
        error = (1 << 29) - product(half, guess)
        guess = guess + shifted_left(product(guess, error), 2)
    return guess


def logistic(x: np.ndarray, integer_bits: int) -> np.ndarray:
    """1 / (1 + exp(-x)) of 31 fractional bits."""
    positive = shifted_left(_newton(exponential(-np.abs(x), integer_bits)), 1)
    return np.where(x == 0, 1 << 30, np.where(x > 0, positive, ONE - positive))


def hyperbolic_tangent(x: np.ndarray, integer_bits: int) -> np.ndarray:
    """tanh(x) of 31 fractional bits."""
    power = exponential(-np.abs(x), integer_bits + 1)
    positive = shifted_left(_newton(power) - (1 << 29), 2)
    return np.where(x == 0, 0, np.where(x > 0, positive, -positive))


# ---------------------------------------------------------------- tables of all values of 8 bits


def _sigmoid_operand(x: np.ndarray, scale: float) -> tuple[np.ndarray, int]:
    """Whole numbers times a scale, of 27 fractional bits, and how far from zero counts."""
    multiplier, exponent = quantise_multiplier(scale * (1 << 27))
    radius = math.floor(15 * (1 << 27) / 2.0**exponent)
    inside = np.clip(x, 1 - radius, radius - 1)
    return multiply(inside, multiplier, exponent), radius


def logistic_table(x: np.ndarray, scale: float) -> np.ndarray:
    """Results of 8 bits, in units of 1/256 with zero point -128, of whole numbers."""
    operand, radius = _sigmoid_operand(x, scale)
    result = np.clip(divide(logistic(operand, 4), 23) - 128, -128, 127)
    return np.where(x <= -radius, -128, np.where(x >= radius, 127, result))


def tanh_table(x: np.ndarray, scale: float) -> np.ndarray:
    """Results of 8 bits, in units of 1/128, of whole numbers."""
    operand, radius = _sigmoid_operand(x, scale)
    result = np.clip(divide(hyperbolic_tangent(operand, 4), 24), -128, 127)
    return np.where(x <= -radius, -128, np.where(x >= radius, 127, result))


def softmax_table(scale: float, beta: float) -> np.ndarray:
    """exp(-n * scale * beta) of 31 fractional bits for n in 0..255, 0 where it does not count."""
    real = min(beta * scale * (1 << 26), (1 << 31) - 1.0)
    multiplier, exponent = quantise_multiplier(real)
    reach = math.floor(31 * (1 << 26) / 2.0**exponent)
    n = np.arange(256)
    counted = np.minimum(n, reach)
    operand = product(wrapped(-counted << exponent), multiplier)
    return np.where(n <= reach, exponential(operand, 5), 0)


def hard_swish_table(x: np.ndarray, scale: float, out_scale: float) -> np.ndarray:
    """x * min(max(x + 3, 0), 6) / 6 of whole numbers, in units of out_scale, without zero point."""
    fine = np.float32(1 / 128) * np.float32(scale)
    out, out_exponent = _half_multiplier(float(fine / np.float32(out_scale)))
    by, exponent = _half_multiplier(float(fine / np.float32(3 / 32768)))
    fine_x = x << 7
    value = _half_product(fine_x, out)
    relu = fine_x
    if exponent > 0:
        relu = np.clip(relu << exponent - 1, -(1 << 15), (1 << 15) - 1)
    relu = _half_product(relu, by)
    if exponent > 0:
        relu = np.clip(relu << 1, -(1 << 15), (1 << 15) - 1)
    relu = divide(relu, max(-exponent, 0))
    relu = (relu + (1 << 15)) >> 1
    whole = relu * value
    truncated = np.sign(whole) * (np.abs(whole) >> 15)
    return divide(truncated, max(-out_exponent, 0))


def _half_multiplier(real: float) -> tuple[int, int]:
    """A multiplier of 15 fractional bits, and the exponent."""
    multiplier, exponent = quantise_multiplier(real)
    return min((multiplier + (1 << 15)) >> 16, (1 << 15) - 1), exponent


def _half_product(a: np.ndarray, b: int) -> np.ndarray:
    """a * b / 2**15, halves rounded up."""
    return (a * b + (1 << 14)) >> 15
