"""Bodies of operators in narrow floats: values between operands and result are kept in float32.

A scalar operation on narrow floats (see dtypes.DType.compute) rounds its result. A body of several
would round in between: a sum above 65504 is infinite as a float16 before it can be divided. So a
body computes everything before its result in float32, from operands that are widened, and the
result alone is rounded:

    f16:  sum(x) / n   →   f16(sum(f32(x)) / f32(n))

An operation that only selects, compares or copies narrow floats stays as it is, and so does one
whose operands have not been rounded: it rounds once by itself. A conversion to a narrow float and
straight back is there for its rounding, and kept. The other conversions to narrow floats in between
are not carried out.
"""

from __future__ import annotations

from graphc.ir.dtypes import DType, f32
from graphc.ir.expr import Call, Const, Expr, Reduce, cast, fold_call, walk

EXACT = frozenset(
    ("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "min", "max", "select")
)  # operations whose results, on floats, are as exact as their operands
KEPT = frozenset(("bitcast", "cast_sat"))  # they give bits, or limits, of the type they name


def is_narrow(dtype: DType) -> bool:
    """Whether values of a type are computed with in float32."""
    return dtype.is_float and dtype.compute is not dtype


def roundings(node: Expr) -> int:
    """How often a value of a narrow float type has been rounded, from what is loaded to itself."""
    return _Widening().roundings(node)


def once_rounded(body: Expr) -> Expr:
    """A body that rounds to narrow floats at its result alone."""
    if not any(is_narrow(node.dtype) for node in walk(body)):
        return body
    forms = _Widening()
    for node in walk(body):  # children first, so that no recursion is deep
        if forms.roundings(node):
            forms.wide(node)
        forms.kept(node)
    return forms.kept(body)


class _Widening:
    """The forms of the nodes of one body."""

    def __init__(self) -> None:
        self._roundings: dict[Expr, int] = {}
        self._kept: dict[Expr, Expr] = {}
        self._wide: dict[Expr, Expr] = {}

    def roundings(self, node: Expr) -> int:
        """See the function above; 0 of other types."""
        if not is_narrow(node.dtype):
            return 0
        if node not in self._roundings:
            self._roundings[node] = self._count(node)
        return self._roundings[node]

    def _count(self, node: Expr) -> int:
        if isinstance(node, Reduce):
            terms = _terms(node) if node.op == "sum" else (node.body,)
            return max(map(self.roundings, terms)) + (node.op not in ("min", "max"))
        if not isinstance(node, Call) or node.op.name in KEPT:
            return 0
        before = max(map(self.roundings, node.args), default=0)
        return before + (node.op.name not in EXACT)

    def kept(self, node: Expr) -> Expr:
        """The node in its own type."""
        if node not in self._kept:
            self._kept[node] = self._keep(node)
        return self._kept[node]

    def _keep(self, node: Expr) -> Expr:
        if self.roundings(node) > 1:
            return cast(self.wide(node), node.dtype)
        children = node.children
        if _is_literal(node):
            return Const(children[0].value, node.dtype)  # type: ignore[attr-defined]
        rounded = [self.roundings(x) > 0 for x in children]
        if is_narrow(node.dtype) or not any(rounded) or _gives_back(node) or _has_bits(node):
            new = [self.kept(x) for x in children]
        else:
            new = [self.wide(x) if is_narrow(x.dtype) else self.kept(x) for x in children]
        return node if all(a is b for a, b in zip(new, children)) else node.rebuild(new)

    def wide(self, node: Expr) -> Expr:
        """The value in float32, before the node itself rounds it."""
        if node not in self._wide:
            self._wide[node] = self._widen(node)
        return self._wide[node]

    def _widen(self, node: Expr) -> Expr:
        if self.roundings(node) == 0:
            return cast(self.kept(node), f32)
        if isinstance(node, Reduce):
            return Reduce(node.op, self.wide(node.body), node.axes)
        assert isinstance(node, Call)
        if node.op.name == "cast":
            (value,) = node.args
            return self.wide(value) if is_narrow(value.dtype) else cast(self.kept(value), f32)
        args = [self.wide(x) if is_narrow(x.dtype) else self.kept(x) for x in node.args]
        return fold_call(node.op, tuple(args), f32)


def _terms(total: Reduce) -> tuple[Expr, ...]:
    """What is rounded before a sum takes it: the factors of a product, which the sum does not
    round."""
    body = total.body
    is_product = isinstance(body, Call) and body.op.name == "mul"
    return body.args if is_product else (body,)  # type: ignore[attr-defined]


def _gives_back(node: Expr) -> bool:
    """Whether the node is a value of another type that is converted to a narrow float and back."""
    if not isinstance(node, Call) or node.op.name != "cast":
        return False
    inner = node.args[0]
    return (
        isinstance(inner, Call) and inner.op.name == "cast" and not is_narrow(inner.args[0].dtype)
    )


def _is_literal(node: Expr) -> bool:
    """Whether the node is a constant that is rounded to a narrow float."""
    is_cast = isinstance(node, Call) and node.op.name == "cast" and is_narrow(node.dtype)
    return is_cast and isinstance(node.children[0], Const)


def _has_bits(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.name == "bitcast"
