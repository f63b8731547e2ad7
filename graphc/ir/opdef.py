"""Operator definitions: how an operator is declared once, for every backend.

A definition is a Python function under one of five decorators. Positional parameters after the
first are operands, annotated with the element types they take; keyword-only parameters are
attributes with their defaults; `**attrs: SHARED` declares those of a dict that several operators
share. `Known(...)` marks an operand whose contents decide the output's type (Reshape's shape): the
function receives them as a numpy array.

    @op(...)          def f(i, x: Float, *, alpha=1.0): return expr    scalar body over indices
    @composite(...)   def f(b, x: Float, ...): return b.Exp(x)         a graph of other operators
    @imperative(...)  def f(k, x, ...): with k.loop(...)               kernel IR, any backend
    @host(...)        def f(x, ...): return numpy arrays               strings, sequences, images
    region_op(name, run=..., infer=...)                                If, Loop, Scan, SequenceMap

The scalar body runs on symbols. `i` is the output index (a tuple of Index with `.shape` and
`.output`, the number of the output asked for); `x[i]` broadcasts as numpy does, `x[a, b]` is a
plain load. Without `infer`, the output shape is the broadcast of the operands' shapes. With it,
`infer` takes the operands (`.shape`, `.rank`, `.dtype`) and those attributes it names, or has in
`**attrs: SHARED` (all that it does not name, in `**attrs`), and returns a shape (tuple), or a list
of shapes for several outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.addresses import flatten_index, unflatten_index
from graphc.ir.dtypes import DType
from graphc.ir.expr import Const, Expr, ExprLike, Index, Load
from graphc.ir.types import Dim, Shape, TensorType
from graphc.records import dataclass

# ---------------------------------------------------------------- element type classes


class TypeClass:
    """A set of dtypes an operand may have, written `Float | Int`."""

    def __init__(self, name: str, accepts: Callable[[DType], bool], known: bool = False):
        self.name, self.accepts, self.known = name, accepts, known

    def __or__(self, other: TypeClass | None) -> Any:
        if other is None:
            return Omissible(self)
        return TypeClass(
            f"{self.name} | {other.name}", lambda d: self.accepts(d) or other.accepts(d)
        )

    __ror__ = __or__

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Omissible:
    """What an operand that may be left out is annotated with: `Float | None`."""

    what: TypeClass


Float = TypeClass("float", lambda d: d.is_float)
Int = TypeClass("int", lambda d: d.is_integer)
Bool = TypeClass("bool", lambda d: d is dtypes.boolean)
String = TypeClass("string", lambda d: d is dtypes.string)
Number = Float | Int
Any_ = TypeClass("any", lambda d: True)
Maps = TypeClass("a map", lambda d: False)


def Known(what: TypeClass) -> TypeClass:  # noqa: N802  (reads as a type in annotations)
    """An operand whose contents must be known to type the op."""
    return TypeClass(f"known {what.name}", what.accepts, known=True)


@dataclass(frozen=True)
class Param:
    """An operand: required, optional (None, by default or by annotation) or variadic."""

    name: str
    accepts: TypeClass
    kind: str


@dataclass(eq=False)
class OpDef:
    """One operator. `form` is elementwise, indexed, composite, imperative, host, region or core."""

    name: str
    form: str
    function: Callable | None = None
    infer: Callable | None = None
    domain: str = ""
    params: tuple[Param, ...] = field(default_factory=tuple)
    attrs: dict[str, Any] = field(default_factory=dict)
    required_attrs: frozenset[str] = field(default_factory=frozenset)
    outputs: int | None = 1  # None: as many as the node lists
    doc: str = field(default_factory=str)
    traits: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"OpDef({self.full_name})"

    @property
    def full_name(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name

    def __reduce__(self) -> tuple:
        return (lookup, (self.name, self.domain))


TOLD = ("params", "attrs", "required_attrs", "doc")  # by the function of a definition


class Declared(OpDef):
    """A definition whose function tells its operands and attributes, once they are asked for: a
    process uses few operators, and reading signatures takes time."""

    skip: int

    def __getattr__(self, name: str) -> Any:
        if name not in TOLD:
            raise AttributeError(name)
        assert self.function is not None
        vars(self).update(zip(TOLD, _told(self.name, self.function, self.skip)))
        return vars(self)[name]


REGISTRY: dict[tuple[str, str], OpDef] = {}
FIRST = "first"  # the trait of what has the gradient of a maximum go to the first of equal elements


def lookup(name: str, domain: str = "") -> OpDef:
    """The definition of an operator; UnsupportedError if there is none."""
    defn = find(name, domain)
    if defn is None:
        full = f"{domain}.{name}" if domain else name
        raise UnsupportedError(f"operator {full} is not defined")
    return defn


def find(name: str, domain: str = "") -> OpDef | None:
    """The definition of an operator, or None."""
    import graphc.ir.ops  # noqa: F401  (registers the operators, which need this module)

    return REGISTRY.get(("" if domain == "ai.onnx" else domain, name))


def register(defn: OpDef) -> OpDef:
    """Makes a definition one that is found by name and domain, in place of any before."""
    REGISTRY[defn.domain, defn.name] = defn
    return defn


CONSTANT = register(OpDef("Constant", "core", attrs={"value": None}))
YIELD = OpDef("yield", "core", outputs=0)
FUSED = register(OpDef("fused", "core", attrs={"name": ""}, outputs=None))


# ---------------------------------------------------------------- decorators

REQUIRED = inspect.Parameter.empty
"""In a dict of attributes that operators share: one that has no default."""


def _told(name: str, function: Callable, skip: int) -> tuple:
    """The operands and attributes of an operator, those that are required, and its description;
    the first `skip` parameters of its function are no operands."""
    params: list[Param] = []
    attrs: dict[str, Any] = {}
    required: set[str] = set()
    signature = inspect.signature(function, eval_str=True)
    for position, parameter in enumerate(signature.parameters.values()):
        if position < skip:
            continue
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            declared = _declared(name, parameter)
            required |= {key for key, default in declared.items() if default is REQUIRED}
            attrs |= {key: None if d is REQUIRED else d for key, d in declared.items()}
            continue
        accepts = parameter.annotation if parameter.annotation is not parameter.empty else Any_
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        optional = parameter.default is not parameter.empty or isinstance(accepts, Omissible)
        accepts = accepts.what if isinstance(accepts, Omissible) else accepts
        kind = "variadic" if variadic else "optional" if optional else "required"
        params.append(Param(parameter.name, accepts, kind))
    return tuple(params), attrs, frozenset(required), inspect.getdoc(function) or ""


def _declared(name: str, parameter: inspect.Parameter) -> dict[str, Any]:
    """The attributes that a parameter declares, with their defaults."""
    if parameter.kind is parameter.KEYWORD_ONLY:
        return {parameter.name: parameter.default}
    if not isinstance(parameter.annotation, dict):
        raise ModelError(
            f"operator {name}: **{parameter.name} declares the attributes of a dict: annotate it "
            f"as **{parameter.name}: SHARED"
        )
    return parameter.annotation


def _decorator(
    name: str, form: str, skip: int, infer: Callable | None, outputs: int | None, domain: str,
    traits: Sequence[str],
) -> Callable:  # fmt: skip
    """What makes a definition of a function, whose first `skip` parameters are no operands."""

    def declare(function: Callable) -> Callable:
        made = Declared(name, form, function, infer, domain, outputs=outputs,
                        traits=frozenset(traits))  # fmt: skip
        made.skip = skip
        for told in TOLD:
            delattr(made, told)
        if not function.__module__.startswith("graphc."):
            _ = made.params  # so that a plugin's author learns of a fault at once
        register(made)
        return function

    return declare


def op(
    name: str, *, infer: Callable | None = None, outputs: int | None = 1, domain: str = "",
    traits: Sequence[str] = (),
) -> Callable:  # fmt: skip
    """Declares an operator by a scalar body over output indices."""
    form = "elementwise" if infer is None else "indexed"
    return _decorator(name, form, 1, infer, outputs, domain, traits)


def composite(
    name: str, *, outputs: int | None = 1, domain: str = "", traits: Sequence[str] = ()
) -> Callable:
    """Declares an operator as a graph of others; the function gets a Builder and Values."""
    return _decorator(name, "composite", 1, None, outputs, domain, traits)


def imperative(
    name: str, *, infer: Callable, outputs: int | None = 1, domain: str = "",
    traits: Sequence[str] = (),
) -> Callable:  # fmt: skip
    """Declares an operator as kernel IR: f(k, operands..., *, attrs) with `k.outputs` to store to.

    `infer` returns TensorTypes here (there is no body to tell the dtype). With the trait
    "bounded", dims are upper bounds and the kernel stores the true ones into `k.sizes`.
    """
    return _decorator(name, "imperative", 1, infer, outputs, domain, traits)


def host(
    name: str, *, infer: Callable | None = None, outputs: int | None = 1, domain: str = "",
    traits: Sequence[str] = (),
) -> Callable:  # fmt: skip
    """Declares an operator as a numpy function, run on the host. Without `infer` (which returns
    Types) its output types are known only once it has run."""
    return _decorator(name, "host", 0, infer, outputs, domain, traits)


def region_op(
    name: str, *, run: Callable, infer: Callable, attrs: dict[str, Any] | None = None
) -> OpDef:
    """Declares an operator with sub-graphs. Operands after the declared ones are captures.

    `run(op, arguments, run_region)` gives its results, `infer(op)` their types.
    """
    params = (Param("operands", Any_, "variadic"),)
    return register(OpDef(name, "region", run, infer, "", params, dict(attrs or {}), outputs=None))


# ---------------------------------------------------------------- what a body sees


class OutIndex(tuple):
    """The index of an output element, with the output's `.shape` and its number `.output`."""

    shape: Shape
    output: int
    count: int  # type: ignore[assignment]  # number of outputs; hides tuple.count

    @staticmethod
    def make(shape: Shape, output: int, count: int = 1) -> OutIndex:
        """The index i0, i1, ... of output number `output` of `count`, in its shape."""
        index = OutIndex(Index(f"i{d}", extent) for d, extent in enumerate(shape))
        index.shape, index.output, index.count = tuple(shape), output, count
        return index


