"""The one simplifier for integer index arithmetic, with interval bounds.

An i64 expression is normalised to a polynomial: a sum of `coefficient * product of atoms` plus a
constant, where an atom is anything that is not a sum or product (an Index, a Load, a `//` or `%`
that did not go away, ...). Division by a constant splits the polynomial into the part divisible by
it and a remainder; when the bounds of the remainder fit, the division disappears. Together with `(e
// c) * c + e % c -> e` this proves that unravelling a ravelled index is the identity, which makes
reshapes free. `//` and `%` floor.

Dimensions and loop indices are taken never to overflow. Numbers loaded from tensors may, and i64
arithmetic wraps, so divisions and comparisons of loads without bounds are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from graphc.deadline import check_time
from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Ref,
    Sym,
    call,
    fold_call,
    loads,
    substitute,
    symbols,
)
from graphc.ir.scalar.ops import TABLE
from graphc.ir.text.expr_printer import to_text

Poly = dict[tuple[Expr, ...], int]  # atoms (sorted by text) -> coefficient; () is the constant
Bounds = tuple[float, float]  # inclusive; +-inf when unknown
_ADD, _SUB, _MUL, _MOD = (TABLE[name] for name in ("add", "sub", "mul", "mod"))
_UNKNOWN: Bounds = (-math.inf, math.inf)
_ITSELF: Poly = {}  # of an atom, in place of a polynomial that would keep its node alive
LARGEST = 4000  # nodes of an expression that is simplified; arithmetic on data can be larger
MOST_TERMS = 256  # of a product that is multiplied out


def simplify(root: Expr, mapping: Mapping[Any, Expr] | None = None) -> Expr:
    """An expression with the same value on every index in range, in normal form; of `root` with
    nodes replaced, if there is a mapping."""
    if mapping:
        root = substitute(root, mapping, simplify)
    if root._simple is None:
        for node in _not_yet_simple(root):
            new = [c._simple for c in node.children if c._simple is not None]
            same = all([a is b for a, b in zip(new, node.children)])
            rebuilt = node if same else node.rebuild(new)
            simple = rebuilt._simple
            if simple is None:
                simple = _simplify_node(rebuilt)
            node._simple = rebuilt._simple = simple._simple = simple
    assert root._simple is not None
    return root._simple


def _not_yet_simple(root: Expr) -> Iterator[Expr]:
    """Distinct nodes without a normal form so far, children before parents."""
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = [c for c in node.children if c._simple is None]
        if waiting and node._simple is None:
            stack += reversed(waiting)
        else:
            stack.pop()
            if node._simple is None:
                yield node


def _simplify_node(node: Expr) -> Expr:
    """The normal form of a node whose children are in normal form."""
    if node.weight > LARGEST:
        return node
    if node.dtype is i64 and isinstance(node, (Call, Index)):
        return from_poly(_poly(node))
    if isinstance(node, Call) and node.dtype is boolean and node.op.rule == "compare":
        decided = _compare(node)
        return node if decided is None else decided
    return node


# ---------------------------------------------------------------- polynomials


def to_poly(node: Expr) -> Poly:
    """The polynomial of an i64 expression, which the caller may change. One too large to be index
    arithmetic is an atom."""
    return dict(_poly(node))


def _poly(node: Expr) -> Poly:
    """As `to_poly`; kept with the node, so that nobody may change it."""
    if isinstance(node, Const):
        return {(): node.value} if node.value else {}
    if isinstance(node, Call) and node.dtype is i64:
        poly = node._poly
        if poly is None:
            build = _POLY.get(node.op.name) if node.weight <= LARGEST else None
            poly = build(*node.args) if build else _ITSELF
            node._poly = poly = _ITSELF if (node,) in poly else poly
        return {(node,): 1} if poly is _ITSELF else poly
    return {} if isinstance(node, Index) and node.extent == 1 else {(node,): 1}


def from_poly(poly: Poly) -> Expr:
    """The expression of a polynomial, with terms in a fixed order."""
    terms = [item for item in poly.items() if item[0]]
    if len(terms) > 1:
        terms.sort(key=_term_key)
    result: Expr | None = None
    for atoms, coefficient in terms:
        term = atoms[0]
        for atom in atoms[1:]:
            term = fold_call(_MUL, (term, atom), i64)
        if result is None:
            result = _times_number(term, coefficient)
        else:
            result = _joined_by_sign(result, _times_number(term, abs(coefficient)), coefficient)
    constant = poly.get((), 0)
    if result is None:
        return Const(constant, i64)
    return _joined_by_sign(result, Const(abs(constant), i64), constant) if constant else result


def _times_number(term: Expr, number: int) -> Expr:
    return term if number == 1 else fold_call(_MUL, (term, Const(number, i64)), i64)


def _joined_by_sign(left: Expr, right: Expr, sign: int) -> Expr:
    """The difference if the sign is negative, else the sum."""
    return fold_call(_SUB if sign < 0 else _ADD, (left, right), i64)


def _term_key(item: tuple[tuple[Expr, ...], int]) -> tuple:
    atoms, coefficient = item
    return (-abs(coefficient), [to_text(a) for a in atoms])


def _add(a: Poly, b: Poly, scale: int = 1) -> Poly:
    out = dict(a)
    for key, value in b.items():
        total = out.get(key, 0) + scale * value
        if total:
            out[key] = total
        else:
            out.pop(key, None)
    return _recombine(out) if len(out) > 1 else out


def _multiply(a: Poly, b: Poly) -> Poly:
    if len(a) == len(b) == 1:
        ((left, x),), ((right, y),) = a.items(), b.items()
        return {_key(left, right): x * y} if x * y else {}
    out: Poly = {}
    for left, x in a.items():
        for right, y in b.items():
            out = _add(out, {_key(left, right): x * y})
    return out


def _key(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The atoms of a product."""
    return tuple(sorted(left + right, key=to_text)) if left and right else left or right


