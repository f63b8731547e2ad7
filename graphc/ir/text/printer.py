"""Prints graphs, kernels and programs as text that `parser` reads back to the same thing.

A value prints under its name hint, made unique within its region by a suffix (`%x`, `%x.1`); a
value without a hint is named after its op (`%conv`). Hints are served before unnamed values, so
the user's own names survive. Printing depends on nothing but the graph, and printing what has been
parsed from printed text gives that text again. Constants that fit into a line are written out,
others as `splat(v)` or by the digest under which `graph_constants` returns them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from graphc.errors import InternalError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.expr import Expr, Sym, walk
from graphc.ir.graph import Graph, Op, Region, Value, same_array
from graphc.ir.kernel import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
)
from graphc.ir.program import Program
from graphc.ir.text.expr_printer import to_text
from graphc.ir.text.literals import (
    INLINE_ELEMENTS,
    INLINE_WIDTH,
    array_text,
    digest,
    float_text,
    loc_text,
    name_text,
    quote,
    sigil_text,
    splat_text,
)
from graphc.ir.text.steps import slot_text, step_lines
from graphc.ir.types import Layout, OptionalType, SequenceType, TensorType, Type

Named = Callable[[np.ndarray], str]
LINE = 100  # headers longer than this are broken into lines


# ---------------------------------------------------------------- graphs


def print_graph(graph: Graph, elide: Collection[Op] | bool = False, named: Named = digest) -> str:
    """The text of a graph. `elide` prints the contents of these Constant ops (True: of all that
    are too large to be written out) as `...`. `named` tells the name of a large constant, by
    default its digest. Text with `...` or other names costs no hashing, but does not parse back."""
    return _GraphPrinter(elide, named).graph(graph)


def graph_constants(graph: Graph) -> dict[str, np.ndarray]:
    """The arrays that `print_graph` names by a digest, by that digest."""
    constants: dict[str, np.ndarray] = {}
    for op in graph.walk():
        arrays = [v for v in op.attrs.values() if isinstance(v, np.ndarray)]
        for array in arrays:
            text = contents_text(array)
            if text.startswith("dense<"):
                other = constants.setdefault(text[len("dense<") : -1], array)
                if not same_array(other, array):
                    raise InternalError(f"two constants have the digest {text}")
    return constants


def contents_text(array: np.ndarray, named: Named = digest) -> str:
    """The contents of a constant as text (its dtype and shape are written beside it)."""
    dtype = dtypes.of(array.dtype)
    if array.size == 0:
        return "[]"
    splat = splat_text(array, dtype) if array.size > 4 else None
    if splat is not None:
        return f"splat({splat})"
    if array.size <= INLINE_ELEMENTS:
        text = array_text(array, dtype)
        if len(text) <= INLINE_WIDTH:
            return text
    return f"dense<{named(array)}>"


def value_names(region: Region) -> dict[Value, str]:
    """The unique names under which the values of a region print."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    names: dict[Value, str] = {}

    def assign(value: Value, hint: str) -> None:
        name = hint
        while name in taken:
            counts[hint] = counts.get(hint, 0) + 1
            name = f"{hint}.{counts[hint]}"
        taken.add(name)
        names[value] = name

    unnamed = []
    for value in region.values():
        if value.name:
            assign(value, value.name)
        else:
            unnamed.append(value)
    for value in unnamed:
        assign(value, _default_name(value))
    return names


def _default_name(value: Value) -> str:
    if value.producer is None:
        return f"arg{value.index}"
    return "c" if value.producer.name == "Constant" else value.producer.name.lower()


def symbols_of(graph: Graph) -> dict[str, Sym]:
    """The declared symbols of a graph, then those its types mention, by name."""
    symbols = dict(graph.symbols)
    for region in _regions(graph):
        for value in region.values():
            for sym in _type_symbols(value.type):
                symbols.setdefault(sym.name, sym)
    return symbols


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for op in region.ops:
        for inner in op.regions:
            yield from _regions(inner)


