"""Expressions: the one algebra for symbolic dimensions, index maps, operator bodies and kernels.

Nodes are immutable and interned (hash-consing): two expressions are equal exactly when they are the
same object, so `is`, `==` and dictionary lookup compare structure at the cost of a pointer. Every
node has a `dtype`; index arithmetic is i64. Build nodes with Python operators and the functions
below, which fold constants and identities as they go; `simplify.simplify` normalises index
arithmetic further.

    Const(value)  Sym(name, lo, hi)  Index(name, extent)  Ref(name)      leaves
    Load(source, index)              element of a tensor or buffer named `source`
    Call(op, args)                   a row of scalar.ops.TABLE
    Reduce(op, body, axes)           sum, prod, min, max, and, or over Index nodes
"""

from __future__ import annotations

import math
import operator
import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.scalar.ops import TABLE, ScalarOp

# Nodes by their keys: the newest ones are held, as most are asked for again and a weak reference
# to each takes as long as making it; older ones are there for as long as others have them.
_newest: dict[tuple, Any] = {}
_older: WeakValueDictionary = WeakValueDictionary()
_find_newest = _newest.get
_find_older = _older.data.get  # type: ignore[attr-defined]  # a weak reference
_HELD = 1 << 17  # nodes
_adding = Lock()  # as several threads may make the same node
_HEAVIEST = 1 << 60
_LEAST, _MOST = i64.min, i64.max


class Expr:
    """Base of all nodes. Compare with `is`; use `a.eq(b)` for an expression that compares."""

    __slots__ = (
        "dtype", "children", "weight", "_free", "_symbols", "_called", "_loads_and_reduces",
        "_text", "_bounds", "_simple", "_poly", "__weakref__",
    )  # fmt: skip
    dtype: DType
    children: tuple[Expr, ...]
    weight: int  # nodes written out as a tree, which sharing can make very many
    _free: frozenset[Index] | None  # what the functions below have found, once asked
    _symbols: frozenset[Sym] | None
    _called: frozenset[str] | None
    _loads_and_reduces: tuple[tuple[Load, ...], tuple[Reduce, ...]] | None
    _text: str | None
    _bounds: tuple[float, float] | None
    _simple: Expr | None
    _poly: dict[tuple[Expr, ...], int] | None

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        """The same node over other children."""
        return self

    # Operators. == and hash stay identity, which interning makes structural.
    def __add__(self, o: ExprLike) -> Expr:
        return call("add", self, o)

    def __radd__(self, o: ExprLike) -> Expr:
        return call("add", o, self)

    def __sub__(self, o: ExprLike) -> Expr:
        return call("sub", self, o)

    def __rsub__(self, o: ExprLike) -> Expr:
        return call("sub", o, self)

    def __mul__(self, o: ExprLike) -> Expr:
        return call("mul", self, o)

    def __rmul__(self, o: ExprLike) -> Expr:
        return call("mul", o, self)

    def __truediv__(self, o: ExprLike) -> Expr:
        return call("div", self, o)

    def __rtruediv__(self, o: ExprLike) -> Expr:
        return call("div", o, self)

    def __floordiv__(self, o: ExprLike) -> Expr:
        return call("floordiv", self, o)

    def __rfloordiv__(self, o: ExprLike) -> Expr:
        return call("floordiv", o, self)

    def __mod__(self, o: ExprLike) -> Expr:
        return call("mod", self, o)

    def __rmod__(self, o: ExprLike) -> Expr:
        return call("mod", o, self)

    def __pow__(self, o: ExprLike) -> Expr:
        return call("pow", self, o)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, o: ExprLike) -> Expr:
        return call("lt", self, o)

    def __le__(self, o: ExprLike) -> Expr:
        return call("le", self, o)

    def __gt__(self, o: ExprLike) -> Expr:
        return call("gt", self, o)

    def __ge__(self, o: ExprLike) -> Expr:
        return call("ge", self, o)

    def __and__(self, o: ExprLike) -> Expr:
        return call("and" if self.dtype is boolean else "band", self, o)

    def __or__(self, o: ExprLike) -> Expr:
        return call("or" if self.dtype is boolean else "bor", self, o)

    def __xor__(self, o: ExprLike) -> Expr:
        return call("xor" if self.dtype is boolean else "bxor", self, o)

    def __invert__(self) -> Expr:
        return call("not" if self.dtype is boolean else "bnot", self)

    def __lshift__(self, o: ExprLike) -> Expr:
        return call("shl", self, o)

    def __rshift__(self, o: ExprLike) -> Expr:
        return call("shr", self, o)

    def eq(self, o: ExprLike) -> Expr:
        """Whether both are equal, as an expression; false if either is NaN."""
        return call("eq", self, o)

    def ne(self, o: ExprLike) -> Expr:
        """The opposite of `eq`."""
        return call("ne", self, o)

    def cast(self, dtype: DType) -> Expr:
        """The value in another type (see the function `cast`)."""
        return cast(self, dtype)

    def __bool__(self) -> bool:
        if isinstance(self, Const):
            return bool(self.value)
        raise TypeError(f"the truth of `{self}` is not known; use select(...) or add a bound")

    def __repr__(self) -> str:
        from graphc.ir.text.expr_printer import to_text  # which is made of nodes

        return to_text(self)


