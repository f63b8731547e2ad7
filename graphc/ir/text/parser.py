"""Reads graphs back from text: a hand-written recursive descent over the tokens of lexer.py.

    graph   = "graph" @name "(" params ")" "->" types [where] ["phase" word] "{" line* return "}"
    line    = "const" %v ":" type "=" contents [loc]
            | [%v, ... "="] title ["@" name] "(" operands ")" [attrs] [":" types] [loc]
              ["schedule" string] [regions]
    return  = "return" [%v ["as" string], ...]
    region  = "{" ["^" "(" params ")"] line* "yield" [%v, ...] "}"
    attrs   = "{" [name "=" attr, ...] "}"
    attr    = string | "b" string | number | "true" | "false" | "none" | dtype | type | @layout
            | "[" attr, ... "]" | attrs | "`" expression "`" | "tensor" "(" type "," contents ")"

Types, `where` and `loc` are those of type_parser.py; contents, which may also be "..." where the
caller asks which are left out, those of constant_parser.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.ir import dtypes, opdef
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.kernel import Kernel
from graphc.ir.program import Program
from graphc.ir.text.constant_parser import ConstantParser, Constants
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.text.lexer import Token, unquote
from graphc.ir.text.program_parser import parse_program
from graphc.ir.types import Type


def parse(text: str, constants: Constants | None = None) -> Graph | Kernel | Program:
    """A graph, kernel or program, told apart by its first word; ModelError gives line:column."""
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


class GraphParser(ConstantParser):
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
        actual = [v.type for v in graph.results]
        if declared != actual:
            shown = [list(map(str, types)) for types in (declared, actual)]
            self.fail(f"results are declared {shown[0]}, but are {shown[1]}", declared_at)
        return graph

    def _params(self, region: Region, values: dict[str, Value]) -> None:
        def param() -> None:
            token = self.token
            name = self.sigil_name("value", "a parameter %name")
            type = self.type() if self.accept(":") else None
            self._bind(name, region.add_param(type, name), values, token)

        self.expect("(")
        self.listed(")", param)

    def _bind(self, name: str, value: Value, values: dict[str, Value], token: Token) -> None:
        if name in values:
            self.fail(f"%{name} is defined twice", token)
        values[name] = value

    def _result_types(self) -> list[Type | None]:
        if not self.accept("("):
            return [self.optional_type()]
        return self.listed(")", self.optional_type)

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
        schedule = self.string() if self.accept("schedule") else ""
        op = Op(defn, inputs, attrs, len(names), self._regions(), loc)
        op.schedule = schedule
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
        self.expect("(")
        return self.listed(")", lambda: None if self.accept("_") else self._use(values))

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

    # ------------------------------------------------------------ attributes

    def attributes(self) -> dict[str, Any]:
        """`{name=value, ...}`."""
        attrs: dict[str, Any] = {}

        def attribute() -> None:
            name = self.name("an attribute's name")
            if name in attrs:
                self.fail(f"attribute {name} is given twice")
            self.expect("=")
            attrs[name] = self.attribute()

        self.expect("{")
        self.listed("}", attribute)
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
            return tuple(self.listed("]", self.attribute))
        if self.sees("{"):
            return self.attributes()
        if self.accept("`"):
            value = self.expression()
            self.expect("`")
            return value
        return self._number_attribute()

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