def _type_symbols(type: Type | None) -> Iterator[Sym]:
    while isinstance(type, (SequenceType, OptionalType)):
        type = type.element
    dims = type.shape if isinstance(type, TensorType) and type.shape is not None else ()
    for dim in dims:
        if isinstance(dim, Expr):
            yield from (node for node in walk(dim) if isinstance(node, Sym))


def _where_text(symbols: Iterable[Sym]) -> str:
    rows = [f"{name_text(s.name)}: {s.lo}..{'' if s.hi is None else s.hi}" for s in symbols]
    return " where " + ", ".join(rows) if rows else ""


class _GraphPrinter:
    def __init__(self, elide: Collection[Op] | bool, named: Named):
        self.elide, self.named = elide, named
        self.lines: list[str] = []

    def graph(self, graph: Graph) -> str:
        names = value_names(graph)
        results = [_type_text(v.type) for v in graph.results]
        arrow = results[0] if len(results) == 1 else f"({', '.join(results)})"
        params = [self._declare(v, names) for v in graph.params]
        tail = f" -> {arrow}{_where_text(symbols_of(graph).values())}"
        tail += f" phase {graph.phase}" if graph.phase != "imported" else ""
        self.lines += _header(f"graph {sigil_text('@', graph.name)}", params, tail)
        self._ops(graph, names, "  ")
        self.lines.append("  " + self._return(graph, names))
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def _return(self, graph: Graph, names: dict[Value, str]) -> str:
        parts = []
        for position, value in enumerate(graph.results):
            text, name = _ref(value, names), names.get(value)
            output = next(iter(graph.output_names[position : position + 1]), name)
            parts.append(text if output == name else f"{text} as {quote(str(output))}")
        return f"return {', '.join(parts)}".rstrip()

    def _declare(self, value: Value, names: dict[Value, str]) -> str:
        text = sigil_text("%", names[value])
        return text if value.type is None else f"{text}: {value.type}"

    def _ops(self, region: Region, names: dict[Value, str], indent: str) -> None:
        for op in region.ops:
            if op.name == "Constant":
                self.lines.append(indent + self._constant(op, names))
            else:
                self._op(op, names, indent)

    def _constant(self, op: Op, names: dict[Value, str]) -> str:
        array = op.attrs["value"]
        type = op.output.type or TensorType(dtypes.of(array.dtype), array.shape)
        is_elided = self._is_elided(op, array)
        contents = "..." if is_elided else contents_text(array, self.named)
        return f"const {_ref(op.output, names)} : {type} = {contents}{loc_text(op.loc)}"

    def _is_elided(self, op: Op, array: np.ndarray) -> bool:
        if isinstance(self.elide, bool):
            return self.elide and array.size > INLINE_ELEMENTS
        return op in self.elide

    def _op(self, op: Op, names: dict[Value, str], indent: str) -> None:
        outputs = ", ".join(_ref(v, names) for v in op.outputs)
        operands = ", ".join("_" if v is None else _ref(v, names) for v in op.inputs)
        attrs = dict(op.attrs)
        title = _title(op)
        if op.name == "fused" and attrs.get("name"):
            title += " " + sigil_text("@", attrs.pop("name"))
        line = indent + (f"{outputs} = " if outputs else "") + f"{title}({operands})"
        if attrs:
            line += f" {{{_attrs_text(attrs)}}}"
        if any(v.type is not None for v in op.outputs):
            line += " : " + ", ".join(_type_text(v.type) for v in op.outputs)
        line += loc_text(op.loc)
        if op.schedule:
            line += f"  schedule {quote(op.schedule)}"
        if op.regions:
            line += " {"
        self.lines.append(line)
        for number, region in enumerate(op.regions):
            if number:
                self.lines.append(indent + ("} else {" if op.name == "If" else "} {"))
            self._region(region, indent + "  ")
        if op.regions:
            self.lines.append(indent + "}")

    def _region(self, region: Region, indent: str) -> None:
        names = value_names(region)
        if region.params:
            params = ", ".join(self._declare(v, names) for v in region.params)
            self.lines.append(f"{indent}^({params})")
        self._ops(region, names, indent)
        results = ", ".join(_ref(v, names) for v in region.results)
        self.lines.append(f"{indent}yield {results}".rstrip())


