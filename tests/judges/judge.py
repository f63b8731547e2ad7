"""Cases that judge definitions by PyTorch, scipy or numpy in float64.

A case is an operator, its attributes, its operands and a reference. The reference gets the operands
as they were rounded to the type under test, floats widened to float64, so that only the operator's
own rounding is judged. Integer results must be equal. A float result may differ by `roundings` of
its type: of the element itself and, as sums that cancel err by the size of their terms, of numbers
of the size `terms`, or `share` times the largest element of the result. For types of 16 bits these
are roundings of float32, which sums are kept in, and `narrow` are those of the type: one, but for
operators that round in between. Infinities and NaNs must be where they are expected, and zeros must
have the expected sign where a case says `signed`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from graphc.driver import compile
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
BETWEEN = 4.0  # `narrow` of operators of 16 bits that round between their steps
F32 = float(np.finfo(np.float32).eps)
OPSET = 24
DOMAINS = {"": OPSET, "com.microsoft": 1, "ai.onnx.ml": 4}

Operand = Callable[[np.random.Generator, np.dtype], Any] | np.ndarray | None


@dataclass(frozen=True)
class Case:
    """An operator on some operands, and what it should give.

    `inputs` are made for an element type, by functions of a generator and the type; arrays are
    taken as they are, None is an operand left out. `reference(*operands, **attrs)` gives one array,
    or a tuple of them for several outputs (None: not compared); it gets the attributes that are its
    keyword-only parameters. `note` says what the standard chose where others have it otherwise.
    """

    name: str
    op: str
    inputs: Sequence[Operand]
    reference: Callable[..., Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    types: Sequence[str] = FLOATS
    domain: str = ""
    outputs: int = 1
    opset: int | None = None
    roundings: float = 4.0
    share: float = 0.0
    terms: float = 0.0
    narrow: float = 1.0
    signed: bool = False
    note: str = ""

    def operands(self, dtype: str) -> list[np.ndarray | None]:
        """The operands for an element type: the same in every run."""
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        rng = np.random.default_rng(sum(map(ord, self.name)))
        made = [x(rng, kind) if callable(x) else x for x in self.inputs]
        return [None if x is None else np.asarray(x) for x in made]

    def expected(self, operands: Sequence[np.ndarray | None]) -> list[Any]:
        """The reference's results, in float64 or the type of integers."""
        attrs = {k: v for k, v in self.attrs.items() if k in named(self.reference)}
        with np.errstate(all="ignore"):
            results = self.reference(*(widened(x) for x in operands), **attrs)
        return list(results) if isinstance(results, tuple) else [results]

    def model(self, operands: Sequence[np.ndarray | None]):
        """A model of this one node, whose operands are all inputs."""
        names = ["" if x is None else f"x{n}" for n, x in enumerate(operands)]
        results = [f"y{n}" for n in range(self.outputs)]
        node = helper.make_node(self.op, names, results, domain=self.domain, **self.attrs)
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, operands)
            if x is not None
        ]
        outs = [helper.make_empty_tensor_value_info(y) for y in results]
        graph = helper.make_graph([node], self.name, infos, outs)
        versions = {**DOMAINS, self.domain: self.opset or DOMAINS[self.domain]}
        opsets = [helper.make_opsetid(*item) for item in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def named(reference: Callable) -> frozenset[str]:
    """The keyword-only parameters of a reference; none of numpy's own functions."""
    if not isinstance(reference, FunctionType):
        return frozenset()
    parameters = inspect.signature(reference).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def widened(x: np.ndarray | None) -> np.ndarray | None:
    """Floats as float64."""
    return x.astype(np.float64) if x is not None and is_float(x.dtype) else x


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


# ---------------------------------------------------------------- running


def run(case: Case, operands: Sequence[np.ndarray | None], target: str = "") -> list[np.ndarray]:
    """The results of the interpreter, or of a target."""
    model = case.model(operands)
    given = [x for x in operands if x is not None]
    if not target:
        return interpret(import_onnx(model), given)
    return list(compile(model.SerializeToString(), target=target).run(given))


def verdict(case: Case, dtype: str, target: str = "") -> str | None:
    """What is wrong with the results of a case on an element type; None if nothing is."""
    operands = case.operands(dtype)
    expected = case.expected(operands)
    for n, (got, want) in enumerate(zip(run(case, operands, target), expected, strict=True)):
        problem = None if want is None else disagreement(case, np.asarray(got), np.asarray(want))
        if problem:
            return f"output {n} of {case.name} on {dtype}: {problem}"
    return None


def disagreement(case: Case, got: np.ndarray, want: np.ndarray) -> str | None:
    """How a result differs from the reference by more than the case allows."""
    if got.shape != want.shape:
        return f"has shape {list(got.shape)}, expected {list(want.shape)}"
    if not is_float(got.dtype):
        wrong = got != want
    elif not is_float(want.dtype) and want.dtype.kind != "c":
        return f"is {got.dtype}, expected {want.dtype}"
    else:
        wrong = _apart(case, got, want)
    if not wrong.any():
        return None
    where = tuple(int(n) for n in np.argwhere(wrong)[0])
    return (f"{int(wrong.sum())} of {wrong.size} differ, first at {list(where)}: "
            f"{got[where]}, expected {want[where]}")  # fmt: skip


@np.errstate(all="ignore")
def _apart(case: Case, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Which elements differ by more than rounding."""
    limits = ml_dtypes.finfo(got.dtype)
    rounded = want.astype(got.dtype).astype(np.float64)  # what overflows is infinite
    got, top = got.astype(np.float64), float(limits.max)
    size = np.where(np.isfinite(want), np.abs(want), 0.0)
    cancelled = case.share * size.max(initial=0.0) + case.terms
    if limits.bits == 16:
        unit = case.narrow * float(limits.eps)
        allowed = unit * (size + (case.narrow > 1) * cancelled)
        allowed += case.roundings * F32 * (size + cancelled)
    else:
        unit = case.roundings * float(limits.eps)
        sums = 2 if limits.bits == 64 else 1  # those of the reference are rounded as often
        allowed = unit * (size + sums * cancelled)
    far = ~(np.abs(got - want) <= allowed + float(limits.smallest_subnormal))
    alike = (got == rounded) | (np.isnan(got) & np.isnan(want))
    at_the_edge = size * (1 + unit) >= top  # finite or not by a rounding
    alike |= at_the_edge & (np.abs(got) >= top * (1 - unit)) & (np.signbit(got) == np.signbit(want))
    wrong = far & ~alike
    if case.signed:
        wrong |= (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    return wrong