class Operand:
    """An operand seen from a body: `x[i]`, `.shape`, `.rank`, `.dtype`, `.size`."""

    def __init__(self, position: int, type: TensorType):
        self.position, self.type = position, type
        self.dtype, self.shape = type.dtype, type.dims

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        """Number of elements."""
        total: Any = 1
        for extent in self.shape:
            total = total * extent
        return total

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Load:
        if isinstance(index, OutIndex):
            index = self._broadcast(index)
        elif not isinstance(index, tuple):
            index = (index,)
        if len(index) != self.rank:
            raise ModelError(
                f"operand {self.position} must have rank {len(index)}, found {self.type}"
            )
        return Load(str(self.position), index, self.dtype)

    def check_read(self, index: Sequence[Expr]) -> None:
        """ModelError if an index runs beyond its dimension."""
        for dim, (position, extent) in enumerate(zip(index, self.shape)):
            needed: Any = 0
            if isinstance(position, Const):
                needed = position.value + 1
            elif isinstance(position, Index):
                needed = position.extent
            if isinstance(extent, int) and isinstance(needed, int) and needed > extent:
                raise ModelError(
                    f"operand {self.position} is {self.type}: dimension {dim} must be at least "
                    f"{needed}"
                )

    def _broadcast(self, index: OutIndex) -> tuple:
        tail = tuple(index)[len(index) - self.rank :] if self.rank else ()
        one = Const(0, dtypes.i64)
        return tuple(
            one if isinstance(extent, int) and extent == 1 else position
            for position, extent in zip(tail, self.shape)
        )

    def flat(self, offset: Expr) -> Load:
        """The element at a row-major offset."""
        return self[unflatten_index(offset, self.shape)]


def axes(*extents: Dim, name: str = "k") -> tuple[Index, ...]:
    """Fresh indices for a Reduce, named k0, k1, ... (nested reductions need their own names)."""
    return tuple(Index(f"{name}{n}", extent) for n, extent in enumerate(extents))


def linear(index: Sequence, shape: Shape) -> Expr:
    """The row-major offset of an index."""
    return flatten_index(tuple(index), tuple(shape))