def _ref(value: Value, names: dict[Value, str]) -> str:
    name = names.get(value)
    if name is None:  # broken graphs print too, for messages; they do not parse
        return f"%<outside {value.name}>"
    return sigil_text("%", name)


def _title(op: Op) -> str:
    full = op.defn.full_name
    return full if name_text(full) == full else quote(full)


def _type_text(type: Type | None) -> str:
    return "?" if type is None else str(type)


# ---------------------------------------------------------------- attributes


def _attrs_text(attrs: dict[str, Any]) -> str:
    return ", ".join(f"{name_text(k)}={attribute_text(v)}" for k, v in attrs.items())


def attribute_text(value: Any) -> str:
    """An attribute: numbers, strings, lists, types, arrays, and dimensions in backquotes."""
    if isinstance(value, np.ndarray):
        held = TensorType(dtypes.of(value.dtype), value.shape)
        return f"tensor({held}, {contents_text(value)})"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_attribute(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bytes):
        return "b" + quote(value.decode("latin-1"))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(attribute_text, value))}]"
    if isinstance(value, dict):
        return f"{{{_attrs_text(value)}}}"
    if isinstance(value, Expr):
        return f"`{to_text(value)}`"
    if isinstance(value, Layout):
        return f"@{value}"
    if isinstance(value, (DType, Type)):
        return str(value)
    raise InternalError(f"an attribute cannot be {type(value).__name__}: {value!r}")


def _float_attribute(value: float) -> str:
    """ONNX attributes are float32 widened to double: `0.01:f32` is such a one."""
    text = float_text(value, dtypes.f64)
    if value - value != 0:
        return f"{text}:f64"
    if abs(value) < 3e38 and float(np.float32(value)) == value:
        short = float_text(value, dtypes.f32) + ":f32"
        return short if len(short) < len(text) else text
    return text