ExprLike = Expr | int | float | str | np.generic | np.ndarray
"""What becomes an expression: one, or a scalar of Python or numpy."""


def _known(key: tuple) -> Any:
    """The node of a key, if there is one."""
    node = _find_newest(key)
    if node is None:
        reference = _find_older(key)
        return None if reference is None else reference()
    return node


def _new(cls: type, dtype: DType, children: tuple[Expr, ...] = ()) -> Any:
    """A node over others; what is its own is for the caller to fill in."""
    node: Any = object.__new__(cls)
    node.dtype, node.children = dtype, children
    node._free = node._symbols = node._called = node._loads_and_reduces = node._text = None
    node._bounds = node._simple = node._poly = None
    weight = 1
    for child in children:
        weight += child.weight
    node.weight = weight if weight < _HEAVIEST else _HEAVIEST
    return node


def _added(key: tuple, node: Any) -> Any:
    """A new node, which is found by its key from now on; or that of another thread."""
    with _adding:
        known = _known(key)
        if known is None:
            _newest[key] = node
            if len(_newest) >= _HELD:
                _older.update(_newest)  # first, so that each is found at any time
                _newest.clear()
    return node if known is None else known


class Const(Expr):
    """A literal. Floats are kept at the value they have in `dtype`."""

    __slots__ = ("value",)
    value: Any

    def __new__(cls, value: Any, dtype: DType | None = None) -> Const:
        if dtype is None:
            dtype = _natural(value)
        if dtype is i64 and type(value) is int and _LEAST <= value <= _MOST:
            key_value: object = value
        elif dtype.is_float:
            value = float(scalar_ops.apply(TABLE["cast"], dtype, np.float64(value)))
            value = math.nan if value != value else value  # one NaN, so that it prints and parses
            key_value = struct.pack("<d", value)
        elif dtype is boolean:
            value = key_value = bool(value)
        elif dtype.is_integer:
            value = int(value)
            if not dtype.min <= value <= dtype.max:
                value = (value - dtype.min) % (1 << dtype.bits) + dtype.min
            key_value = value
        else:
            key_value = value

        key = (cls, dtype, key_value)
        node = _known(key)
        if node is None:
            node = _new(cls, dtype)
            node.value = value
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (Const, (self.value, self.dtype))


def _natural(value: object) -> DType:
    if isinstance(value, (bool, np.bool_)):
        return boolean
    if isinstance(value, np.generic):
        return dtypes.of(value.dtype)
    return (
        i64 if isinstance(value, int) else dtypes.string if isinstance(value, str) else dtypes.f32
    )


TRUE, FALSE = Const(True, boolean), Const(False, boolean)


class Sym(Expr):
    """A named dimension known to lie in lo..hi (hi None: no bound known)."""

    __slots__ = ("name", "lo", "hi")
    name: str
    lo: int
    hi: int | None

    def __new__(cls, name: str, lo: int = 0, hi: int | None = None) -> Sym:
        key = (cls, name, lo, hi)
        node = _known(key)
        if node is None:
            node = _new(cls, i64)
            node.name, node.lo, node.hi = name, lo, hi
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (Sym, (self.name, self.lo, self.hi))


