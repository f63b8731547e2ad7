"""The steps of NAME_run: one call of a function for every layer, between hooks (hooks.py), inside
the loops and branches of the model. Keys of checks are compared once they are computed."""

from __future__ import annotations

from graphc.backends.cfamily.names import comment
from graphc.backends.cfamily.printer import size_values
from graphc.backends.cfamily.spell import storage_type
from graphc.backends.cfamily.steps import StepPrinter
from graphc.backends.micro_c.hooks import results
from graphc.backends.micro_c.model import Constant, Model, node_names
from graphc.errors import InternalError
from graphc.ir.checks import WHOLE
from graphc.ir.dtypes import i64, u64
from graphc.ir.expr import Sym
from graphc.ir.program import AnyStep, Count, Slot, Step, walk
from graphc.ir.types import Dim


def step_lines(model: Model) -> list[str]:
    """The lines of all steps."""
    printer = StepLines(model)
    first, last = model.part
    printer.layer = sum(isinstance(step, Step) for step in walk(model.program.steps[:first]))
    printer.steps(model.program.steps[first:last])
    return printer.lines


class StepLines(StepPrinter):
    """Prints the steps of a bundle; layers are numbered in the order of the text."""

    def __init__(self, model: Model):
        super().__init__()
        self.model, self.layer = model, 0
        self.arrays: dict[str, str] = {}

    def note(self, step: AnyStep) -> None:
        if step.loc:
            self.line(comment(node_names(step)))

    def call(self, step: Step) -> None:
        if not self.model.is_check(step):
            self.layer_of(step)
            return
        self.line(f"#if {self.model.macro}_CHECKS")
        self.layer_of(step)
        for slot in step.slots:
            for key in _keys(self.model, slot):
                self.check(key)
        self.line("#endif")

    def count(self, step: Count) -> None:
        if isinstance(step.size, Sym):
            for text in self.model.sizes.counted(step.size, self.value(step.slot, i64)):
                self.line(text)

    def nbytes(self, count: Dim, size: int) -> str:
        return self.model.sizes.nbytes(count, size)

    def number(self, dim: Dim) -> str:
        text = self.model.sizes.text(dim)
        return text if text.isidentifier() or isinstance(dim, int) else f"({text})"

    def layer_of(self, step: Step) -> None:
        """A call between hooks."""
        model, number = self.model, self.layer
        self.note(step)
        arguments = self.arguments(step)
        self.layer += 1
        self.line(f"{model.macro}_BEGIN({number});")
        self.call_of(model.functions[step.kernel], arguments)
        self.line(f"{model.macro}_END({number});")
        for position, slot in results(model, step):
            size = model.sizes.nbytes(slot.elements, slot.dtype.size)
            told = f"{number}, {slot.dtype}, {arguments[position]}, {size}"
            self.line(f"{model.macro}_RESULT({told});")

    def arguments(self, step: Step) -> list[str]:
        model = self.model
        kernel = model.program.kernels.get(step.kernel)
        if kernel is None or len(kernel.params) != len(step.slots):
            raise InternalError(f"step {step.kernel} does not fit its kernel")
        arguments = [
            self.pointer(slot, storage_type(slot.dtype), buffer.access == "in")
            for buffer, slot in zip(kernel.params, step.slots)
        ]
        sizes = size_values(kernel, step.sizes)
        if sizes in model.size_rows:
            arguments.append(constant_text(model, model.constants[-1], 4 * model.size_rows[sizes]))
        elif sizes:
            arguments.append(self.given(model.sizes.passed(sizes)))
        return arguments

    def given(self, values: str) -> str:
        """The array of the sizes that a kernel gets; those of equal text are one."""
        known = self.arrays.get(values)
        if known is None:
            known = f"sizes{self.layer}"
            self.line(f"const int32_t {known}[] = {{{values}}};")
            if self.depth == 1:
                self.arrays[values] = known
        return known

    def check(self, key: int) -> None:
        """What follows from a key."""
        check, name = self.model.program.checks[key], self.model.name
        value = f"(int64_t)(keys[{key}] + UINT64_C({check.low % WHOLE}))"
        self.line(f"if (keys[{key}] > UINT64_C({check.most})) {{")
        self.line(f"#ifdef {self.model.macro}_REPORT")
        self.line(f"    {name}_report({key}, {value});")
        self.line("#endif")
        self.line(f"    return ({name}_status){self.model.first_check + key};")
        self.line("}")

    def pointer(self, slot: Slot, c_type: str, is_const: bool) -> str:
        const = "const " if is_const else ""
        if slot.space == "arena":
            place = f"memory + {slot.offset}" if slot.offset else "memory"
            return f"({const}{c_type} *)(void *)({place})"
        size = slot.dtype.size
        if slot.offset % size:
            raise InternalError(f"{slot.space} at byte {slot.offset}, no multiple of {size}")
        place = self.element(slot, slot.offset // size)
        if c_type == storage_type(slot.dtype):
            return place
        return f"({const}{c_type} *){f'({place})' if ' + ' in place else place}"

    def element(self, slot: Slot, position: int) -> str:
        """A pointer to an element of what is not in the arena."""
        model = self.model
        if slot.space == "const":
            return constant_text(model, model.constants[slot.index], slot.offset)
        if model.program.is_keys(slot):
            return f"keys + {position}"
        base = model.place((slot.space, slot.index))
        return f"{base} + {position}" if position else base


def _keys(model: Model, slot: Slot) -> range:
    """The numbers of the checks whose keys are at a place."""
    first = slot.offset // u64.size
    return range(first, first + slot.elements) if model.program.is_keys(slot) else range(0)


def constant_text(model: Model, constant: Constant, offset: int) -> str:
    """A pointer into a constant, so many bytes after its start."""
    if model.has_base:
        place = f"{model.macro}_WEIGHTS_ADDRESS + {constant.offset + offset}"
        return f"(const {constant.c_type} *)(const void *)({place})"
    elements = offset // constant.array.dtype.itemsize
    return f"{constant.symbol} + {elements}" if elements else constant.symbol