# ---------------------------------------------------------------- kernels


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel."""
    params = [f"{b.access} {_buffer_text(b)}" for b in kernel.params]
    lines = _header(f"kernel {sigil_text('@', kernel.name)}", params, _where_text(kernel.sizes))
    if kernel.comment:
        lines.append("  " + quote(kernel.comment))
    lines += _body_lines(kernel.body, "  ")
    return "\n".join([*lines, "}"]) + "\n"


def _header(start: str, params: list[str], tail: str) -> list[str]:
    line = f"{start}({', '.join(params)}){tail} {{"
    if len(line) <= LINE or len(params) < 2:
        return [line]
    return [f"{start}(", *(f"  {p}," for p in params[:-1]), f"  {params[-1]}", f"){tail} {{"]


def _buffer_text(buffer: Buffer) -> str:
    dims = ",".join(map(str, buffer.shape))
    return f"{name_text(buffer.name)}: {buffer.dtype}[{dims}]"


def _body_lines(body: Body, indent: str) -> Iterator[str]:
    for stmt in body:
        yield from _stmt_lines(stmt, indent)


def stmt_text(stmt: Stmt) -> str:
    """The first line of a statement, for messages."""
    return next(_stmt_lines(stmt, "")).removesuffix(" {")


def _stmt_lines(stmt: Stmt, indent: str) -> Iterator[str]:
    if isinstance(stmt, For):
        yield f"{indent}{_loop_text(stmt)} {{"
        yield from _body_lines(stmt.body, indent + "  ")
        yield indent + "}"
    elif isinstance(stmt, While):
        yield f"{indent}while {stmt.condition} {{"
        yield from _body_lines(stmt.body, indent + "  ")
        yield indent + "}"
    elif isinstance(stmt, If):
        yield f"{indent}if {stmt.condition} {{"
        yield from _body_lines(stmt.then, indent + "  ")
        if stmt.orelse:
            yield indent + "} else {"
            yield from _body_lines(stmt.orelse, indent + "  ")
        yield indent + "}"
    else:
        yield indent + _simple_text(stmt)


def _loop_text(loop: For) -> str:
    kind = "for" if loop.kind == "serial" else loop.kind
    usual = loop.extent if loop.kind == "vector" else 0
    width = "" if loop.width == usual else f" width {loop.width}"
    return f"{kind} {name_text(loop.var.name)} < {loop.extent}{width}"


def _simple_text(stmt: Stmt) -> str:
    if isinstance(stmt, Let):
        ref = stmt.ref
        known = f" in {int(ref.lo)}..{int(ref.hi)}" if math.isfinite(ref.hi - ref.lo) else ""
        return f"let {name_text(ref.name)}: {ref.dtype}{known} = {stmt.value}"
    if isinstance(stmt, Store):
        index = ", ".join(map(to_text, stmt.index))
        return f"{name_text(stmt.buffer)}[{index}] = {stmt.value}"
    if isinstance(stmt, Alloc):
        return f"{stmt.scope} {_buffer_text(stmt.buffer)}"
    if isinstance(stmt, Barrier):
        return "barrier"
    if isinstance(stmt, Intrin):
        return f"intrin {name_text(stmt.name)}({', '.join(map(to_text, stmt.args))})"
    raise InternalError(f"cannot print {stmt!r}")


# ---------------------------------------------------------------- programs


def print_program(program: Program) -> str:
    """The text of a program: its interface, constants, steps, then the kernels they call."""
    lines = [f"program {sigil_text('@', program.name)}{_where_text(program.all_sizes)} {{"]
    for space, tensors in (("input", program.inputs), ("output", program.outputs)):
        for number, (name, type) in enumerate(tensors):
            notes = _interface_notes(program, (space, number))
            lines.append(f"  {space} {name_text(name)} : {type}{notes}")
    lines += [f"  state {name_text(name)} : {type}" for name, type in program.state]
    lines += [f"  check {c.low} to {c.high} {quote(c.message)}" for c in program.checks]
    lines.append(f"  arena {program.arena_bytes} bound {program.arena_lower_bound}")
    for number, array in enumerate(program.constants):
        type = TensorType(dtypes.of(array.dtype), array.shape)
        lines.append(f"  const {number} : {type} = {contents_text(array)}")
    lines += step_lines(program.steps, "  ")
    for name, kernel in program.kernels.items():
        if name != kernel.name:
            raise InternalError(f"kernel @{kernel.name} is filed as {name!r}")
        lines.append("")
        lines += ["  " + line if line else "" for line in print_kernel(kernel).splitlines()]
    return "\n".join([*lines, "}"]) + "\n"


def _interface_notes(program: Program, key: tuple[str, int]) -> str:
    """How an input or output is quantised, where in the arena it lies, and over which inputs."""
    text = ""
    if key in program.quantisation:
        scale, zero = program.quantisation[key]
        text = f" scale {float(scale)!r} zero {zero}"
    text += f" at {slot_text(program.resident[key])}" if key in program.resident else ""
    over = program.over.get(key[1], ()) if key[0] == "output" else ()
    return text + (f" over {', '.join(map(str, over))}" if over else "")


def program_constants(program: Program) -> dict[str, np.ndarray]:
    """The arrays that `print_program` names by a digest, by that digest."""
    texts = ((contents_text(array), array) for array in program.constants)
    return {text[len("dense<") : -1]: a for text, a in texts if text.startswith("dense<")}