class Index(Expr):
    """A loop index that runs over 0 .. extent-1."""

    __slots__ = ("name", "extent")
    name: str
    extent: int | Expr

    def __new__(cls, name: str, extent: int | Expr) -> Index:
        if isinstance(extent, Const):
            extent = extent.value

        key = (cls, name, extent)
        node = _known(key)
        if node is None:
            node = _new(cls, i64)
            node.name, node.extent = name, extent
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (Index, (self.name, self.extent))

    @property
    def count(self) -> int:
        """The extent, known to be a constant."""
        assert isinstance(self.extent, int), f"the extent of {self.name} is {self.extent}"
        return self.extent


class Ref(Expr):
    """A scalar variable of a kernel, bound by Let. An i64 may be known to lie in lo..hi."""

    __slots__ = ("name", "lo", "hi")
    name: str
    lo: float
    hi: float

    def __new__(cls, name: str, dtype: DType, lo: float = -math.inf, hi: float = math.inf) -> Ref:
        key = (cls, name, dtype, lo, hi)
        node = _known(key)
        if node is None:
            node = _new(cls, dtype)
            node.name, node.lo, node.hi = name, lo, hi
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (Ref, (self.name, self.dtype, self.lo, self.hi))


class Load(Expr):
    """The element of `source` at `index`. In operator bodies sources are operands "0", "1", ..."""

    __slots__ = ("source", "index")
    source: str
    index: tuple[Expr, ...]

    def __new__(cls, source: str, index: Iterable[ExprLike], dtype: DType) -> Load:
        place: tuple[Expr, ...] = tuple(
            [x if isinstance(x, Expr) else as_expr(x, i64) for x in index]
        )
        key = (cls, source, place, dtype)
        node = _known(key)
        if node is None:
            node = _new(cls, dtype, place)
            node.source, node.index = source, place
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (Load, (self.source, self.index, self.dtype))

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Load(self.source, tuple(children), self.dtype)


class Call(Expr):
    """A scalar operation. Use `call`, which converts literals and folds; this does neither."""

    __slots__ = ("op", "args")
    op: ScalarOp
    args: tuple[Expr, ...]

    def __new__(cls, op: ScalarOp, args: tuple[Expr, ...], dtype: DType) -> Call:
        key = (cls, op, args, dtype)
        node = _known(key)
        if node is None:
            node = _new(cls, dtype, args)
            node.op, node.args = op, args
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (_call_named, (self.op.name, self.args, self.dtype))

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return fold_call(self.op, tuple(children), self.dtype)


def _call_named(name: str, args: tuple[Expr, ...], dtype: DType) -> Call:
    return Call(TABLE[name], args, dtype)


REDUCTIONS = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "and": "and", "or": "or"}


class Reduce(Expr):
    """`op` (a key of REDUCTIONS) of `body` over all values of `axes`.

    Narrow floats (see dtypes.DType.compute) are reduced in float32 and rounded once; a product
    that is the body of a sum is not rounded either.
    """

    __slots__ = ("op", "body", "axes")
    op: str
    body: Expr
    axes: tuple[Index, ...]

    def __new__(cls, op: str, body: Expr, axes: tuple[Index, ...]) -> Reduce:
        key = (cls, op, body, axes)
        node = _known(key)
        if node is None:
            node = _new(cls, body.dtype, (body,))
            node.op, node.body, node.axes = op, body, axes
            node = _added(key, node)
        return node

    def __reduce__(self) -> tuple:
        return (Reduce, (self.op, self.body, self.axes))

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Reduce(self.op, children[0], self.axes)

    @property
    def term(self) -> Expr:
        """What is reduced, in the type that it is reduced in."""
        wide = self.dtype.compute
        if wide is self.dtype:
            return self.body
        if self.factors:
            a, b = self.factors
            return cast(a, wide) * cast(b, wide)
        return cast(self.body, wide)

    @property
    def factors(self) -> tuple[Expr, Expr] | None:
        """The two factors of a sum of products; None of another reduction."""
        body = self.body
        is_product = self.op == "sum" and isinstance(body, Call) and body.op.name == "mul"
        return (body.args[0], body.args[1]) if is_product else None  # type: ignore[attr-defined]

    @property
    def combine(self) -> ScalarOp:
        return TABLE[REDUCTIONS[self.op]]

    @property
    def identity(self) -> Const:
        """The value of the reduction over nothing."""
        return identity_of(self.op, self.dtype)


