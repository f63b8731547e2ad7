"""Index maps turned round: which indices of a loop read a given element.

A load reads `x[g(v)]` at the indices v of a result and of reductions. Its gradient at j is the sum
of the adjoints at all v with g(v) = j. Where g can be solved for some of v (broadcast, permutation,
slice, pad, stride, window, dilation, diagonal, reshape), the sum runs over the others alone, with
guards for j that nothing reads: a gather, that is fused, and that is again a contraction or a
window where the load was in one.

Each dim gives an equation `polynomial = j_d`. First, dims that are a quotient and a remainder of
one number (a reshape) become one equation. An equation of terms c * v is solved as a number of
mixed radix: with strides 12, 4 and 1 for extents 5, 3 and 4, say, by divisions. A term whose range
overlaps the next stride is kept in the sum: of `o * stride + tap`, the tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from graphc.ir.dtypes import i64
from graphc.ir.expr import TRUE, Call, Const, Expr, Index, Load, as_expr, walk
from graphc.ir.simplify import Poly, bounds, from_poly, simplify, to_poly
from graphc.records import dataclass


@dataclass
class Solution:
    """Indices as expressions over those of the element, where all `guards` hold."""

    known: dict[Expr, Expr] = field(default_factory=dict)
    guards: list[Expr] = field(default_factory=list)

    def require(self, condition: Expr) -> bool:
        """Adds a guard, unless it always holds; False if it never does."""
        condition = simplify(condition)
        if condition is not TRUE and condition not in self.guards:
            self.guards.append(condition)
        return not isinstance(condition, Const) or bool(condition.value)

    def close(self) -> None:
        """Has nothing depend on an index that was solved later."""
        for index in reversed(list(self.known)):
            value = {index: self.known[index]}
            self.known = {i: e if i is index else simplify(e, value) for i, e in self.known.items()}
            self.guards = [simplify(condition, value) for condition in self.guards]

    @property
    def guard(self) -> Expr:
        """All guards at once."""
        result: Expr = TRUE
        for condition in self.guards:
            result = result & condition
        return result


class Unsolvable(Exception):
    """An index of an element is no number of mixed radix in the indices of loops."""


def solve(
    element: Sequence[Expr], position: Sequence[Expr], variables: Iterable[Index]
) -> Solution:
    """The indices v of `element` (in `variables`) with element(v) = position; Unsolvable if an
    index comes from data, or is clamped or mirrored."""
    unknown = set(variables)
    solution = Solution()
    equations = _equations(element, position)
    while equations:
        equations.sort(key=lambda e: len(_terms(e[0], unknown)))
        left, right = equations.pop(0)
        _solve_one(left, right, unknown, solution)
        unknown -= set(solution.known)  # type: ignore[arg-type]
        equations = [(simplify(a, solution.known), b) for a, b in equations]
    solution.close()
    return solution


def _equations(element: Sequence[Expr], position: Sequence[Expr]) -> list[tuple[Expr, Expr]]:
    """An equation per dim, those of quotients and remainders of one number joined."""
    given = {simplify(e): p for e, p in zip(element, position)}
    equations = [(simplify(e), p) for e, p in zip(element, position)]
    for node in list(given):
        parts: set[Expr] = set()
        whole = node
        while isinstance(whole, Call) and whole.op.name in ("mod", "floordiv"):
            whole = whole.args[0]
        value = _value_of(whole, given, parts) if whole is not node else None
        if value is not None:
            equations = [(e, p) for e, p in equations if e not in parts]
            equations.append((whole, value))
            given = {e: p for e, p in given.items() if e not in parts}
    return equations


def _value_of(number: Expr, given: dict[Expr, Expr], parts: set[Expr]) -> Expr | None:
    """A number from the dims that are its quotients and remainders; they are put into `parts`."""
    number = simplify(number)
    if number in given:
        parts.add(number)
        return given[number]
    for node, value in given.items():
        if not (isinstance(node, Call) and node.op.name == "mod" and node.args[0] is number):
            continue
        if not isinstance(node.args[1], Const):
            continue
        quotient = _value_of(number // node.args[1], given, parts)
        if quotient is not None:
            parts.add(node)
            return simplify(quotient * node.args[1] + value)
    low, high = bounds(number)
    return Const(int(low), number.dtype) if low == high else None


def _terms(left: Expr, unknown: set[Index]) -> list[tuple[Index, int]]:
    """The unknown indices of a polynomial and their factors, largest first."""
    terms = []
    for atoms, coefficient in to_poly(left).items():
        if any(part in unknown or isinstance(part, Load) for a in atoms for part in walk(a)):
            if len(atoms) != 1 or atoms[0] not in unknown:
                raise Unsolvable
            terms.append((atoms[0], coefficient))
    return sorted(terms, key=lambda t: (-abs(t[1]), t[0].name))  # type: ignore


def _solve_one(left: Expr, right: Expr, unknown: set[Index], solution: Solution) -> None:
    terms = _terms(left, unknown)
    solved = _radix(terms)
    rest: Poly = dict(to_poly(right - left))
    for index, factor in solved:
        rest[index,] = rest.get((index,), 0) + factor
    number = simplify(from_poly({k: c for k, c in rest.items() if c}))
    if not solved:
        solution.require(number.eq(0))
        return
    for index, factor in solved:  # those that count down count up from their last value
        if factor < 0:
            number = simplify(number - factor * (_extent(index) - 1))
    solution.require(number >= 0)
    _divide(solved, number, solution)


def _divide(solved: list[tuple[Index, int]], number: Expr, solution: Solution) -> None:
    """Takes a number apart into its digits."""
    for position, (index, factor) in enumerate(solved):
        size = abs(factor)
        digit = simplify(number // size)
        if position == 0:
            solution.require(digit < index.extent)
        if position + 1 == len(solved):
            solution.require((number % size).eq(0))
        else:
            following = solved[position + 1]
            room = abs(following[1]) * _extent(following[0])
            solution.require(simplify(number % size) < room)
        number = simplify(number % size)
        solution.known[index] = digit if factor > 0 else simplify(_extent(index) - 1 - digit)


def _radix(terms: list[tuple[Index, int]]) -> list[tuple[Index, int]]:
    """Terms, largest first, of which each spans no more than the factor of the one before it. What
    is left out stays in the sum: axes of reductions rather than indices of results, the smaller
    ones first."""
    kept = list(terms)
    while kept and not _is_radix(kept):
        dropped = min(kept, key=lambda t: (t[0].name.startswith("i"), _most(t[0]), t[0].name))
        kept.remove(dropped)
    return kept


def _is_radix(terms: list[tuple[Index, int]]) -> bool:
    for (_, size), (index, factor) in zip(terms, terms[1:]):
        if abs(factor) * _most(index) > abs(size) or size % factor:
            return False
    return True


def _extent(index: Index) -> Expr:
    """The extent of an index as an expression."""
    return as_expr(index.extent, i64)


def _most(index: Index) -> float:
    """The largest extent that an index can have."""
    return bounds(_extent(index))[1]
