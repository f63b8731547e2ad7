"""Expressions to LLVM IR text, scalar or in lanes.

Inside a vector loop over `v`, an expression that does not depend on `v` stays scalar and is splat
where a vector is needed; a load whose offset moves by 1 with `v` is a vector load, by 0 a scalar
load; if lanes are at known distances, it is a few vectors that are shuffled; else a gather.
`select` is lazy in its loads: a load that is not provably in bounds becomes a masked load under the
conditions of the selects around it (scalar: the offset is clamped to 0).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from graphc.backends.llvm_cpu import emit_relaxed, emit_wide, spell
from graphc.backends.llvm_cpu.emit_scalar import ScalarEmitter
from graphc.backends.llvm_cpu.registers import Elements, Registers, StaysInMemory
from graphc.backends.llvm_cpu.spell import Typed
from graphc.errors import InternalError
from graphc.ir.addresses import start_and_stride
from graphc.ir.dtypes import DType, boolean, i64, u8
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    Sym,
    called,
    free_indices,
    substitute,
    walk,
)
from graphc.ir.extents import is_below
from graphc.ir.known_lanes import KnownLanes, known_lanes
from graphc.ir.simplify import from_poly, simplify, to_poly
from graphc.ir.types import Dim
from graphc.records import dataclass


@dataclass
class Storage:
    """Where a buffer lives. `lanes` > 1: a private copy per lane, elements are vectors. A local
    array `in_registers` has whole vectors; its elements are SSA names if it has `registers`."""

    pointer: str
    dtype: DType
    elements: Dim
    local: bool = False
    lanes: int = 1
    in_registers: bool = False
    registers: Registers | None = None


REPLACED = ("vector", "lanes", "active", "is_stale")
CHANGED = ("storage", "names", "kept", "loaded", "masks", "from_registers")
"""Fields of an emitter that hold another value as it goes on, and those whose value changes."""


@dataclass
class Known:
    """What an emitter knows between two statements: its fields of these names, how many
    instructions it has `numbered`, and the elements of arrays in registers."""

    fields: dict[str, Any]
    numbered: int
    elements: list[tuple[Registers, Elements]]


@dataclass
class ExprEmitter(ScalarEmitter):
    """Emits into `line`; `fresh` makes names. The kernel emitter owns scopes and loops."""

    storage: dict[str, Storage]
    names: dict[Expr, Typed] = field(default_factory=dict)  # Index and Ref values
    vector: Index | None = None
    lanes: int = 1
    masks: list[Typed | None] = field(default_factory=lambda: [None])
    kept: dict[Expr, Typed] = field(default_factory=dict)  # values that no store changes
    from_registers: set[Expr] = field(default_factory=set)  # values that any store may change
    active: Typed | None = None  # the lanes that do something, if not all do
    bound: dict[Expr, list[Expr]] = field(default_factory=dict)  # what in it may be in lanes
    strides: dict[tuple[Expr, Index], tuple[Expr, int] | None] = field(default_factory=dict)
    unsafe: dict[Expr, bool] = field(default_factory=dict)
    always: dict[Expr, frozenset[Expr]] = field(default_factory=dict)
    named: dict[Expr, tuple[Expr | None, Expr]] = field(default_factory=dict)
    is_open: bool = False  # whether sizes are known at run time only

    # ---------------------------------------------------------------- entry points

    def next_statement(self) -> None:
        """Forgets values that the statement before may have changed."""
        if self.is_stale:
            self.memo, self.masks = [dict(self.kept)], [None]
            self.is_stale = False
        else:
            for node in self.from_registers:
                self.memo[0].pop(node, None)
        self.from_registers.clear()

    def declare_array(self, name: str, storage: Storage) -> None:
        """Says where a local array lives from now on."""
        self.storage[name] = storage
        self.unsafe.clear()  # which is told by the sizes of arrays
        self.always.clear()

    def known(self) -> Known:
        """What is known between two statements, for `restore` within the same block."""
        fields = {name: getattr(self, name) for name in REPLACED}
        fields |= {name: getattr(self, name).copy() for name in CHANGED}
        fields["memo"] = [self.memo[0].copy()]
        arrays = [s.registers for s in self.storage.values() if s.registers is not None]
        return Known(fields, len(self.numbered), [(x, x.elements()) for x in arrays])

    def restore(self, known: Known) -> None:
        """Forgets all that was emitted since this was known, which is taken back."""
        for name, value in known.fields.items():
            setattr(self, name, value)
        while len(self.numbered) > known.numbered:
            self.numbered.popitem()
        for registers, elements in known.elements:
            registers.restore(elements)

    def enter_lanes(self, vector: Index, lanes: int, end: Typed) -> None:
        """What follows is in lanes of a vector, of which only those below `end` do something."""
        self.vector, self.lanes = vector, lanes
        iota, limit = self._iota(), self.splat(end, lanes)
        self.active = self.op(f"icmp slt {iota.type} {iota.text}, {limit.text}", boolean, lanes)
        self.forget()

    def leave_lanes(self) -> None:
        """What follows is scalar again."""
        self.vector, self.lanes, self.active = None, 1, None
        self.forget()

    def value(self, node: Expr) -> Typed:
        """The value of an expression, computed once. One that reads nothing under a condition is
        the same under every mask, so that all branches share it."""
        for frame in self.memo:
            if node in frame:
                return frame[node]
        if self.is_guarded(node) and self.is_unsafe(node):
            return self._keep(self.memo[-1], node)
        memo, masks = self.memo, self.masks
        self.memo, self.masks = memo[:1], [None]
        for part in self._pending(node):
            self._keep(memo[0], part)
        self.memo, self.masks = memo, masks
        return memo[0][node]

    def _keep(self, frame: dict[Expr, Typed], node: Expr) -> Typed:
        """Emits an expression, and notes its value in a frame."""
        result = frame[node] = self._emit(node)
        is_register = isinstance(node, Load) and self.storage[node.source].registers is not None
        if is_register or not self.from_registers.isdisjoint(node.children):
            self.from_registers.add(node)
        return result

    def _pending(self, root: Expr) -> list[Expr]:
        """The parts of an expression still to be computed, operands first; loads are one part,
        and so is what takes even and odd lanes apart."""
        done, order = self.memo[0], []
        seen: set[Expr] = set()
        stack: list[Any] = [root]
        while stack:
            node = stack.pop()
            if node is None:  # all operands of the node that lies under this mark are in the order
                order.append(stack.pop())
            elif node not in seen and node not in done:
                seen.add(node)
                if isinstance(node, Call) and not emit_wide.is_by_even_and_odd(self, node):
                    stack += (node, None, *node.args[::-1])
                else:
                    order.append(node)
        return order

    def is_guarded(self, node: Expr) -> bool:
        """Whether a part of an expression is evaluated under a condition: otherwise it does not
        matter what is in bounds, which takes time to prove."""
        return len(self.masks) > 1 or "select" in called(node)

    def is_unsafe(self, node: Expr) -> bool:
        """Whether an expression has a load that is not provably in bounds."""
        known = self.unsafe
        unsafe = known.get(node)
        if unsafe is not None:
            return unsafe
        for part in walk(node, known):
            inner = any([known[c] for c in part.children])
            known[part] = inner or isinstance(part, Load) and self._may_miss(part)
        return known[node]

    def _may_miss(self, node: Load) -> bool:
        """Whether a load may be out of bounds, for all that is known."""
        return not is_below(self._offset(node), self.storage[node.source].elements)

    def depends(self, node: Expr) -> bool:
        """Whether a value differs between lanes."""
        if self.vector is None:
            return False
        if self.vector in free_indices(node):
            return True
        parts = self.bound.get(node)
        if parts is None:
            parts = self.bound[node] = [x for x in walk(node) if isinstance(x, (Ref, Load))]
        for part in parts:
            if isinstance(part, Ref) and self.names[part].lanes > 1:
                return True
            if isinstance(part, Load) and self.storage[part.source].lanes > 1:
                return True
        return False

    def _emit(self, node: Expr) -> Typed:
        if isinstance(node, Const):
            return Typed(spell.literal(node.value, node.dtype), node.dtype)
        if node is self.vector:
            return self._iota()
        if isinstance(node, (Index, Ref, Sym)):
            return self.names[node]
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, Call):
            return self._call(node)
        raise InternalError(f"cannot emit `{node}`")

    def needed(self, node: Expr) -> frozenset[Expr]:
        """The unsafe parts of an expression that are evaluated whichever way its selects go."""
        if not self.is_unsafe(node):
            return frozenset()
        always = self.always.get(node)
        if always is None:
            if isinstance(node, Call) and node.op.name == "select":
                condition, then, other = map(self.needed, node.args)
                always = condition | (then & other) | {node}
            else:
                always = frozenset((node,)).union(*map(self.needed, node.children))
            self.always[node] = always
        return always

    def _iota(self) -> Typed:
        items = ", ".join(f"i64 {n}" for n in range(self.lanes))
        return Typed(f"<{items}>", i64, self.lanes)

    # ---------------------------------------------------------------- memory

    def address(self, storage: Storage, offset: Expr) -> tuple[str, int | None]:
        """A pointer to the first lane and the stride in the lanes (None: not affine)."""
        name, moving = self.named_part(offset)
        if name is not None and storage.registers is None and storage.lanes == 1:
            first, stride = self.first_lane(moving)
            if first is not None:
                return self._pointer_from(storage, self.value(name), first), stride
        first, stride = self.first_lane(offset)
        return storage.pointer if first is None else self.element_pointer(storage, first), stride

    def named_part(self, offset: Expr) -> tuple[Expr | None, Expr]:
        """A name that is added to an offset, as where a row begins, and the rest. A pointer to the
        former is computed before loops, whose rows then share an index. None if there is no such
        name, or sizes are known."""
        if not self.is_open:
            return None, offset
        if offset not in self.named:
            poly = to_poly(offset)
            names = [k for k, c in poly.items() if c == 1 and len(k) == 1 and type(k[0]) is Ref]
            rest = {k: c for k, c in poly.items() if k not in names}
            is_both = len(names) == 1 and any(rest) and self.value(names[0][0]).lanes == 1
            self.named[offset] = (names[0][0], from_poly(rest)) if is_both else (None, offset)
        return self.named[offset]

    def first_lane(self, offset: Expr) -> tuple[Typed | None, int | None]:
        """The offset of the first lane and the stride in the lanes (None, None: not affine)."""
        stride: int | None = 0
        if self.depends(offset):
            assert self.vector is not None
            key = offset, self.vector
            if key not in self.strides:
                self.strides[key] = start_and_stride(offset, self.vector)
            parts = self.strides[key]
            stride = None
            if parts is not None and not self.depends(parts[0]):
                offset, stride = parts
        if stride is None:
            return None, None
        first = self.value(offset)
        if first.lanes > 1:  # equal in all lanes, but read under a mask that is not
            return None, None
        return first, stride

    def register(self, storage: Storage, offset: Expr) -> tuple[int | None, int]:
        """The place of an element of an array in registers (None: not known), and its width."""
        if storage.lanes > 1:
            first = self.value(offset)
            return int(first.text) if first.text.isdecimal() else None, 1
        start, stride = self.first_lane(offset)
        is_known = start is not None and start.text.isdecimal() and stride in (0, 1)
        width = self.lanes if stride == 1 else 1
        return int(start.text) if is_known and start is not None else None, width

    def element_pointer(self, storage: Storage, offset: Typed) -> str:
        if storage.registers is not None:
            raise StaysInMemory(storage.registers.name)
        if offset.text == "0":
            return storage.pointer
        element = spell.vector_of(spell.storage_type(storage.dtype), storage.lanes)
        return self.name(
            f"getelementptr inbounds {element}, ptr {storage.pointer}, i64 {offset.text}"
        )

    def _pointer_from(self, storage: Storage, begin: Typed, offset: Typed) -> str:
        """A pointer to an element so far behind another, which may lie outside of the buffer."""
        element = spell.storage_type(storage.dtype)
        start = self.name(f"getelementptr {element}, ptr {storage.pointer}, i64 {begin.text}")
        return self.name(f"getelementptr {element}, ptr {start}, i64 {offset.text}")

    def _offset(self, node: Load) -> Expr:
        if len(node.index) > 1:
            raise InternalError(f"load `{node}` is not flat")
        return node.index[0] if node.index else Const(0, i64)

    def _load(self, node: Load) -> Typed:
        storage, offset = self.storage[node.source], self._offset(node)
        if storage.registers is not None:
            place, width = self.register(storage, offset)
            return storage.registers.read(place, max(width, storage.lanes))
        if storage.lanes > 1:
            return self._plain_load(storage, self.element_pointer(storage, self.value(offset)),
                                    storage.lanes)  # fmt: skip
        mask = self.masks[-1]
        if mask is not None and not self._may_miss(node):
            mask = None
        if mask is not None and mask.lanes == 1 and not self.depends(offset):
            safe = self.op(f"select i1 {mask.text}, i64 {self.value(offset).text}, i64 0", i64, 1)
            return self._plain_load(storage, self.element_pointer(storage, safe), 1)
        if self.active is not None and self.depends(offset) and not storage.in_registers:
            mask = self._both(self.active, mask)
        pointer, stride = self.address(storage, offset)
        if stride == 0 and mask is None:
            return self._plain_load(storage, pointer, 1)
        if stride == 1:
            return self._vector_load(storage, pointer, mask)
        known = self._known_lanes(offset) if mask is None else None
        if known is not None:
            return self._shuffled(storage, offset, known)
        return self._gather(storage, offset, mask)

    def _known_lanes(self, offset: Expr) -> KnownLanes | None:
        assert self.vector is not None
        if self.depends(substitute(offset, {self.vector: Const(0, i64)})):
            return None
        return known_lanes(offset, self.vector, self.lanes)

    def _shuffled(self, storage: Storage, offset: Expr, known: KnownLanes) -> Typed:
        """Lanes picked from a few vectors."""
        assert self.vector is not None
        first = simplify(offset, {self.vector: Const(0, i64)})
        if known.width == 1:  # one element for all lanes
            pointer = self.element_pointer(storage, self.value(first))
            return self.splat(self._plain_load(storage, pointer, 1), self.lanes)
        element = spell.storage_type(storage.dtype)
        kind = spell.vector_of(element, known.width)
        vectors = []
        for start in known.starts:
            pointer = self.element_pointer(storage, self.value(simplify(first + start)))
            vectors.append(self.read(f"load {kind}, ptr {pointer}, align {storage.dtype.size}"))
        if len(vectors) == 1:
            picked = self._picked(kind, vectors[0], "poison", [n for _, n in known.picks])
        else:
            picked = vectors[0]
            for number, vector in enumerate(vectors[1:], 1):
                picked = self._picked(kind, picked, vector, known.shuffle(number))
        return self._from_memory(picked, storage.dtype, self.lanes)

    def _picked(self, kind: str, one: str, two: str, lanes: list[int]) -> str:
        picks = ", ".join(f"i32 {n}" if n >= 0 else "i32 poison" for n in lanes)
        return self.name(
            f"shufflevector {kind} {one}, {kind} {two}, <{len(lanes)} x i32> <{picks}>"
        )

    def _plain_load(self, storage: Storage, pointer: str, lanes: int) -> Typed:
        kind = spell.vector_of(spell.storage_type(storage.dtype), lanes)
        name = self.read(f"load {kind}, ptr {pointer}, align {storage.dtype.size}")
        return self._from_memory(name, storage.dtype, lanes)

    def _from_memory(self, name: str, dtype: DType, lanes: int) -> Typed:
        if dtype is not boolean:
            return Typed(name, dtype, lanes)
        kind = spell.vector_of("i8", lanes)
        return self.op(f"icmp ne {kind} {name}, {self._zero(lanes)}", boolean, lanes)

    def _vector_load(self, storage: Storage, pointer: str, mask: Typed | None) -> Typed:
        lanes, dtype = self.lanes, storage.dtype
        if mask is None:
            return self._plain_load(storage, pointer, lanes)
        element = spell.storage_type(dtype)
        kind = spell.vector_of(element, lanes)
        name = f"llvm.masked.load.{spell.suffix(element, lanes)}.p0"
        self.declare(f"declare {kind} @{name}(ptr, i32, <{lanes} x i1>, {kind})")
        bits = self.splat(mask, lanes)
        got = self.read(f"call {kind} @{name}(ptr {pointer}, i32 {dtype.size}, "
                        f"{bits.type} {bits.text}, {kind} zeroinitializer)")  # fmt: skip
        return self._from_memory(got, dtype, lanes)

    def lane_pointers(self, storage: Storage, offset: Expr) -> str:
        """A vector of pointers, one per lane."""
        where = self.splat(self.value(offset), self.lanes)
        element = spell.storage_type(storage.dtype)
        return self.name(
            f"getelementptr {element}, ptr {storage.pointer}, {where.type} {where.text}"
        )

    def _gather(self, storage: Storage, offset: Expr, mask: Typed | None) -> Typed:
        lanes, dtype = self.lanes, storage.dtype
        pointers = self.lane_pointers(storage, offset)
        element = spell.storage_type(dtype)
        kind = spell.vector_of(element, lanes)
        name = f"llvm.masked.gather.{spell.suffix(element, lanes)}.v{lanes}p0"
        self.declare(f"declare {kind} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {kind})")
        bits = self.splat(mask or Typed("true", boolean), lanes)
        got = self.read(f"call {kind} @{name}(<{lanes} x ptr> {pointers}, i32 {dtype.size}, "
                        f"{bits.type} {bits.text}, {kind} zeroinitializer)")  # fmt: skip
        return self._from_memory(got, dtype, lanes)

    def store(self, storage: Storage, offset: Expr, value: Expr) -> None:
        self.put(storage, offset, self.value(value))

    def put(self, storage: Storage, offset: Expr, result: Typed) -> None:
        """Stores a value, in each lane its own element."""
        if storage.registers is not None:
            place, width = self.register(storage, offset)
            if self.active is not None and width > 1:
                raise StaysInMemory(storage.registers.name)
            lanes = max(width, storage.lanes)
            storage.registers.write(place, self.splat(result, lanes), width)
            return
        if storage.lanes > 1:
            pointer = self.element_pointer(storage, self.value(offset))
            self._write(storage, pointer, self.splat(result, storage.lanes))
            return
        pointer, stride = self.address(storage, offset)
        if self.active is not None and stride == 1:
            self._masked_write(storage, pointer, self.splat(result, self.lanes))
            return
        if self.vector is not None and stride not in (0, 1):
            self._scatter(storage, offset, self.splat(result, self.lanes))
            return
        if self.vector is not None and stride == 1:
            result = self.splat(result, self.lanes)
        elif result.lanes > 1:
            raise InternalError(f"lanes stored into one element of {storage.pointer}")
        self._write(storage, pointer, result)

    def _to_memory(self, value: Typed) -> Typed:
        if value.dtype is not boolean:
            return value
        kind = spell.vector_of("i8", value.lanes)
        return self.op(f"zext {value.type} {value.text} to {kind}", u8, value.lanes)

    def _write(self, storage: Storage, pointer: str, value: Typed) -> None:
        value = self._to_memory(value)
        self.effect(f"store {value.type} {value.text}, ptr {pointer}, align {storage.dtype.size}")

    def _masked_write(self, storage: Storage, pointer: str, value: Typed) -> None:
        """Stores the active lanes. An array in registers is written whole."""
        assert self.active is not None
        if storage.in_registers:
            old, bits = self._plain_load(storage, pointer, self.lanes), self.active
            both = f"{value.type} {value.text}, {old.type} {old.text}"
            mixed = self.op(f"select {bits.type} {bits.text}, {both}", value.dtype, self.lanes)
            self._write(storage, pointer, mixed)
            return
        value = self._to_memory(value)
        kind = spell.suffix(spell.storage_type(storage.dtype), self.lanes)
        name = f"llvm.masked.store.{kind}.p0"
        bits = self.active
        self.declare(f"declare void @{name}({value.type}, ptr, i32, {bits.type})")
        self.effect(f"call void @{name}({value.type} {value.text}, ptr {pointer}, "
                    f"i32 {storage.dtype.size}, {bits.type} {bits.text})")  # fmt: skip

    def _scatter(self, storage: Storage, offset: Expr, value: Typed) -> None:
        value, lanes = self._to_memory(value), self.lanes
        pointers = self.lane_pointers(storage, offset)
        element = spell.storage_type(storage.dtype)
        name = f"llvm.masked.scatter.{spell.suffix(element, lanes)}.v{lanes}p0"
        self.declare(f"declare void @{name}({value.type}, <{lanes} x ptr>, i32, <{lanes} x i1>)")
        bits = self.active or self.splat(Typed("true", boolean), lanes)
        self.effect(f"call void @{name}({value.type} {value.text}, <{lanes} x ptr> {pointers}, "
                    f"i32 {storage.dtype.size}, {bits.type} {bits.text})")  # fmt: skip

    # ---------------------------------------------------------------- operations

    def _call(self, node: Call) -> Typed:
        name = node.op.name
        if name == "select":
            return self._select(node)
        if emit_wide.is_by_even_and_odd(self, node):
            return emit_wide.by_even_and_odd(self, node)
        args, lanes = self.align([self.value(a) for a in node.args])
        if node.op.rule == "cast":
            return self.convert(name, args[0], node.dtype, lanes)
        if node.op.rule == "logic":
            return self._logic(name, args, lanes)
        source = args[0].dtype
        if source.compute is not source:
            args = [self.convert("cast", a, source.compute, lanes) for a in args]
        compute = args[0].dtype
        result = self._typed_op(name, node, args, compute, lanes)
        if node.op.rule == "same" and node.dtype is not compute:
            return self.convert("cast", result, node.dtype, lanes)
        return result

    def _select(self, node: Call) -> Typed:
        condition = self.value(node.args[0])
        unsafe = [self.is_unsafe(branch) for branch in node.args[1:]]
        if all(unsafe):
            both = self.needed(node.args[1]) & self.needed(node.args[2])
            for part in walk(node.args[1]) if both else ():
                if part in both:  # read either way: not under the condition
                    self.value(part)
        then = self._guarded(condition, node.args[1])
        flipped = condition
        if unsafe[1]:
            flipped = self._logic("not", [condition], condition.lanes)
        other = self._guarded(flipped, node.args[2])
        lanes = max(condition.lanes, then.lanes, other.lanes)
        then, other = self.splat(then, lanes), self.splat(other, lanes)
        if emit_relaxed.is_choice_of_bits(self, condition, then.dtype):
            return emit_relaxed.chosen(self, condition, then, other)
        return self.op(
            f"select {condition.type} {condition.text}, {then.type} {then.text}, "
            f"{other.type} {other.text}", node.dtype, lanes,
        )  # fmt: skip

    def _both(self, mask: Typed, outer: Typed | None) -> Typed:
        """Where a mask holds, and one around it if there is one."""
        if outer is None:
            return mask
        pair, lanes = self.align([outer, mask])
        return self._logic("and", pair, lanes)

    def _guarded(self, condition: Typed, node: Expr) -> Typed:
        if not self.is_unsafe(node):
            return self.value(node)
        self.masks.append(self._both(condition, self.masks[-1]))
        self.memo.append({})
        result = self.value(node)
        self.memo.pop()
        self.masks.pop()
        return result
