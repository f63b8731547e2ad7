"""Reads graphs back from text: a hand-written recursive descent over the tokens of lexer.py.

    graph   = "graph" @name "(" params ")" "->" types [where] ["phase" word] "{" line* return "}"
    line    = "const" %v ":" type "=" contents [loc]
            | [%v, ... "="] title ["@" name] "(" operands ")" [attrs] [":" types] [loc] [regions]
    return  = "return" [%v ["as" string], ...]
    region  = "{" ["^" "(" params ")"] line* "yield" [%v, ...] "}"
    type    = dtype "[" dims "]" ["@" layout] | "seq" "<" type ">" | "opt" "<" type ">"
    contents = element | nested brackets | "splat" "(" element ")" | "zeros" | "random(seed=n)"
            | "dense" "<" digest ">" | "..."

`random` gives standard normal floats, integers in -8..8 (0..16 unsigned) and fair booleans from
numpy's default generator. A digest is looked up in `constants` (see printer.graph_constants).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes, opdef
from graphc.ir.dtypes import DType
from graphc.ir.expr import Sym
from graphc.ir.expr_parser import ExprParser, parse_expr
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.kernel import Kernel
from graphc.ir.lexer import unquote
from graphc.ir.literals import nan_of_bits
from graphc.ir.program import Program
from graphc.ir.types import Layout, OptionalType, SequenceType, TensorType, Type

Constants = Mapping[str, np.ndarray]


def parse(text: str, constants: Constants | None = None) -> Graph | Kernel | Program:
    """A graph, kernel or program, told apart by its first word; ModelError gives line:column."""
    from graphc.ir.kernel_parser import parse_kernel, parse_program

    parser = GraphParser(text, constants)
    if parser.sees("kernel"):
        return parse_kernel(text)
    if parser.sees("program"):
        return parse_program(text, constants)
    if not parser.sees("graph"):
        parser.fail("expected `graph`, `kernel` or `program`")
    return parse_graph(text, constants)


def parse_graph(
    text: str, constants: Constants | None = None, elided: list[Op] | None = None
) -> Graph:
    """The graph written in `text`. Constants written `...` are an error unless `elided` is given:
    they become zeros, and their ops are appended to it."""
    parser = GraphParser(text, constants, elided)
    graph = parser.graph()
    parser.finish()
    return graph


def parse_type(text: str, symbols: Mapping[str, Sym] | None = None) -> Type:
    """The type written in `text`."""
    parser = GraphParser(text)
    parser.scope.names.update(symbols or {})
    type = parser.type()
    parser.finish()
    return type


class TypeParser(ExprParser):
    """Types, symbols, attributes and the contents of constants."""

    def __init__(self, text: str, constants: Constants | None = None):
        super().__init__(text)
        self.constants = constants or {}

    # ------------------------------------------------------------ types

    def type(self) -> Type:
        for word, wrapper in (("seq", SequenceType), ("opt", OptionalType)):
            if self.accept(word):
                self.expect("<")
                element = self.type()
                self.close_angle()
                return wrapper(element)  # type: ignore[arg-type]
        return self.tensor_type()

    def tensor_type(self) -> TensorType:
        start = self.token
        dtype = self.dtype()
        shape = self.shape()
        layout = self._layout() if self.token.kind == "symbol" else None
        try:
            return TensorType(dtype, shape, layout)
        except ModelError as error:
            self.fail(str(error), start)

    def shape(self) -> tuple | None:
        """`[2,N]`, `[]`, or `[*]` for a rank that is not known (None)."""
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return None
        dims = []
        while not self.accept("]"):
            dims.append(self.dimension())
            if not self.sees("]"):
                self.expect(",")
        return tuple(dims)

    def _layout(self) -> Layout:
        token = self.token
        name = self.sigil_name("symbol", "a layout")
        try:
            return Layout.parse(name)
        except (ValueError, IndexError):
            self.fail(f"unknown layout @{name}", token)

    def optional_type(self) -> Type | None:
        """A type, or None for `?`."""
        return None if self.accept("?") else self.type()

    def where(self, closing: str = "{") -> dict[str, Sym]:
        """Declares the symbols of the `where` clause ahead, if there is one, without moving."""
        start, symbols = self.at, {}
        while self.token.kind != "end" and not self.sees(closing) and not self.sees("where"):
            self.next()
        if self.sees("where"):
            symbols = self._where_clause()
            self.scope.names.update(symbols)
        self.at = start
        return symbols

    def _where_clause(self) -> dict[str, Sym]:
        self.expect("where")
        symbols: dict[str, Sym] = {}
        while True:
            name = self.name("a symbol")
            self.expect(":")
            low = self.integer()
            self.expect("..")
            high = self.integer() if self.token.kind == "number" or self.sees("-") else None
            symbols[name] = Sym(name, low, high)
            if not self.accept(","):
                return symbols

    def _loc(self) -> tuple[str, ...]:
        if not (self.sees("loc") and self.ahead().text == "("):
            return ()
        self.next()
        self.expect("(")
        names = []
        while not self.accept(")"):
            names.append(self.string())
            if not self.sees(")"):
                self.expect(",")
        return tuple(names)

    # ------------------------------------------------------------ attributes

    def attributes(self) -> dict[str, Any]:
        """`{name=value, ...}`."""
        self.expect("{")
        attrs: dict[str, Any] = {}
        while not self.accept("}"):
            name = self.name("an attribute's name")
            if name in attrs:
                self.fail(f"attribute {name} is given twice")
            self.expect("=")
            attrs[name] = self.attribute()
            if not self.sees("}"):
                self.expect(",")
        return attrs

    def attribute(self) -> Any:
        token = self.token
        if token.kind == "string":
            return self.string()
        if token.kind == "symbol":
            return self._layout()
        if token.kind == "ident":
            return self._word_attribute(token.text)
        if self.accept("["):
            return tuple(self._list())
        if self.sees("{"):
            return self.attributes()
        if self.accept("`"):
            value = self.expression()
            self.expect("`")
            return value
        return self._number_attribute()

    def _list(self) -> list:
        values = []
        while not self.accept("]"):
            values.append(self.attribute())
            if not self.sees("]"):
                self.expect(",")
        return values

    def _word_attribute(self, word: str) -> Any:
        words = {"true": True, "false": False, "none": None}
        if word in words:
            self.next()
            return words[word]
        if word == "tensor":
            return self._tensor_attribute()
        if word == "b" and self.ahead().kind == "string":
            self.next()
            return self.string().encode("latin-1")
        if word in dtypes.BY_NAME and self.ahead().text != "[":
            return self.dtype()
        return self.type()

    def _tensor_attribute(self) -> np.ndarray:
        self.next()
        self.expect("(")
        type = self.tensor_type()
        self.expect(",")
        array = self.contents(type)
        self.expect(")")
        return array

    def _number_attribute(self) -> int | float:
        negative = self.accept("-")
        if self.token.kind != "number":
            self.fail("expected an attribute's value")
        number = self._number()
        value = number.value if not isinstance(number, (int, float)) else number
        return -value if negative else value

    # ------------------------------------------------------------ constants

    def contents(self, type: TensorType) -> np.ndarray:
        """The array of a constant of this type."""
        token = self.token
        if not type.is_static:
            self.fail(f"a constant cannot have type {type}")
        shape, dtype = type.static_shape, type.dtype
        if self.accept("dense"):
            return self._dense(type)
        if self.accept("zeros"):
            return np.full(shape, "" if dtype is dtypes.string else 0, dtype.np)
        if self.accept("splat"):
            self.expect("(")
            value = self._element(dtype)
            self.expect(")")
            return np.full(shape, value, dtype.np)
        if self.accept("random"):
            return self._random(type)
        found: list[int] = []
        flat = self._nested(dtype, 0, found)
        array = np.empty(len(flat), dtype.np)
        array[:] = flat
        if (tuple(found) != shape if flat else array.size != type.size) or array.size != type.size:
            self.fail(f"contents of shape {found} do not fit {type}", token)
        return array.reshape(shape)

    def _dense(self, type: TensorType) -> np.ndarray:
        self.expect("<")
        token = self.token
        key = self.expect_kind("digest", "a digest `sha256:...`")
        self.close_angle()
        array = self.constants.get(key)
        if array is None:
            self.fail(f"no constant {key} was given", token)
        if array.dtype != type.dtype.np or array.shape != type.static_shape:
            self.fail(f"constant {key} is {array.dtype}{list(array.shape)}, not {type}", token)
        return array

    def _random(self, type: TensorType) -> np.ndarray:
        self.expect("(")
        self.expect("seed")
        self.expect("=")
        seed = self.integer()
        self.expect(")")
        return random_array(type.static_shape, type.dtype, seed)

    def _nested(self, dtype: DType, depth: int, shape: list[int]) -> list:
        if not self.sees("["):
            if len(shape) > depth:
                self.fail("expected `[`")
            return [self._element(dtype)]
        token = self.next()
        if len(shape) == depth:
            shape.append(-1)
        values: list = []
        count = 0
        while not self.accept("]"):
            values += self._nested(dtype, depth + 1, shape)
            count += 1
            if not self.sees("]"):
                self.expect(",")
        if shape[depth] not in (-1, count):
            self.fail(f"a row has {count} elements, others {shape[depth]}", token)
        shape[depth] = count
        return values

    def _element(self, dtype: DType) -> Any:
        token = self.token
        if dtype is dtypes.string:
            raw = self.accept("b")
            text = self.string()
            return text.encode("latin-1") if raw else text
        if dtype is dtypes.boolean:
            if not (self.accept("true") or self.accept("false")):
                self.fail("expected `true` or `false`")
            return token.text == "true"
        if dtype.kind == "complex":
            return self._complex(dtype)
        if dtype.is_integer:
            value = self.integer()
            if not dtype.min <= value <= dtype.max:
                self.fail(f"{value} is not in the range of {dtype}", token)
            return value
        return self._float_element(dtype)

    def _complex(self, dtype: DType):
        part = dtypes.f32 if dtype.bits == 64 else dtypes.f64
        self.expect("(")
        real = self._float_element(part)
        self.expect(",")
        imaginary = self._float_element(part)
        self.expect(")")
        return np.array([real, imaginary], part.np).view(dtype.np)[0]

    def _float_element(self, dtype: DType):
        negative = self.accept("-")
        if self.accept("nan"):
            return self._nan(dtype)
        if self.accept("inf"):
            value = float("inf")
        else:
            value = float(self.expect_kind("number", f"a literal of type {dtype}"))
        return _rounded(-value if negative else value, dtype)

    def _nan(self, dtype: DType):
        if not self.accept("("):
            return np.asarray(np.nan, dtype.np)[()]
        bits = self.integer()
        self.expect(")")
        return nan_of_bits(bits, dtype)


def _rounded(value: float, dtype: DType):
    """The element of `dtype` nearest to the decimal that was written (infinities may be)."""
    with np.errstate(all="ignore"):
        if dtype.bits >= 32:
            return np.asarray(value, dtype.np)[()]
        return np.asarray(value, np.float32).astype(dtype.np)[()]


def random_array(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    """The contents `random(seed=...)` stands for."""
    generator = np.random.default_rng(seed)
    if dtype is dtypes.boolean:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        low = max(-8, int(dtype.min))
        return generator.integers(low, min(low + 16, int(dtype.max)), shape, endpoint=True).astype(
            dtype.np
        )
    return np.asarray(generator.standard_normal(shape)).astype(np.float32).astype(dtype.np)


class GraphParser(TypeParser):
    """Graphs and their regions."""

    def __init__(
        self, text: str, constants: Constants | None = None, elided: list[Op] | None = None
    ):
        super().__init__(text, constants)
        self.elided = elided

    def graph(self) -> Graph:
        self.expect("graph")
        graph = Graph(self.sigil_name("symbol", "the graph's @name"))
        graph.symbols = self.where()
        values: dict[str, Value] = {}
        self._params(graph, values)
        self.expect("->")
        declared_at = self.token
        declared = self._result_types()
        if self.sees("where"):
            self._where_clause()
        if self.accept("phase"):
            graph.phase = self.expect_kind("ident", "a phase")
        self.expect("{")
        self._ops(graph, values)
        self._return(graph, values)
        self.expect("}")
        found = [v.type for v in graph.results]
        if declared != found:
            shown = [list(map(str, types)) for types in (declared, found)]
            self.fail(f"results are declared {shown[0]}, but are {shown[1]}", declared_at)
        return graph

    def _params(self, region: Region, values: dict[str, Value]) -> None:
        self.expect("(")
        while not self.accept(")"):
            token = self.token
            name = self.sigil_name("value", "a parameter %name")
            type = self.type() if self.accept(":") else None
            self._bind(name, region.add_param(type, name), values, token)
            if not self.sees(")"):
                self.expect(",")

    def _bind(self, name: str, value: Value, values: dict[str, Value], token) -> None:
        if name in values:
            self.fail(f"%{name} is defined twice", token)
        values[name] = value

    def _result_types(self) -> list[Type | None]:
        if not self.accept("("):
            return [self.optional_type()]
        types: list[Type | None] = []
        while not self.accept(")"):
            types.append(self.optional_type())
            if not self.sees(")"):
                self.expect(",")
        return types

    def _ops(self, region: Region, values: dict[str, Value]) -> None:
        while not self.sees("return") and not self.sees("yield"):
            if self.sees("const"):
                self._constant(region, values)
            else:
                self._op(region, values)

    def _return(self, graph: Graph, values: dict[str, Value]) -> None:
        self.expect("return")
        results = []
        while self.token.kind == "value":
            name = unquote(self.token.text[1:])
            results.append(self._use(values))
            graph.output_names.append(self.string() if self.accept("as") else name)
            if not self.accept(","):
                break
        graph.set_results(results)

    def _use(self, values: dict[str, Value]) -> Value:
        token = self.token
        name = self.sigil_name("value", "a %value")
        if name not in values:
            self.fail(f"unknown value %{name}", token)
        return values[name]

    def _constant(self, region: Region, values: dict[str, Value]) -> None:
        self.expect("const")
        token = self.token
        name = self.sigil_name("value", "the constant's %name")
        self.expect(":")
        type = self.tensor_type()
        self.expect("=")
        elided = self.elided is not None and self.accept("...")
        array = np.zeros(type.static_shape, type.dtype.np) if elided else self.contents(type)
        op = Op(opdef.CONSTANT, (), {"value": array}, loc=self._loc())
        op.output.type, op.output.name = type, name
        if elided:
            self.elided.append(op)  # type: ignore[union-attr]
        self._bind(name, op.output, values, token)
        region.append(op)

    def _op(self, region: Region, values: dict[str, Value]) -> None:
        names = self._output_names()
        defn = self._title()
        attrs: dict[str, Any] = {}
        if self.token.kind == "symbol":
            attrs["name"] = self.sigil_name("symbol", "a name")
        inputs = self._operands(values)
        if self.sees("{") and self._sees_attributes():
            attrs.update(self.attributes())
        types = self._op_types(len(names))
        loc = self._loc()
        op = Op(defn, inputs, attrs, len(names), self._regions(), loc)
        for (name, token), value, type in zip(names, op.outputs, types):
            value.name, value.type = name, type
            self._bind(name, value, values, token)
        region.append(op)

    def _output_names(self) -> list[tuple[str, Any]]:
        names = []
        while self.token.kind == "value":
            token = self.token
            names.append((self.sigil_name("value", "a %value"), token))
            if not self.accept(","):
                break
        if names:
            self.expect("=")
        return names

    def _title(self) -> opdef.OpDef:
        token = self.token
        full = self.name("an operator's name")
        domain, _, name = full.rpartition(".")
        defn = opdef.find(name, domain)
        if defn is None:
            self.fail(f"operator {full} is not defined", token)
        return defn

    def _operands(self, values: dict[str, Value]) -> list[Value | None]:
        inputs: list[Value | None] = []
        self.expect("(")
        while not self.accept(")"):
            inputs.append(None if self.accept("_") else self._use(values))
            if not self.sees(")"):
                self.expect(",")
        return inputs

    def _sees_attributes(self) -> bool:
        """Whether `{` opens attributes, not a region."""
        return self.ahead(1).text == "}" or self.ahead(2).text == "="

    def _op_types(self, count: int) -> list[Type | None]:
        if not self.accept(":"):
            return [None] * count
        token = self.token
        types = [self.optional_type()]
        while self.accept(","):
            types.append(self.optional_type())
        if len(types) != count:
            self.fail(f"{count} results, but {len(types)} types", token)
        return types

    def _regions(self) -> list[Region]:
        regions = []
        while self.accept("{"):
            region = Region()
            values: dict[str, Value] = {}
            if self.accept("^"):
                self._params(region, values)
            self._ops(region, values)
            self.expect("yield")
            region.set_results(self._yielded(values))
            self.expect("}")
            self.accept("else")
            regions.append(region)
        return regions

    def _yielded(self, values: dict[str, Value]) -> list[Value]:
        results: list[Value] = []
        while self.token.kind == "value":
            results.append(self._use(values))
            if not self.accept(","):
                break
        return results


def __getattr__(name: str) -> Any:
    """`parse_kernel` and `parse_program`, which live in kernel_parser."""
    if name in ("parse_kernel", "parse_program"):
        from graphc.ir import kernel_parser

        return getattr(kernel_parser, name)
    raise AttributeError(name)


__all__ = ["parse", "parse_expr", "parse_graph", "parse_type", "random_array"]