def _recombine(poly: Poly) -> Poly:
    """(e // c) * k*c + (e % c) * k  ->  e * k, and its step (e//a % b)*a + e%a -> e % (a*b)."""
    for key, k in poly.items():
        for atom in key:
            if isinstance(atom, Call) and atom.op is _MOD:
                break
        else:
            continue
        if symbols(atom.args[1]) and (joined := _joined(poly, key, atom)) is not None:
            return joined
        if len(key) > 1 or not isinstance(atom.args[1], Const):
            continue
        inner, c = atom.args[0], atom.args[1].value
        for other, factor in poly.items():
            if factor != k * c or other is key or len(other) != 1:
                continue
            whole = _rejoin(other[0], inner, c)
            if whole is not None:
                rest = {t: v for t, v in poly.items() if t not in (key, other)}
                return _add(rest, _poly(whole), k)
    return poly


def _joined(poly: Poly, key: tuple[Expr, ...], atom: Call) -> Poly | None:
    """A polynomial with k * (e % s) and k * (e // s) * s as k * e, for symbols s."""
    inner, size = atom.args
    others = list(key)
    others.remove(atom)
    scale = {tuple(others): poly[key]}
    quotient = _floordiv(inner, size)
    high = _multiply(_multiply(quotient, _poly(size)), scale)
    if not high or any(poly.get(k) != v for k, v in high.items()):
        return None
    rest = {k: v for k, v in poly.items() if k != key and k not in high}
    return _add(rest, _multiply(_poly(inner), scale))


def _rejoin(high: Expr, inner: Expr, c: int) -> Expr | None:
    quotient = from_poly(_floordiv(inner, Const(c, i64)))
    if high is quotient:
        return inner
    if isinstance(high, Call) and high.op.name == "mod" and high.args[0] is quotient:
        return from_poly(_mod(inner, high.args[1] * c))
    return None