def identity_of(reduction: str, dtype: DType) -> Const:
    """What a reduction (a key of REDUCTIONS) of values of a type combines with any value into that
    value."""
    if reduction == "max":
        return Const(False if dtype is boolean else dtype.min, dtype)
    if reduction == "min":
        return Const(True if dtype is boolean else dtype.max, dtype)
    return Const({"sum": 0, "prod": 1, "and": True, "or": False}[reduction], dtype)


# ---------------------------------------------------------------- construction


def as_expr(value: ExprLike, dtype: DType | None = None) -> Expr:
    """`value` as an expression; Python and numpy scalars become constants of `dtype`, or float32s
    that are converted to it, if it is a narrow float that rounds them."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, np.ndarray):
        value = value.item() if dtype is not None else value[()]
    if dtype is not None and dtype.is_float and dtype.compute is not dtype:
        return cast(Const(value, dtype.compute), dtype)
    return Const(value, dtype)


def call(name: str, *args: ExprLike) -> Expr:
    """A call with literals converted to the type of the other arguments, and folded."""
    op = TABLE[name]
    if op.rule == "same" and len(args) == 2:  # most calls: arithmetic on indices
        a, b = args
        if not isinstance(b, Expr) and isinstance(a, Expr):
            b = as_expr(b, a.dtype)
        elif not isinstance(a, Expr) and isinstance(b, Expr):
            a = as_expr(a, b.dtype)
        if isinstance(a, Expr) and isinstance(b, Expr) and a.dtype is b.dtype:
            return fold_call(op, (a, b), a.dtype)
    values = args[1:] if op.rule == "select" else args
    typed = next((a.dtype for a in values if isinstance(a, Expr)), None)
    if op.rule == "select":
        exprs = (as_expr(args[0], boolean), *(as_expr(a, typed) for a in values))
    else:
        exprs = tuple(as_expr(a, boolean if op.rule == "logic" else typed) for a in values)
    return fold_call(op, exprs, op.result_type(exprs))


def cast(value: ExprLike, dtype: DType, *, saturate: bool = False) -> Expr:
    """`value` converted to `dtype`, a no-op when it has it already. A constant that a narrow float
    type rounds stays one of its own type, converted: bodies that turn out to compute in float32
    have all of its digits (see wide_bodies.py)."""
    value = as_expr(value)
    op = TABLE["cast_sat" if saturate else "cast"]
    if value.dtype is dtype:
        return value
    converted = fold_call(op, (value,), dtype)
    if isinstance(converted, Const) and not saturate and _loses_digits(value, converted):
        return Call(op, (value,), dtype)
    return converted


def _loses_digits(value: Expr, converted: Const) -> bool:
    """Whether a constant of a narrow float type is not the number that it is converted from."""
    dtype = converted.dtype
    if not dtype.is_float or dtype.compute is dtype or not isinstance(value, Const):
        return False
    return value.value == value.value and value.value != converted.value


def bitcast(value: Expr, dtype: DType) -> Expr:
    """The bits of `value` read as `dtype` of the same width."""
    return value if value.dtype is dtype else fold_call(TABLE["bitcast"], (value,), dtype)


def select(condition: ExprLike, then: ExprLike, otherwise: ExprLike) -> Expr:
    """`then` where the condition holds, else `otherwise`; only the taken side is evaluated."""
    return call("select", condition, then, otherwise)


def fold_call(op: ScalarOp, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """A call of given type, computed if its arguments are constant, or simpler by an identity."""
    if dtype is i64 and op.name in _WRAPPING:
        return _fold_sum_or_product(op, args)
    constants = [a for a in args if isinstance(a, Const)]
    if len(constants) == len(args) and dtype.kind != "string":
        arrays = [np.asarray(a.value, a.dtype.np) for a in constants]
        return Const(scalar_ops.apply(op, dtype, *arrays).item(), dtype)
    if not constants and op.name in _WRAPPING and args[0] is not args[1]:
        return Call(op, args, dtype)  # no identity is about two unknowns
    simpler = _identity(op, args, dtype)
    return Call(op, args, dtype) if simpler is None else simpler


_WRAPPING = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}  # as Const does


def _fold_sum_or_product(op: ScalarOp, args: tuple[Expr, ...]) -> Expr:
    """As `fold_call`, of arithmetic on indices: most calls."""
    (a, b), name = args, op.name
    if type(a) is Const:
        if type(b) is Const:
            return Const(_WRAPPING[name](a.value, b.value), i64)
        if name == "mul" and a.value in (0, 1):
            return b if a.value else a
        if name == "add" and not a.value:
            return b
    elif type(b) is Const:
        if name == "mul":
            if b.value in (0, 1):
                return a if b.value else b
        elif not b.value:
            return a
    elif a is b and name == "sub":
        return Const(0, i64)
    return Call(op, args, i64)


def _is(e: Expr, value: int) -> bool:
    return isinstance(e, Const) and e.value == value


def _identity(op: ScalarOp, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """x*1, x+0 and the like, where they hold exactly (x + 0.0 does not: -0.0)."""
    name = op.name
    if name == "select":
        if isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
        return args[1] if args[1] is args[2] else None
    if name == "not":
        inner = args[0]
        return inner.args[0] if isinstance(inner, Call) and inner.op is op else None
    if name in ("and", "or"):
        neutral = name == "and"
        for a, b in (args, args[::-1]):
            if isinstance(a, Const):
                return b if a.value == neutral else a
        return args[0] if args[0] is args[1] else None
    if len(args) != 2 or not dtype.is_number:
        return None
    a, b = args
    if name == "mul" and (_is(b, 1) or _is(a, 1)):
        return a if _is(b, 1) else b
    if name in ("div", "floordiv") and _is(b, 1) and (name == "div" or dtype.is_integer):
        return a
    if not dtype.is_integer:
        return None
    if name == "add" and (_is(a, 0) or _is(b, 0)):
        return b if _is(a, 0) else a
    if name == "sub":
        return a if _is(b, 0) else Const(0, dtype) if a is b else None
    if name == "mul" and (_is(a, 0) or _is(b, 0)):
        return Const(0, dtype)
    if name == "mod" and _is(b, 1):
        return Const(0, dtype)
    if name in ("min", "max") and a is b:
        return a
    return None


def reduce(op: str, body: Expr, axes: Sequence[Index]) -> Expr:
    """The reduction of `body` over `axes`; axes of extent 1 vanish."""
    one = {a: Const(0, i64) for a in axes if a.extent == 1}
    if one:
        body, axes = substitute(body, one), [a for a in axes if a not in one]
    return Reduce(op, body, tuple(axes)) if axes else body


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The lesser one; NaN if either is."""
    return call("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The greater one; NaN if either is."""
    return call("max", a, b)


def _unary(name: str) -> Callable[[Expr], Expr]:
    def build(x: Expr) -> Expr:
        return call(name, x)

    build.__name__ = name
    return build


exp, log, sqrt, erf = map(_unary, ("exp", "log", "sqrt", "erf"))
sin, cos, tan, tanh = map(_unary, ("sin", "cos", "tan", "tanh"))
floor, ceil, absolute, sign = map(_unary, ("floor", "ceil", "abs", "sign"))
isnan, isinf = map(_unary, ("isnan", "isinf"))


# ---------------------------------------------------------------- traversal


def walk(root: Expr, known: Container[Expr] = ()) -> Iterator[Expr]:
    """Every distinct node below and including `root`, children before parents, less those that are
    `known` when the walk comes to them, and what lies below these alone."""
    seen: set[Expr] = set()
    stack: list[Expr | None] = [root]
    while stack:
        node = stack.pop()
        if node is None:  # all below the node that lies under this mark have been seen
            yield stack.pop()  # type: ignore[misc]
        elif node not in seen and node not in known:
            seen.add(node)
            children = node.children
            if not children:
                yield node
                continue
            stack += (node, None, *children[::-1])


def transform(
    root: Expr, rewrite: Callable[[Expr], Expr | None], done: dict[Expr, Expr] | None = None
) -> Expr:
    """Rebuilds bottom-up; `rewrite` sees each node over its new children (None keeps it). What
    nodes have become is added to `done`; what is in it is not looked at again."""
    done = {} if done is None else done
    for node in walk(root, done):
        children = node.children
        new = tuple([done[c] for c in children])
        result = node if new == children else node.rebuild(new)
        new_result = rewrite(result)
        done[node] = result if new_result is None else new_result
    return done[root]


def substitute(
    root: Expr,
    mapping: Mapping[Any, Expr],
    decide: Callable[[Expr], Expr] | None = None,
) -> Expr:
    """Replaces whole nodes (Index, Sym, Ref, ...) by others. Of a select whose condition `decide`
    makes a constant, the side that is not taken is not looked at."""
    return substitution(mapping, decide)(root) if mapping else root


def substitution(
    mapping: Mapping[Any, Expr], decide: Callable[[Expr], Expr] | None = None
) -> Callable[[Expr], Expr]:
    """As `substitute`, for many expressions, whose common parts are rebuilt once."""
    done: dict[Expr, Expr] = {}
    indices = mapping.keys() if all([type(n) is Index for n in mapping]) else None

    def visit(node: Expr) -> Expr:
        result = mapping.get(node)
        if result is not None:
            return result
        result = done.get(node)
        if result is None:
            if indices is not None and free_indices(node).isdisjoint(indices):
                return node
            children = node.children
            if decide is not None and isinstance(node, Call) and node.op.name == "select":
                condition = decide(visit(children[0]))
                if isinstance(condition, Const):
                    result = done[node] = visit(children[1 if condition.value else 2])
                    return result
            new = tuple([visit(c) for c in children])
            same = all([a is b for a, b in zip(new, children)])
            result = done[node] = node if same else node.rebuild(new)
        return result

    return visit


def loads(root: Expr) -> tuple[Load, ...]:
    """The distinct Loads below and including `root`, in a fixed order."""
    return _loads_and_reduces(root)[0]


def reduces(root: Expr) -> tuple[Reduce, ...]:
    """The distinct Reduces below and including `root`, in a fixed order, the inner ones first."""
    return _loads_and_reduces(root)[1]


def _loads_and_reduces(root: Expr) -> tuple[tuple[Load, ...], tuple[Reduce, ...]]:
    both = root._loads_and_reduces
    if both is None:
        nodes = [n for n in walk(root) if isinstance(n, (Load, Reduce))]
        reads = tuple([n for n in nodes if isinstance(n, Load)])
        both = root._loads_and_reduces = reads, tuple([n for n in nodes if isinstance(n, Reduce)])
    return both


def called(root: Expr) -> frozenset[str]:
    """The names of the scalar operations in `root`: what it can be spared to be rewritten for."""
    stack = [] if root._called is not None else [root]  # long chains are deeper than calls may be
    while stack:
        node = stack[-1]
        unknown = [c for c in node.children if c._called is None]
        stack += unknown
        if not unknown:
            names = frozenset().union(*[called(c) for c in node.children])
            node._called = names | {node.op.name} if isinstance(node, Call) else names
            stack.pop()
    assert root._called is not None
    return root._called


def free_indices(root: Expr) -> frozenset[Index]:
    """The Index nodes that `root` depends on and does not bind itself."""
    free = root._free
    if free is None:
        if isinstance(root, Index):
            free = frozenset((root,))
        else:
            below = [free_indices(c) for c in root.children]
            free = below[0] if len(below) == 1 else _NONE.union(*below)
            if isinstance(root, Reduce):
                free = free.difference(root.axes)
        root._free = free
    return free


_NONE: frozenset[Any] = frozenset()


def symbols(root: Expr) -> frozenset[Sym]:
    """The Sym nodes in `root`, and in the extents of its indices."""
    if root._symbols is None:
        names = frozenset((root,)) if isinstance(root, Sym) else frozenset()
        inner: Iterable[Expr] = root.children
        if isinstance(root, Index) and isinstance(root.extent, Expr):
            inner = (root.extent,)
        elif isinstance(root, Reduce):
            inner = (root.body, *root.axes)
        root._symbols = names.union(*(symbols(x) for x in inner))
    return root._symbols


def count_uses(
    roots: Iterable[Expr], operands: Callable[[Expr], Iterable[Expr]] = lambda node: node.children
) -> Counter[Expr]:
    """How often each node is an operand of a distinct node, or a root."""
    uses: Counter[Expr] = Counter()
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        uses[node] += 1
        if node not in seen:
            seen.add(node)
            stack.extend(operands(node))
    return uses


def cost(root: Expr) -> int:
    """Rough work of evaluating `root` once, in fused-multiply-add units (Load counts 1)."""
    total = 0
    for node in walk(root):
        if isinstance(node, Call) and node.dtype is not i64:
            total += node.op.cost
        elif isinstance(node, Load):
            total += 1
        elif isinstance(node, Reduce):
            total += math.prod(a.extent if isinstance(a.extent, int) else 64 for a in node.axes)
    return total
