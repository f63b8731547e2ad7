"""Device functions put in the place of their calls."""

from __future__ import annotations

from dataclasses import replace

from graphc.backends.cuda.ptx.text import (
    Address,
    BoxAddress,
    Function,
    Immediate,
    Instruction,
    Module,
    Negated,
    Operand,
    PtxError,
    Register,
    Symbol,
    Vector,
)

DEEPEST = 16  # calls within calls


def without_calls(module: Module, name: str) -> Function:
    """A kernel whose calls are replaced by what they call, with parameters in registers."""
    whole = module.function(name)
    made = Function(
        name,
        whole.parameters,
        [],
        whole.threads,
        whole.cluster,
        list(whole.variables),
        list(whole.registers),
    )
    _Inliner(module, made).add(whole, {}, "", "", 0)
    return made


class _Inliner:
    def __init__(self, module: Module, made: Function):
        self.module, self.made = module, made
        self.calls = 0

    def add(
        self, function: Function, given: dict[str, Register], prefix: str, end: str, depth: int
    ) -> None:
        """Appends the instructions of a function; parameters are `given` registers."""
        if depth > DEEPEST:
            raise PtxError(f"calls of {function.name} go deeper than {DEEPEST}; is it recursive?")
        registers = {r.number: r for r in function.registers}
        if prefix:
            self.made.variables += [replace(v, name=prefix + v.name) for v in function.variables]
            registers = {n: self._register(r) for n, r in registers.items()}
        names = {v.name: prefix + v.name for v in function.variables}
        rename = _Renaming(registers, given, names)
        places: dict[int, list[str]] = {}
        for label, place in function.labels.items():
            places.setdefault(place, []).append(prefix + label)
        for number, instruction in enumerate(function.instructions):
            self._label(places.get(number, ()))
            base = instruction.opcode.split(".")[0]
            if base == "call":
                self._call(instruction, rename, depth)
            elif prefix and base == "ret":
                self._append(replace(instruction, opcode="bra", operands=(Symbol(end),)), rename)
            elif base in ("bra", "brx"):
                target = instruction.operands[-1]
                if isinstance(target, Symbol):
                    instruction = replace(instruction, operands=(Symbol(prefix + target.name),))
                self._append(instruction, rename)
            else:
                self._append(instruction, rename)
        self._label(places.get(len(function.instructions), ()))

    def _label(self, names: list[str] | tuple[str, ...]) -> None:
        for name in names:
            self.made.labels[name] = len(self.made.instructions)

    def _append(self, instruction: Instruction, rename: _Renaming) -> None:
        operands = tuple(map(rename, instruction.operands))
        guard = None if instruction.guard is None else rename.registers[instruction.guard.number]
        self.made.instructions.append(replace(instruction, operands=operands, guard=guard))

    def _register(self, like: Register) -> Register:
        made = Register(like.name, like.type, len(self.made.registers))
        self.made.registers.append(made)
        return made

    def _call(self, call: Instruction, rename: _Renaming, depth: int) -> None:
        operands = list(map(rename, call.operands))
        first, *rest = operands
        results = first.parts if isinstance(first, Vector) else ()
        callee = rest.pop(0) if isinstance(first, Vector) else first
        arguments = rest[0].parts if rest and isinstance(rest[0], Vector) else ()
        if not isinstance(callee, Symbol) or callee.name not in self.module.heads:
            raise PtxError(
                f"line {call.line}: the machine does not know the function of {call.text!r}"
            )
        if call.guard is not None:
            raise PtxError(f"line {call.line}: the machine does not know calls under a guard")
        function = self.module.function(callee.name)
        given = {}
        for (name, _), register in zip(
            [*function.parameters, *function.results], [*arguments, *results]
        ):
            if not isinstance(register, Register):
                raise PtxError(f"line {call.line}: an argument of {call.text!r} is no parameter")
            given[name] = register
        self.calls += 1
        prefix = f"{callee.name}.{self.calls}."
        self.add(function, given, prefix, f"{prefix}end", depth + 1)
        self._label((f"{prefix}end",))


class _Renaming:
    """Operands of a function as those of what it is put into."""

    def __init__(
        self, registers: dict[int, Register], given: dict[str, Register], names: dict[str, str]
    ):
        self.registers, self.given, self.names = registers, given, names

    def __call__(self, operand: Operand) -> Operand:
        if isinstance(operand, Register):
            return self.registers[operand.number]
        if isinstance(operand, Negated):
            return Negated(self.registers[operand.register.number])
        if isinstance(operand, Vector):
            return Vector(tuple(map(self, operand.parts)))
        if isinstance(operand, BoxAddress):
            base, at = self(operand.base), self(operand.at)
            assert isinstance(base, Register | Symbol) and isinstance(at, Vector)
            return BoxAddress(base, at)
        if isinstance(operand, Address) and not isinstance(operand.base, Immediate):
            base = self(operand.base)
            assert isinstance(base, Register | Symbol)
            return Address(base, operand.offset)
        if isinstance(operand, Symbol):
            return self.given.get(operand.name) or Symbol(
                self.names.get(operand.name, operand.name)
            )
        return operand
