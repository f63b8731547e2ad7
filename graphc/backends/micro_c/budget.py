"""The needs of a bundle: flash, RAM, stack, and which layers need most of it.

Constants, arena and tensors are exact. Code and stack are read off the C text, as no compiler is at
hand: an operator of C comes to so many bytes at -O2, by the processor (cpus.py; within a factor of
1.6 on convolutional and dense networks; -O3 takes up to twice as much), and a frame to no more than
its arrays, its variables, all spilled, and what the calling convention saves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from graphc.analysis.memory import arena_use
from graphc.analysis.report import layers
from graphc.analysis.text import nbytes, table
from graphc.backends.micro_c.code_size import operators, without_comments
from graphc.backends.micro_c.model import Model
from graphc.ir.program import Step, nesting, walk

CODE_OF_CALL = 24  # bytes of NAME_run for every step, and for every argument
ARGUMENTS_OF_FLOW = 3  # what a copy, a loop or a branch takes as code, as if it were a call
CODE_OF_CHECKS = 256
LOOP = 16  # bytes of stack: the number of a trip, and that of all
FRAME = 176  # r4-r11, lr, d8-d15, outgoing arguments, and addresses that the compiler makes up
FRAME_OF_VECTORS = 384  # of kernels with vectors: what unrolling makes of them
TOP = 8  # rows of a table

_LOCAL = re.compile(
    r"^ +(?:const )?(float|double|(?:u?int|float)\d+(?:x\d+)?_t|int|mve_pred16_t) (\w+)"
    r"(?:\[(\d+)\])?(?= ?[=;])",
    re.MULTILINE,
)
_VECTORS = re.compile(r"\b(?:u?int|float)\d+x\d+_t\b")
_VECTOR = 16
_SIZES = {"double": 8, "int64_t": 8, "uint64_t": 8}
_NARROW = {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2}


@dataclass(frozen=True)
class Function:
    """A function of NAME.c: its bound of stack and estimate of code in bytes, and its arrays."""

    name: str
    stack: int
    code: int
    arrays: int


@dataclass(frozen=True)
class Budget:
    """The needs of a model in bytes; `compiled` are those of its code if they are known."""

    model: Model
    functions: dict[str, Function]
    compiled: int | None = None

    @classmethod
    def of(cls, model: Model, compiled: int | None = None) -> Budget:
        """Reads them off the text; `functions` is by kernel."""
        functions = {kernel: _function(model.functions[kernel], text, model.cpu.operator_bytes)
                 for kernel, text in model.texts.items()}  # fmt: skip
        return cls(model, functions, compiled)

    @cached_property
    def code(self) -> int:
        if self.compiled is not None:
            return self.compiled
        kernels = sum(map(operators, self.model.texts.values()))
        helpers = _bytes(operators(self.model.code()) - kernels, self.model.cpu.operator_bytes)
        program = self.model.program
        calls = sum(1 + len(step.slots) for step in program.calls)
        calls += sum(ARGUMENTS_OF_FLOW for s in walk(program.steps) if not isinstance(s, Step))
        functions = sum(f.code for f in self.functions.values())
        return functions + helpers + CODE_OF_CALL * calls // 2 + CODE_OF_CHECKS

    @cached_property
    def run_stack(self) -> int:
        """Bytes of the frame of NAME_run."""
        widest = max((len(s.slots) for s in self.model.program.calls), default=0)
        kept = len(self.model.inputs) + len(self.model.outputs) + len(self.model.state)
        program = self.model.program
        passed = {step.sizes for step in program.calls if program.all_sizes}
        sizes = sum(map(len, passed), len(program.all_sizes))
        return FRAME + 4 * (widest + kept + sizes) + LOOP * nesting(program.steps)

    @cached_property
    def stack(self) -> int:
        """Bytes of stack that NAME_run takes with everything it calls, without libm."""
        return self.run_stack + max((f.stack for f in self.functions.values()), default=0)

    @property
    def io(self) -> int:
        """Bytes of inputs and outputs that the caller keeps."""
        model = self.model
        inputs = [] if model.pushed else model.inputs
        tensors = [] if model.resident else [*inputs, *model.outputs]
        tensors += [t for t in (model.target, model.loss) if t is not None]
        return sum(t.nbytes for t in tensors)

    @property
    def state(self) -> int:
        """Bytes of what lasts between runs."""
        return sum(t.nbytes for t in self.model.state)

    @property
    def ram(self) -> int:
        return self.model.program.arena_bytes + self.state + self.stack + self.io

    @property
    def flash(self) -> int:
        return self.model.weight_bytes + self.code

    # ------------------------------------------------------------ tables

    def ram_table(self) -> str:
        """The steps in which most memory is live."""
        program = self.model.program
        live = arena_use(program).live
        rows = [("RAM by layer", "function", "arena live", "stack")]
        for n in sorted(range(len(program.calls)), key=lambda n: (-live[n], n))[:TOP]:
            step = program.calls[n]
            function = self.functions[step.kernel]
            rows.append((layers(step.loc), function.name, nbytes(live[n]), nbytes(function.stack)))
        state = f"state {nbytes(self.state)}, " if self.state else ""
        total = (f"arena {nbytes(program.arena_bytes)}, {state}stack {nbytes(self.stack)}, "
                 f"inputs and outputs {nbytes(self.io)}: {nbytes(self.ram)}")  # fmt: skip
        return f"{table(rows, left=2)}\n{total}"

    def flash_table(self) -> str:
        """The layers with most constants and code; shared code counts for its first."""
        costs, seen = [], set()
        for n, step in enumerate(self.model.program.calls):
            code = 0 if step.kernel in seen else self.functions[step.kernel].code
            seen.add(step.kernel)
            costs.append((weights_of(step), code, n))
        rows = [("flash by layer", "function", "constants", "code (estimated)")]
        for weights, code, n in sorted(costs, key=lambda c: (-c[0] - c[1], c[2]))[:TOP]:
            step = self.model.program.calls[n]
            name = self.functions[step.kernel].name
            rows.append((layers(step.loc), name, nbytes(weights), nbytes(code)))
        about = "about " if self.compiled is None else ""
        total = (f"constants {nbytes(self.model.weight_bytes)}, code {about}{nbytes(self.code)}: "
                 f"{nbytes(self.flash)}")  # fmt: skip
        return f"{table(rows, left=2)}\n{total}"


def weights_of(step: Step) -> int:
    """Bytes of the constants that a step reads."""
    return sum(s.elements * s.dtype.size for s in step.slots if s.space == "const")


def _bytes(count: int, size: float) -> int:
    """So many operators as code, of whole halfwords."""
    return round(count * size / 2) * 2


def _function(name: str, text: str, operator_bytes: float) -> Function:
    plain = without_comments(text)
    arrays, variables = _locals(plain)
    frame = FRAME + (FRAME_OF_VECTORS if _VECTORS.search(plain) else 0)
    code = _bytes(operators(text), operator_bytes)
    return Function(name, frame + arrays + variables, code, arrays)


def _locals(text: str) -> tuple[int, int]:
    """Bytes of all arrays of a function, and of the variables that are in scope at once."""
    arrays = most = 0
    open_blocks = [0]
    for line in text.splitlines():
        declared = _LOCAL.match(line)
        if declared and declared[3]:
            arrays += -(-int(declared[3]) * _size(declared[1], _NARROW) // 8) * 8
        elif declared:
            open_blocks[-1] += _size(declared[1], {})
        most = max(most, sum(open_blocks))
        if line.strip().startswith("}") and len(open_blocks) > 1:
            open_blocks.pop()
        if line.endswith("{"):
            open_blocks.append(8 if "for (" in line else 0)
    return arrays, most


def _size(type: str, narrow: dict[str, int]) -> int:
    """Bytes of a C type; integers below a word take a word unless `narrow` tells otherwise."""
    return _VECTOR if "x" in type.removesuffix("_t") else {**_SIZES, **narrow}.get(type, 4)