def _split(poly: Poly, divisor: int) -> tuple[Poly, Poly]:
    """poly = divisor * quotient + remainder, termwise."""
    quotient, remainder = {}, {}
    for key, value in poly.items():
        if key == ():
            q, r = divmod(value, divisor)
        else:
            q, r = (value // divisor, 0) if value % divisor == 0 else (0, value)
        if q:
            quotient[key] = q
        if r:
            remainder[key] = r
    return quotient, remainder


def _may_wrap(*polys: Poly) -> bool:
    """Whether a number of unknown size, loaded from a tensor, takes part."""
    atoms = {atom for poly in polys for key in poly for atom in key}
    return any(math.inf in map(abs, bounds(atom)) and bool(loads(atom)) for atom in atoms)


def _divided(poly: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """poly = divisor * quotient + remainder, by long division of polynomials: the remainder has no
    term that the leading one of the divisor divides."""
    lead = min((key for key in divisor if key), key=lambda key: (-len(key), [*map(to_text, key)]))
    quotient: Poly = {}
    for _ in range(MOST_TERMS):
        term = next((t for k, v in poly.items() if (t := _over(k, v, lead, divisor[lead]))), None)
        if term is None:
            break
        quotient = _add(quotient, dict([term]))
        poly = _add(poly, _multiply(divisor, dict([term])), -1)
    return quotient, poly


def _over(
    atoms: tuple[Expr, ...], coefficient: int, lead: tuple[Expr, ...], by: int
) -> tuple[tuple[Expr, ...], int] | None:
    """A term over another one, if this divides it."""
    left = list(atoms)
    for atom in lead:
        if atom not in left:
            return None
        left.remove(atom)
    return None if coefficient % by else (tuple(left), coefficient // by)


def _divided_by_size(a: Expr, b: Expr) -> tuple[Poly, Poly, bool] | None:
    """Quotient and remainder of a division by symbols that are positive, and whether the remainder
    certainly lies in 0 .. b-1. None if that does not apply."""
    if not symbols(b) or bounds(b)[0] < 1:
        return None
    poly, divisor = _poly(a), _poly(b)
    if _may_wrap(poly):
        return None
    quotient, rest = _divided(poly, divisor)
    for shift in (0, 1):
        moved = _add(rest, divisor, shift)
        if bounds_of_poly(moved)[0] >= 0 and bounds_of_poly(_add(divisor, moved, -1))[0] >= 1:
            return _add(quotient, {(): -shift} if shift else {}), moved, True
    return quotient, rest, False


def _floordiv(a: Expr, b: Expr) -> Poly:
    if (parts := _divided_by_size(a, b)) is not None:
        quotient, rest, decided = parts
        return quotient if decided else _add(quotient, _opaque("floordiv", from_poly(rest), b))
    poly = _poly(a)
    if not isinstance(b, Const) or b.value <= 0 or b.value > 1 and _may_wrap(poly):
        return _opaque("floordiv", a, b)
    divisor = b.value
    quotient, rest = _split(poly, divisor)
    lo, hi = bounds_of_poly(rest)
    if lo >= 0 and hi < divisor:
        return quotient
    if math.isfinite(lo) and math.isfinite(hi) and lo // divisor == hi // divisor:
        return _add(quotient, {(): int(lo // divisor)} if lo // divisor else {})
    rest, divisor = _cancel_common(rest, divisor)
    if divisor == 1:
        return _add(quotient, rest)
    return _add(quotient, _floordiv_atom(from_poly(rest), divisor))


def _truncating_div(a: Expr, b: Expr) -> Poly:
    """What is not negative is rounded down."""
    return _floordiv(a, b) if bounds(a)[0] >= 0 and bounds(b)[0] > 0 else _opaque("div", a, b)


def _cancel_common(poly: Poly, divisor: int) -> tuple[Poly, int]:
    """floor((g*p + r) / (g*d)) = floor(p / d) for 0 <= r < g."""
    common = math.gcd(divisor, *(v for k, v in poly.items() if k))
    if common == 1:
        return poly, divisor
    return {k: v // common for k, v in poly.items() if v // common}, divisor // common


def _floordiv_atom(inner: Expr, divisor: int) -> Poly:
    if isinstance(inner, Call) and isinstance(inner.args[-1], Const):
        name, by = inner.op.name, inner.args[-1].value
        if name == "floordiv" and by > 0:
            return _floordiv(inner.args[0], Const(by * divisor, i64))
        if name == "mod" and by > 0 and by % divisor == 0:
            quotient = from_poly(_floordiv(inner.args[0], Const(divisor, i64)))
            return _mod(quotient, Const(by // divisor, i64))
    if (merged := _one_division(inner, divisor)) is not None:
        return merged
    return {(_call("floordiv", inner, divisor),): 1}


def _one_division(inner: Expr, divisor: int) -> Poly | None:
    """(e // b + c) // d as (e + b*c) // (b*d), for sizes: extents behind strides stay short."""
    if not symbols(inner):
        return None
    terms = _poly(inner)
    (factors, scale), *others = [(key, v) for key, v in terms.items() if key] or [((), 0)]
    quotient = factors[0] if len(factors) == 1 and scale == 1 and not others else None
    if not isinstance(quotient, Call) or quotient.op.name != "floordiv":
        return None
    number, by = quotient.args
    if not isinstance(by, Const) or by.value <= 0:
        return None
    shifted = from_poly(_add(_poly(number), {(): by.value}, terms.get((), 0)))
    return _floordiv(shifted, Const(by.value * divisor, i64))


def _mod(a: Expr, b: Expr) -> Poly:
    if (parts := _divided_by_size(a, b)) is not None:
        _, rest, decided = parts
        return rest if decided else _opaque("mod", from_poly(rest), b)
    poly = _poly(a)
    if not isinstance(b, Const) or b.value <= 0 or b.value > 1 and _may_wrap(poly):
        return _opaque("mod", a, b)
    divisor = b.value
    _, rest = _split(poly, divisor)
    lo, hi = bounds_of_poly(rest)
    if math.isfinite(lo) and math.isfinite(hi) and lo // divisor == hi // divisor:
        below = int(lo // divisor) * divisor
        return _add(rest, {(): -below} if below else {})
    common = math.gcd(divisor, *(v for k, v in rest.items() if k))
    if common > 1 and common < divisor:  # (g*p + r) mod (g*d) = g*(p mod d) + r
        shift = rest.get((), 0) % common
        scaled = {k: v // common for k, v in rest.items() if v // common}
        reduced = _mod(from_poly(scaled), Const(divisor // common, i64))
        return _add({k: v * common for k, v in reduced.items()}, {(): shift} if shift else {})
    inner = from_poly(rest)
    if isinstance(inner, Call) and inner.op.name == "mod" and isinstance(inner.args[1], Const):
        if inner.args[1].value % divisor == 0:
            return _mod(inner.args[0], b)
    return {(_call("mod", inner, divisor),): 1} if rest else {}


def _call(name: str, a: Expr, b: int) -> Expr:
    return call(name, a, Const(b, i64))


def _opaque(name: str, a: Expr, b: Expr) -> Poly:
    if name in ("floordiv", "mod") and b is Const(0, i64):
        return {}  # dividing by zero gives 0
    node = call(name, a, b)
    return _poly(node) if isinstance(node, Const) else {(node,): 1}


def _product(a: Expr, b: Expr) -> Poly:
    left, right = _poly(a), _poly(b)
    if len(left) * len(right) > MOST_TERMS:
        return {(call("mul", a, b),): 1}
    return _multiply(left, right)


def _extreme(name: str) -> Callable[[Expr, Expr], Poly]:
    def build(a: Expr, b: Expr) -> Poly:
        left, right = _poly(a), _poly(b)
        lo, hi = bounds_of_poly(_add(left, right, -1))
        if (hi <= 0 or lo >= 0) and not _may_wrap(left, right):
            return _poly(a if (hi <= 0) == (name == "min") else b)
        return _opaque(name, a, b)

    return build


_POLY: dict[str, Callable[..., Poly]] = {
    "add": lambda a, b: _add(_poly(a), _poly(b)),
    "sub": lambda a, b: _add(_poly(a), _poly(b), -1),
    "neg": lambda a: _add({}, _poly(a), -1),
    "mul": _product,
    "floordiv": _floordiv,
    "div": _truncating_div,
    "mod": _mod,
    "min": _extreme("min"),
    "max": _extreme("max"),
}


# ---------------------------------------------------------------- bounds


def bounds(node: Expr) -> Bounds:
    """An interval that holds every value of an i64 expression (or of one converted from i64)."""
    if node._bounds is None:
        node._bounds = _bounds(node)
    return node._bounds


def _bounds(node: Expr) -> Bounds:
    if isinstance(node, Const):
        return (node.value, node.value)
    if isinstance(node, Sym):
        return (node.lo, math.inf if node.hi is None else node.hi)
    if isinstance(node, Ref):
        return (node.lo, node.hi)
    if isinstance(node, Index):
        extent = node.extent
        high = extent if isinstance(extent, int) else bounds(extent)[1]
        return (0, max(high - 1, 0))
    if isinstance(node, Call) and node.op.name in _BOUNDS:
        return _BOUNDS[node.op.name](*node.args)
    if isinstance(node, Call) and node.op.name in ("add", "sub", "mul", "neg"):
        poly = _poly(node)
        return _UNKNOWN if (node,) in poly else bounds_of_poly(poly)
    if isinstance(node, Call) and node.op.name == "cast":
        return _bounds_of_cast(node)
    return _UNKNOWN


def _bounds_of_cast(node: Call) -> Bounds:
    source, target = node.args[0], node.dtype
    if source.dtype is not i64 or not target.is_integer:
        return _bounds_of_type(source.dtype)
    low, high = bounds(source)
    return (low, high) if target.min <= low and high <= target.max else _UNKNOWN


def _bounds_of_type(dtype: DType) -> Bounds:
    """The range of an integer type narrow enough that sums and products of it stay in an i64."""
    if dtype is boolean:
        return (0, 1)
    return (dtype.min, dtype.max) if dtype.is_integer and dtype.bits <= 32 else _UNKNOWN


def bounds_of_poly(poly: Poly) -> Bounds:
    """The bounds of a polynomial, from those of its atoms."""
    for atoms in poly:
        for atom in atoms:
            if symbols(atom):
                check_time()  # as the cases are many where sizes are
                return _least_of(poly), -_least_of(_add({}, poly, -1))
    return _bounds_of_terms(poly)


def _least_of(poly: Poly) -> float:
    """A lower bound of a polynomial with symbols."""
    return _least_of_terms(tuple(poly.items()))


@lru_cache(maxsize=1 << 14)
def _least_of_terms(terms: tuple[tuple[tuple[Expr, ...], int], ...]) -> float:
    """As `_least_of`. Atoms take their least or largest value one after the other, indices before
    the symbols of their extents: where `v * q + r` has q of one sign, its least value is at an end
    of v. The same polynomials come up again on the way from others."""
    poly = dict(terms)
    least = _bounds_of_terms(poly)[0]
    atoms = {atom for key in poly for atom in key if symbols(atom)}
    for atom in sorted(atoms, key=_elimination_order):
        rest = {k: v for k, v in poly.items() if atom not in k}
        factor: Poly = {}
        for k, v in poly.items():
            if atom in k:
                left = list(k)
                left.remove(atom)
                factor[tuple(left)] = v
        if isinstance(atom, Call) and atom.op.name == "floordiv" and not symbols(atom.args[1]):
            return max(least, _least_of_quotient(rest, factor, atom))
        low, high = bounds_of_poly(factor)
        end = _end_of(atom, low >= 0) if low >= 0 or high <= 0 else None
        if end is not None:
            return max(least, _least_of(_add(rest, _multiply(factor, end))))
    return least


def _least_of_quotient(rest: Poly, factor: Poly, atom: Call) -> float:
    """A lower bound of factor * (e // c) + rest, as e - c + 1 <= c * (e // c) <= e."""
    number, divisor = atom.args
    low, high = bounds_of_poly(factor)
    if not isinstance(divisor, Const) or divisor.value <= 0 or low < 0 < high:
        return -math.inf
    c = divisor.value
    scale = 1 if all(v % c == 0 for v in factor.values()) else c
    end = _add(_poly(number), {(): 1 - c} if low >= 0 and c > 1 else {})
    parts = {k: v * scale // c for k, v in factor.items()}
    least = _least_of(_add({k: v * scale for k, v in rest.items()}, _multiply(parts, end)))
    return least if math.isinf(least) else math.ceil(least / scale)


def _elimination_order(atom: Expr) -> tuple:
    return isinstance(atom, Sym), not isinstance(atom, Index), to_text(atom)


def _end_of(atom: Expr, lowest: bool) -> Poly | None:
    """The least or the largest value of an atom in terms of symbols; None if it is not known."""
    if isinstance(atom, Index) and isinstance(atom.extent, Expr):
        return {} if lowest else _add(_poly(_where_entered(atom.extent)), {(): -1})
    if isinstance(atom, Call) and atom.op.name in ("floordiv", "mod") and symbols(atom.args[1]):
        return _end_of_division(atom, lowest)
    end = bounds(atom)[0 if lowest else 1]
    if math.isinf(end):
        return None
    return {(): int(end)} if end else {}


def _where_entered(extent: Expr) -> Expr:
    """The extent of a loop where it has an iteration: max(e, 0) is e there."""
    if isinstance(extent, Call) and extent.op.name == "max" and Const(0, i64) in extent.args:
        return next((a for a in extent.args if a is not Const(0, i64)), extent)
    return extent


def _end_of_division(atom: Call, lowest: bool) -> Poly | None:
    """As `_end_of`, of a division of what is not negative by symbols that are positive."""
    number, size = atom.args
    if bounds(number)[0] < 0 or bounds(size)[0] < 1:
        return None
    if lowest:
        return {}
    if atom.op.name == "mod":
        return _add(_poly(size), {(): -1})
    if not (isinstance(number, Index) and isinstance(number.extent, Expr)):
        return None
    return _floordiv(number.extent - 1, size)


def _bounds_of_terms(poly: Poly) -> Bounds:
    lo: float = 0
    hi: float = 0
    for atoms, coefficient in poly.items():
        low: float = 1
        high: float = 1
        for atom in atoms:
            corners = [_times(x, y) for x in (low, high) for y in bounds(atom)]
            low, high = min(corners), max(corners)
        a, b = _times(low, coefficient), _times(high, coefficient)
        lo, hi = lo + min(a, b), hi + max(a, b)
    return (lo, hi)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _bounds_floordiv(a: Expr, b: Expr) -> Bounds:
    (lo, hi), divisor = bounds(a), b
    if symbols(b):
        least, largest = bounds(b)
        if lo < 0 or least < 1 or math.isinf(largest):
            return _UNKNOWN
        return (lo // largest, hi if math.isinf(hi) else hi // least)
    if not isinstance(divisor, Const) or divisor.value <= 0:
        return _UNKNOWN
    floor = lambda v: v if math.isinf(v) else v // divisor.value  # noqa: E731
    return (floor(lo), floor(hi))


def _bounds_mod(a: Expr, b: Expr) -> Bounds:
    if symbols(b) and bounds(b)[0] >= 1:
        return (0, bounds(b)[1] - 1)
    if not isinstance(b, Const) or b.value <= 0:
        return _UNKNOWN
    lo, hi = bounds(a)
    return (lo, hi) if lo >= 0 and hi < b.value else (0, b.value - 1)


def _bounds_select(_: Expr, a: Expr, b: Expr) -> Bounds:
    x, y = bounds(a), bounds(b)
    return (min(x[0], y[0]), max(x[1], y[1]))


def _bounds_bxor(a: Expr, b: Expr) -> Bounds:
    (low, high), (other_low, other_high) = bounds(a), bounds(b)
    largest = max(high, other_high)
    if min(low, other_low) < 0 or math.isinf(largest):
        return _UNKNOWN
    return (0, (1 << int(largest).bit_length()) - 1)


_BOUNDS: dict[str, Callable[..., Bounds]] = {
    "floordiv": _bounds_floordiv,
    "mod": _bounds_mod,
    "min": lambda a, b: (min(bounds(a)[0], bounds(b)[0]), min(bounds(a)[1], bounds(b)[1])),
    "max": lambda a, b: (max(bounds(a)[0], bounds(b)[0]), max(bounds(a)[1], bounds(b)[1])),
    "select": _bounds_select,
    "bxor": _bounds_bxor,
}


# ---------------------------------------------------------------- comparisons


def _compare(node: Call) -> Expr | None:
    a, b = node.args
    if a.dtype is not i64:
        return None
    left, right = _poly(a), _poly(b)
    lo, hi = bounds_of_poly(_add(left, right, -1))
    decided = _decide(node.op.name, lo, hi)
    if decided is None:
        return _compare_quotients(node.op.name, a, right)
    return None if _may_wrap(left, right) else Const(decided, boolean)


def _compare_quotients(name: str, a: Expr, right: Poly) -> Expr | None:
    """a < s * b as a // s < b, for sizes s, if the quotient is known without a division."""
    if name not in ("lt", "ge") or len(right) != 1:
        return None
    ((key, factor),) = right.items()
    sizes = tuple(atom for atom in key if isinstance(atom, Sym))
    parts = _divided_by_size(a, from_poly({sizes: 1})) if sizes else None
    if parts is None or not parts[2]:
        return None
    others = from_poly({tuple(atom for atom in key if atom not in sizes): factor})
    return _simplify_node(call(name, from_poly(parts[0]), others))


def _decide(name: str, lo: float, hi: float) -> bool | None:
    """The truth of `d <op> 0` for every d in lo..hi, or None."""
    tests = {
        "lt": (hi < 0, lo >= 0),
        "le": (hi <= 0, lo > 0),
        "gt": (lo > 0, hi <= 0),
        "ge": (lo >= 0, hi < 0),
        "eq": (lo == hi == 0, lo > 0 or hi < 0),
        "ne": (lo > 0 or hi < 0, lo == hi == 0),
    }
    true, false = tests[name]
    return True if true else False if false else None
