"""What all files of a bundle share: names, tensors, and the kernels made ready to print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap

import numpy as np

from graphc.backends.cfamily.names import identifier
from graphc.backends.cfamily.printer import Dialect, Unit, size_values
from graphc.backends.cfamily.spell import storage_type
from graphc.backends.micro_c.cpus import CPUS, DEFAULT, Cpu
from graphc.backends.micro_c.intrinsics import MicroUnit, with_instructions
from graphc.backends.micro_c.joined import Training
from graphc.backends.micro_c.libm import OwnSpeller, check_no_calls
from graphc.backends.micro_c.sizes import Sizes
from graphc.backends.micro_c.vectors import with_vectors
from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.checks import VALUE
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Sym
from graphc.ir.kernel import Kernel, map_body
from graphc.ir.program import AnyStep, Program, Quantisation, Slot, Step, bodies
from graphc.ir.scalar.functions import POLYNOMIALS, expand_math, round_f32, sign_as_select
from graphc.ir.types import TensorType, at, largest
from graphc.passes.kernel.strength_reduction import sum_offsets

FUNCTIONS = {**POLYNOMIALS, "round": round_f32}  # what else would be calls of libm
DIALECT = Dialect(index=dtypes.i32)
ARENA_ALIGNMENT = 16
CONSTANT_ALIGNMENT = 16  # in NAME_weights.bin
LAYER_NAME_LENGTH = 40
COMMENT_WIDTH = 96
FIRST_CHECK = 4  # the first status that is not that of every model
FIELD_NAME_LENGTH = 63  # what C99 tells apart
WORDS = (
    "run", "run_static", "status", "status_string", "inputs", "outputs", "profile", "trace",
    "summary", "layers", "crc32", "apart", "weights", "input_ptr", "output_ptr", "no_constants",
    "report", "sizes", "within", "counted", "assert_byte", "assert_int", "assert_float",
    "assert_negative", "assert_double", "state", "reset", "train_init",
    "train_step", "rows", "start_rows", "push_rows", "take",
)  # fmt: skip
MACROS = (
    "H", "OK", "NULL_POINTER", "MISALIGNED", "OVERLAP", "KERNEL", "ALIGNED", "SECTION",
    "STATIC_ARENA", "ARENA_SIZE", "ARENA_ALIGN", "LAYERS", "PROFILE", "TRACE", "SUMMARY", "BEGIN",
    "CHECKS", "REPORT", "SIZE_T", "SIZE_OUT_OF_BOUNDS", "OUT_OF_RANGE", "END", "CRC", "RANGE",
    "RESULT", "WEIGHTS", "WEIGHTS_SIZE", "WEIGHTS_ALIGN", "WEIGHTS_ADDRESS",
    "RUN_LAYERS", "STATE_SIZE", "STATE_ALIGN", "ROWS", "ROW_BYTES", "MORE_ROWS", "WRONG_ROWS",
)  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """An input or output: the user's name, the field that holds its pointer, its type, and `key`,
    ("input", "output" or "state", number)."""

    name: str
    field: str
    type: TensorType
    key: tuple[str, int]
    quantisation: Quantisation | None = None

    @property
    def elements(self) -> int:
        """At the largest sizes."""
        return self.type.most

    @property
    def nbytes(self) -> int:
        """At the largest sizes."""
        return self.elements * self.type.dtype.size

    @property
    def c_type(self) -> str:
        return storage_type(self.type.dtype)

    @property
    def shape_text(self) -> str:
        return f"{self.type.dtype}[{','.join(map(str, self.type.dims))}]"


@dataclass(frozen=True)
class Constant:
    """A constant: its symbol, its contents, and its place in NAME_weights.bin in bytes."""

    symbol: str
    array: np.ndarray
    offset: int = 0

    @property
    def c_type(self) -> str:
        return storage_type(dtypes.of(self.array.dtype))


@dataclass
class Model:
    """A program with the names its C text uses.

    `functions` gives each kernel's C function and `texts` its text, `storage` how constants are
    stored (c, incbin or bin), `small` whether it is made for size, `cpu` the processor, and
    `resident` where inputs and outputs lie if in the arena. The sizes that steps give their kernels
    are rows of the last constant, which begin at `size_rows`. `state` lasts from one run to the
    next. With `training`, NAME_run is a `part` of the steps, from the first number to before the
    second; `target` and `loss` are those of a training step. `pushed`: the image comes in pieces
    (pushed_rows.py), and takes no RAM of the caller's.

    `arguments` are what a function is given that must not be null, and `places` where inputs and
    outputs lie that have no field, by key.
    """

    name: str
    program: Program
    inputs: list[Tensor]
    outputs: list[Tensor]
    constants: list[Constant]
    unit: Unit
    sizes: Sizes
    storage: str = "c"
    small: bool = False
    cpu: Cpu = CPUS[DEFAULT]
    size_rows: dict[tuple[int, ...], int] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    state: list[Tensor] = field(default_factory=list)
    training: Training | None = None
    target: Tensor | None = None
    loss: Tensor | None = None
    part: tuple[int, int | None] = (0, None)
    pushed: bool = False
    arguments: tuple[str, ...] = ("inputs", "outputs")
    places: dict[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        program: Program,
        name: str,
        libm: bool | None = None,
        storage: str = "c",
        small: bool = False,
        cpu: Cpu = CPUS[DEFAULT],
        training: Training | None = None,
        pushed: bool = False,
    ) -> Model:
        """Names everything and prints the kernels; UnsupportedError if C lacks something.

        `libm`: call it for everything (True), for nothing (False), or for what has no polynomial.
        """
        dialect = replace(DIALECT, function=f"static {name.upper()}_KERNEL void")
        unit = MicroUnit(dialect, as_written=cpu.few_registers)
        if libm is False:
            unit.speller = OwnSpeller(unit.dialect.index)
        model = cls(
            name, program, _tensors(program.inputs, "input", program),
            _tensors(program.own_outputs, "output", program),
            _constants(program, name), unit, _sizes(program, name, unit), storage, small, cpu,
            size_rows(program), state=_tensors(program.state, "state", program),
            pushed=pushed,
        )  # fmt: skip
        if training is not None:
            model._train(training)
        taken = set(model.symbols())
        layers, comments = layer_names(program), kernel_comments(program)
        for kernel in program.kernels.values():
            own = identifier(f"{name}_{layers[kernel.name]}", taken)
            ready = replace(kernel, name=own, comment=comments[kernel.name])
            taken.add(ready.name)
            model.functions[kernel.name] = unit.kernel(_prepared(ready, bool(libm)))
            model.texts[kernel.name] = unit.functions[-1]
            if program.checks and model.only_checks(kernel.name):
                unit.functions[-1] = f"#if {model.macro}_CHECKS\n{unit.functions[-1]}#endif\n"
        if libm is False:
            check_no_calls(model.code())
        return model

    def _train(self, training: Training) -> None:
        """Makes NAME_run the inference of a program that also trains."""
        self.training, self.part = training, (0, training.steps)
        self.target, self.loss = self.inputs[training.inputs], self.outputs[training.outputs]
        self.inputs = self.inputs[: training.inputs]
        self.outputs = self.outputs[: training.outputs]

    def code(self) -> str:
        """The functions of the kernels, and what they need."""
        own = self.unit.speller.text() if isinstance(self.unit.speller, OwnSpeller) else ""
        return own + self.unit.text()

    def state_of(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """The state in these bytes, by name."""
        parts, start = {}, 0
        for t in self.state:
            part = memory[start : start + t.nbytes].view(t.type.dtype.np)
            parts[t.name] = part.reshape(t.type.static_shape)
            start += t.nbytes
        return parts

    def place(self, key: tuple[str, int]) -> str:
        """The C text of a pointer to an input, an output or a part of the state."""
        side, number = key
        if key in self.places:
            return self.places[key]
        if side == "state":
            return f"state->{self.state[number].field}"
        tensors = self.inputs if side == "input" else self.outputs
        return f"{side}s->{tensors[number].field}"

    @property
    def macro(self) -> str:
        return self.name.upper()

    @property
    def state_parameter(self) -> str:
        """The state as a parameter of NAME_run, which replaces what is no training's; empty if
        there is none."""
        const = "" if self.training is None else "const "
        return f"{const}{self.name}_state *state" if self.state else ""

    @property
    def resident(self) -> dict[tuple[str, int], Slot]:
        return self.program.resident

    @property
    def checks(self) -> list[str]:
        """What each check of the program finds wrong, in a sentence without the value."""
        return [c.message.replace(f" {VALUE}", "") for c in self.program.checks]

    @property
    def has_flow(self) -> bool:
        """Whether there are loops or branches."""
        return any(bodies(step) for step in self.program.steps)

    @property
    def first_check(self) -> int:
        """The status of a run whose first check fails; those of others follow."""
        return FIRST_CHECK + bool(self.sizes)

    def nbytes(self, tensor: Tensor, counted: bool = False) -> str:
        """The C text of a tensor's bytes in a run: of the most that there can be at the sizes of
        the caller, as long as those that data decides are not `counted`."""
        count = tensor.type.count
        if not counted:
            count = at(count, {size: Const(largest(size), i64) for size in self.sizes.counts})
        return self.sizes.nbytes(count, tensor.type.dtype.size)

    def is_check(self, step: Step) -> bool:
        """Whether a step computes nothing but keys of checks."""
        params = self.program.kernels[step.kernel].params
        return bool(self.program.checks) and all(
            self.program.is_keys(slot)
            for buffer, slot in zip(params, step.slots) if buffer.access != "in"
        )  # fmt: skip

    def only_checks(self, kernel: str) -> bool:
        """Whether a kernel is called for checks only."""
        return all(self.is_check(step) for step in self.program.calls if step.kernel == kernel)

    @property
    def sources(self) -> list[str]:
        """The files to compile."""
        assembled = [f"{self.name}_weights.S"] if self.storage == "incbin" else []
        in_c = [] if self.has_base else [f"{self.name}_weights.c"]
        return [f"{self.name}.c", *in_c, *(assembled if self.has_base else [])]

    @property
    def has_base(self) -> bool:
        """Whether constants are read relative to NAME_WEIGHTS_ADDRESS."""
        return self.storage != "c" and bool(self.constants)

    @property
    def weight_bytes(self) -> int:
        if self.has_base:
            last = self.constants[-1]
            return last.offset + last.array.nbytes
        return sum(c.array.nbytes for c in self.constants)

    def sides(self) -> Iterator[tuple[str, str, list[Tensor], str]]:
        """(name of the structure, prefix of variables, tensors, qualifier) of either side."""
        yield "inputs", "in", self.inputs, "const "
        yield "outputs", "out", self.outputs, ""

    def symbols(self) -> Iterator[str]:
        """What is declared besides the kernels."""
        yield from (f"{self.name}_{word}" for word in WORDS)
        yield from (f"{self.macro}_{word}" for word in MACROS)
        for side, short, tensors, _ in self.sides():
            yield from (f"{self.name}_{side[:-1]}_ptr_{t.field}" for t in tensors)
            yield from (f"{self.name}_assert_{short}_{t.field}" for t in tensors)
        yield from (f"{self.name}_output_shape_{number}" for number in range(len(self.outputs)))
        yield from (f"{self.name}_summary_{dtype}" for dtype in dtypes.BY_NAME)
        yield from (constant.symbol for constant in self.constants)


def _constants(program: Program, name: str) -> list[Constant]:
    constants, offset = [], 0
    named = [(f"{name}_w{number}", array) for number, array in enumerate(program.constants)]
    rows = size_rows(program)
    if rows:
        symbol = (
            f"{name}_{'size_rows' if program.all_sizes else 'sizes'}"  # what NAME.h leaves free
        )
        named.append((symbol, np.array([n for row in rows for n in row], np.int32)))
    for symbol, array in named:
        constants.append(Constant(symbol, array, offset))
        offset += -(-max(array.nbytes, 1) // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT
    return constants


def _sizes(program: Program, name: str, unit: Unit) -> Sizes:
    fields: dict[Sym, str] = {}
    for symbol in program.all_sizes:
        fields[symbol] = field_name(symbol.name, list(fields.values()))
    return Sizes(name, fields, unit.speller.needed, program.counts)


def size_rows(program: Program) -> dict[tuple[int, ...], int]:
    """Where the sizes that a step passes on begin among those of all steps; equal ones are one.
    Those that depend on the sizes of a run have no row."""
    rows: dict[tuple[int, ...], int] = {}
    for step in program.calls:
        row = size_values(program.kernels[step.kernel], step.sizes)
        if row and all(isinstance(value, int) for value in row):
            rows.setdefault(row, sum(map(len, rows)))
    return rows


def _tensors(named: Sequence[tuple[str, TensorType]], side: str, program: Program) -> list[Tensor]:
    taken: list[str] = []
    tensors = []
    for number, (name, type) in enumerate(named):
        if type.dtype.kind in ("string", "complex"):
            raise UnsupportedError(f"{name!r}: C has no elements of type {type.dtype}")
        wish = name.split(";")[0] if side == "state" else name  # of what converters join the first
        taken.append(field_name(wish, taken))
        key = side, number
        tensors.append(Tensor(name, taken[-1], type, key, program.quantisation.get(key)))
    return tensors


def _prepared(kernel: Kernel, libm: bool) -> Kernel:
    """The kernel with polynomials for functions of libm; C has helpers for the rest."""
    if not libm:
        body = map_body(kernel.body, lambda e: expand_math(sign_as_select(e), FUNCTIONS))
        kernel = replace(kernel, body=body)
    return with_instructions(with_vectors(sum_offsets(kernel)))


def layer_names(program: Program) -> dict[str, str]:
    """For every kernel a name after the first layer that it computes, or after the kernel."""
    names: dict[str, str] = {}
    for step in program.calls:
        if step.kernel not in names:
            names[step.kernel] = layer_name(step.loc[0]) if step.loc else step.kernel
    return {name: names.get(name, name) for name in program.kernels}


def kernel_comments(program: Program) -> dict[str, str]:
    """For every kernel what it computes, the layers that call it, and what the first is called."""
    steps: dict[str, list[int]] = {}
    for number, step in enumerate(program.calls):
        steps.setdefault(step.kernel, []).append(number)
    comments = {}
    for name, kernel in program.kernels.items():
        lines, callers = [kernel.comment] if kernel.comment else [], steps.get(name, [])
        if callers:
            numbers = f"layer{'s' if len(callers) > 1 else ''} {', '.join(map(str, callers))}"
            lines.append(f"{numbers}: {node_names(program.calls[callers[0]])}".rstrip(": "))
        comments[name] = "\n".join(line for text in lines for line in wrap(text, COMMENT_WIDTH))
    return comments


def node_names(step: AnyStep) -> str:
    """The ONNX nodes that a step computes; of a list of names, which converters make, the first."""
    parts = (loc.partition(";") for loc in step.loc)
    return ", ".join(dict.fromkeys(first + (";..." if rest else "") for first, rest, _ in parts))


def layer_name(loc: str) -> str:
    """An identifier like the name of an ONNX node; of a list of names the first."""
    return _plain(loc.split(";")[0], LAYER_NAME_LENGTH) or "layer"


def field_name(name: str, taken: Sequence[str] = ()) -> str:
    """The field of an input or output: its name as far as C allows it.

    Names without small letters are those of macros, in the headers of vendors too: they get small
    ones, unless they are a single letter, of which only `I` (of complex.h) is a macro.
    """
    plain = name if re.fullmatch(r"\w+", name, re.ASCII) else _plain(name, FIELD_NAME_LENGTH)
    plain = plain[-FIELD_NAME_LENGTH:]
    if plain == plain.upper() and (len(plain) > 1 or plain == "I"):
        plain = plain.lower()
    return identifier(plain or "tensor", taken)


def _plain(name: str, length: int) -> str:
    """The end of a name, of letters, digits and single underscores; whole words if they fit."""
    plain = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]", "_", name)).strip("_")
    if len(plain) <= length:
        return plain
    _, _, words = plain[-length - 1 :].partition("_")
    return words or plain[-length:]
