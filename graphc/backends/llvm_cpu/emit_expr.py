"""Expressions to LLVM IR text, scalar or in lanes.

Inside a vector loop over `v`, an expression that does not depend on `v` stays scalar and is splat
where a vector is needed; a load whose offset moves by 1 with `v` is a vector load, by 0 a scalar
load, else a gather. `select` is lazy in its loads: a load that is not provably in bounds becomes a
masked load under the conditions of the selects around it (scalar: the offset is clamped to 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphc.backends.llvm_cpu import spell
from graphc.backends.llvm_cpu.spell import Typed
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Index, Load, Ref, Sym, free_indices, substitute, walk
from graphc.ir.simplify import bounds, is_affine_in, simplify


@dataclass
class Storage:
    """Where a buffer lives. `lanes` > 1: a private copy per lane, elements are vectors."""

    pointer: str
    dtype: DType
    elements: int
    local: bool = False
    lanes: int = 1


@dataclass
class ExprEmitter:
    """Emits into `line`; `fresh` makes names. The kernel emitter owns scopes and loops."""

    line: Callable[[str], None]
    fresh: Callable[[], str]
    declare: Callable[[str], None]
    storage: dict[str, Storage]
    names: dict[Expr, Typed] = field(default_factory=dict)  # Index and Ref values
    vector: Index | None = None
    lanes: int = 1
    memo: list[dict[Expr, Typed]] = field(default_factory=lambda: [{}])
    masks: list[Typed | None] = field(default_factory=lambda: [None])
    unsafe: dict[Expr, bool] = field(default_factory=dict)
    always: dict[Expr, frozenset[Expr]] = field(default_factory=dict)

    # ---------------------------------------------------------------- entry points

    def new_statement(self) -> None:
        """Forgets values that a store may have changed."""
        self.memo, self.masks, self.unsafe, self.always = [{}], [None], {}, {}

    def value(self, node: Expr) -> Typed:
        """The value of an expression, computed once. One that reads nothing under a condition is
        the same under every mask, so that all branches share it."""
        for frame in self.memo:
            if node in frame:
                return frame[node]
        if self.is_unsafe(node):
            result = self._emit(node)
            self.memo[-1][node] = result
            return result
        memo, masks = self.memo, self.masks
        self.memo, self.masks = memo[:1], [None]
        for part in self._pending(node):
            memo[0][part] = self._emit(part)
        self.memo, self.masks = memo, masks
        return memo[0][node]

    def _pending(self, root: Expr) -> list[Expr]:
        """The parts of an expression still to be computed, operands first; loads are one part."""
        done, order = self.memo[0], []
        seen: set[Expr] = set()
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order.append(node)
            elif node not in seen and node not in done:
                seen.add(node)
                stack.append((node, True))
                if isinstance(node, Call):
                    stack.extend((c, False) for c in reversed(node.args))
        return order

    def is_unsafe(self, node: Expr) -> bool:
        """Whether an expression has a load that is not provably in bounds."""
        known = self.unsafe
        if node not in known:
            for part in walk(node):
                if part not in known:
                    inner = any(known[c] for c in part.children)
                    known[part] = inner or isinstance(part, Load) and self._may_miss(part)
        return known[node]

    def _may_miss(self, node: Load) -> bool:
        """Whether a load may be out of bounds, for all that is known."""
        low, high = bounds(self._offset(node))
        return low < 0 or high >= self.storage[node.source].elements

    def depends(self, node: Expr) -> bool:
        """Whether a value differs between lanes."""
        if self.vector is None:
            return False
        if self.vector in free_indices(node):
            return True
        for part in walk(node):
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
        found = self.always.get(node)
        if found is None:
            if isinstance(node, Call) and node.op.name == "select":
                condition, then, other = map(self.needed, node.args)
                found = condition | (then & other) | {node}
            else:
                found = frozenset((node,)).union(*map(self.needed, node.children))
            self.always[node] = found
        return found

    # ---------------------------------------------------------------- vectors

    def op(self, text: str, dtype: DType, lanes: int) -> Typed:
        name = self.fresh()
        self.line(f"{name} = {text}")
        return Typed(name, dtype, lanes)

    def _iota(self) -> Typed:
        items = ", ".join(f"i64 {n}" for n in range(self.lanes))
        return Typed(f"<{items}>", i64, self.lanes)

    def splat(self, value: Typed, lanes: int) -> Typed:
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):
            items = ", ".join([f"{value.element} {value.text}"] * lanes)
            return Typed(f"<{items}>", value.dtype, lanes)
        key = Ref(f"splat {value.text}", value.dtype)
        for frame in self.memo:
            if key in frame:
                return frame[key]
        kind = spell.vector_of(value.element, lanes)
        one = self.op(f"insertelement {kind} poison, {value.type} {value.text}, i32 0",
                      value.dtype, lanes)  # fmt: skip
        mask = f"<{lanes} x i32> zeroinitializer"
        result = self.op(f"shufflevector {kind} {one.text}, {kind} poison, {mask}",
                         value.dtype, lanes)  # fmt: skip
        self.memo[-1][key] = result
        return result

    def align(self, values: list[Typed]) -> tuple[list[Typed], int]:
        lanes = max(v.lanes for v in values)
        return [self.splat(v, lanes) for v in values], lanes

    # ---------------------------------------------------------------- memory

    def address(self, storage: Storage, offset: Expr) -> tuple[str, int | None]:
        """A pointer to the first lane and the stride in the lanes (None: not affine)."""
        stride: int | None = 0
        if self.depends(offset):
            assert self.vector is not None
            stride = is_affine_in(offset, self.vector)
            if stride is not None:
                offset = simplify(substitute(offset, {self.vector: Const(0, i64)}))
                if self.depends(offset):
                    stride = None
        if stride is None:
            return storage.pointer, None
        first = self.value(offset)
        if first.lanes > 1:  # equal in all lanes, but read under a mask that is not
            return storage.pointer, None
        return self.element_pointer(storage, first), stride

    def element_pointer(self, storage: Storage, offset: Typed) -> str:
        if offset.text == "0":
            return storage.pointer
        element = spell.vector_of(spell.storage_type(storage.dtype), storage.lanes)
        name = self.fresh()
        self.line(
            f"{name} = getelementptr inbounds {element}, ptr {storage.pointer}, i64 {offset.text}"
        )
        return name

    def _offset(self, node: Load) -> Expr:
        if len(node.index) > 1:
            raise InternalError(f"load `{node}` is not flat")
        return node.index[0] if node.index else Const(0, i64)

    def _load(self, node: Load) -> Typed:
        storage, offset = self.storage[node.source], self._offset(node)
        if storage.lanes > 1:
            return self._plain_load(storage, self.element_pointer(storage, self.value(offset)),
                                    storage.lanes)  # fmt: skip
        mask = self.masks[-1]
        if mask is not None:
            low, high = bounds(offset)
            if low >= 0 and high < storage.elements:
                mask = None
        if mask is not None and mask.lanes == 1 and not self.depends(offset):
            safe = self.op(f"select i1 {mask.text}, i64 {self.value(offset).text}, i64 0", i64, 1)
            return self._plain_load(storage, self.element_pointer(storage, safe), 1)
        pointer, stride = self.address(storage, offset)
        if stride == 0 and mask is None:
            return self._plain_load(storage, pointer, 1)
        if stride == 1:
            return self._vector_load(storage, pointer, mask)
        return self._gather(storage, offset, mask)

    def _plain_load(self, storage: Storage, pointer: str, lanes: int) -> Typed:
        kind = spell.vector_of(spell.storage_type(storage.dtype), lanes)
        name = self.fresh()
        self.line(f"{name} = load {kind}, ptr {pointer}, align {storage.dtype.size}")
        return self._from_memory(name, storage.dtype, lanes)

    def _from_memory(self, name: str, dtype: DType, lanes: int) -> Typed:
        if dtype is not boolean:
            return Typed(name, dtype, lanes)
        kind = spell.vector_of("i8", lanes)
        return self.op(f"icmp ne {kind} {name}, {self._zero(lanes)}", boolean, lanes)

    def _zero(self, lanes: int) -> str:
        return "0" if lanes == 1 else "zeroinitializer"

    def _vector_load(self, storage: Storage, pointer: str, mask: Typed | None) -> Typed:
        lanes, dtype = self.lanes, storage.dtype
        if mask is None:
            return self._plain_load(storage, pointer, lanes)
        element = spell.storage_type(dtype)
        kind = spell.vector_of(element, lanes)
        name = f"llvm.masked.load.{spell.suffix(element, lanes)}.p0"
        self.declare(f"declare {kind} @{name}(ptr, i32, <{lanes} x i1>, {kind})")
        bits = self.splat(mask, lanes)
        got = self.fresh()
        self.line(f"{got} = call {kind} @{name}(ptr {pointer}, i32 {dtype.size}, "
                  f"{bits.type} {bits.text}, {kind} zeroinitializer)")  # fmt: skip
        return self._from_memory(got, dtype, lanes)

    def lane_pointers(self, storage: Storage, offset: Expr) -> str:
        """A vector of pointers, one per lane."""
        where = self.splat(self.value(offset), self.lanes)
        element = spell.storage_type(storage.dtype)
        name = self.fresh()
        base = f"getelementptr {element}, ptr {storage.pointer}"
        self.line(f"{name} = {base}, {where.type} {where.text}")
        return name

    def _gather(self, storage: Storage, offset: Expr, mask: Typed | None) -> Typed:
        lanes, dtype = self.lanes, storage.dtype
        pointers = self.lane_pointers(storage, offset)
        element = spell.storage_type(dtype)
        kind = spell.vector_of(element, lanes)
        name = f"llvm.masked.gather.{spell.suffix(element, lanes)}.v{lanes}p0"
        self.declare(f"declare {kind} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {kind})")
        bits = self.splat(mask or Typed("true", boolean), lanes)
        got = self.fresh()
        self.line(f"{got} = call {kind} @{name}(<{lanes} x ptr> {pointers}, i32 {dtype.size}, "
                  f"{bits.type} {bits.text}, {kind} zeroinitializer)")  # fmt: skip
        return self._from_memory(got, dtype, lanes)

    def store(self, storage: Storage, offset: Expr, value: Expr) -> None:
        result = self.value(value)
        if storage.lanes > 1:
            pointer = self.element_pointer(storage, self.value(offset))
            self._write(storage, pointer, self.splat(result, storage.lanes))
            return
        pointer, stride = self.address(storage, offset)
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
        self.line(f"store {value.type} {value.text}, ptr {pointer}, align {storage.dtype.size}")

    def _scatter(self, storage: Storage, offset: Expr, value: Typed) -> None:
        value, lanes = self._to_memory(value), self.lanes
        pointers = self.lane_pointers(storage, offset)
        element = spell.storage_type(storage.dtype)
        name = f"llvm.masked.scatter.{spell.suffix(element, lanes)}.v{lanes}p0"
        self.declare(f"declare void @{name}({value.type}, <{lanes} x ptr>, i32, <{lanes} x i1>)")
        bits = self.splat(Typed("true", boolean), lanes)
        self.line(f"call void @{name}({value.type} {value.text}, <{lanes} x ptr> {pointers}, "
                  f"i32 {storage.dtype.size}, {bits.type} {bits.text})")  # fmt: skip

    # ---------------------------------------------------------------- operations

    def _call(self, node: Call) -> Typed:
        name = node.op.name
        if name == "select":
            return self._select(node)
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

    def _typed_op(self, name, node: Call, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        if node.op.rule == "compare":
            return self._compare(name, args, lanes)
        if dtype is boolean:
            raise UnsupportedError(f"{name} of booleans")
        if dtype.is_float:
            return self._float_op(name, args, dtype, lanes)
        return self._int_op(name, node, args, dtype, lanes)

    def _logic(self, name: str, args: list[Typed], lanes: int) -> Typed:
        if name == "not":
            ones = self.splat(Typed("true", boolean), lanes)
            return self.op(f"xor {args[0].type} {args[0].text}, {ones.text}", boolean, lanes)
        a, b = args
        return self.op(f"{spell.LOGIC[name]} {a.type} {a.text}, {b.text}", boolean, lanes)

    def _compare(self, name: str, args: list[Typed], lanes: int) -> Typed:
        a, b = args
        if a.dtype.is_float:
            text = f"fcmp {spell.FLOAT_COMPARE[name]}"
        else:
            sign = "" if name in ("eq", "ne") else "s" if a.dtype.kind == "int" else "u"
            text = f"icmp {sign}{spell.INT_COMPARE[name]}"
        return self.op(f"{text} {a.type} {a.text}, {b.text}", boolean, lanes)

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
        return self.op(
            f"select {condition.type} {condition.text}, {then.type} {then.text}, "
            f"{other.type} {other.text}", node.dtype, lanes,
        )  # fmt: skip

    def _guarded(self, condition: Typed, node: Expr) -> Typed:
        if not self.is_unsafe(node):
            return self.value(node)
        outer = self.masks[-1]
        mask = condition
        if outer is not None:
            pair, lanes = self.align([outer, condition])
            mask = self._logic("and", pair, lanes)
        self.masks.append(mask)
        self.memo.append({})
        result = self.value(node)
        self.memo.pop()
        self.masks.pop()
        return result

    def intrinsic(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        element = spell.register_type(dtype)
        full = f"{name}.{spell.suffix(element, lanes)}"
        kinds = ", ".join(a.type for a in args)
        result = spell.vector_of(element, lanes)
        self.declare(f"declare {result} @{full}({kinds})")
        return self.op(f"call {result} @{full}({self._list(args)})", dtype, lanes)

    def _list(self, args: list[Typed]) -> str:
        return ", ".join(f"{a.type} {a.text}" for a in args)

    def _float_op(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a = args[0]
        if name in spell.FLOAT_BINARY:
            text = f"{spell.FLOAT_BINARY[name]} {a.type} {a.text}, {args[1].text}"
            return self.op(text, dtype, lanes)
        if name in spell.INTRINSICS:
            return self.intrinsic(spell.INTRINSICS[name], args, dtype, lanes)
        if name == "neg":
            return self.op(f"fneg {a.type} {a.text}", dtype, lanes)
        if name == "isnan":
            return self.op(f"fcmp uno {a.type} {a.text}, {a.text}", boolean, lanes)
        if name == "isinf":
            size = self.intrinsic("llvm.fabs", [a], dtype, lanes)
            infinity = self.splat(Typed(spell.literal(float("inf"), dtype), dtype), lanes)
            return self.op(f"fcmp oeq {a.type} {size.text}, {infinity.text}", boolean, lanes)
        if name in spell.LIBM or name == "rem":
            return self._per_lane(name, args, dtype, lanes)
        raise InternalError(f"{name} of {dtype} has no LLVM spelling; it must be decomposed first")

    def _per_lane(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        """A C library function, called once per lane."""
        element = spell.register_type(dtype)
        function = spell.libm_name(name, element)
        self.declare(f"declare {element} @{function}({', '.join([element] * len(args))})")
        if lanes == 1:
            return self.op(f"call {element} @{function}({self._list(args)})", dtype, 1)
        result = Typed("poison", dtype, lanes)
        for n in range(lanes):
            parts = [self.op(f"extractelement {a.type} {a.text}, i32 {n}", dtype, 1) for a in args]
            one = self.op(f"call {element} @{function}({self._list(parts)})", dtype, 1)
            result = self.op(f"insertelement {result.type} {result.text}, {element} {one.text}, "
                             f"i32 {n}", dtype, lanes)  # fmt: skip
        return result

    # ---------------------------------------------------------------- integers

    def _int_op(self, name: str, node: Call, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a = args[0]
        if name in spell.INT_BINARY:
            word = spell.INT_BINARY[name]
            return self.op(f"{word} {a.type} {a.text}, {args[1].text}", dtype, lanes)
        if name == "neg":
            return self.op(f"sub {a.type} {self._zero(lanes)}, {a.text}", dtype, lanes)
        if name == "bnot":
            return self.op(f"xor {a.type} {a.text}, {self._const(-1, dtype, lanes)}", dtype, lanes)
        if name == "abs":
            return a if dtype.kind == "uint" else self._int_abs(a, dtype, lanes)
        if name in ("min", "max"):
            sign = "s" if dtype.kind == "int" else "u"
            return self.intrinsic(f"llvm.{sign}{name}", args, dtype, lanes)
        if name in ("shl", "shr"):
            return self._shift(name, args, dtype, lanes)
        if name in ("div", "floordiv", "mod", "rem"):
            return self._divide(name, node, args, dtype, lanes)
        if name == "fma":
            product = self.op(f"mul {a.type} {a.text}, {args[1].text}", dtype, lanes)
            return self.op(f"add {a.type} {product.text}, {args[2].text}", dtype, lanes)
        raise InternalError(f"{name} of {dtype} has no LLVM spelling; it must be decomposed first")

    def _const(self, value: int, dtype: DType, lanes: int) -> str:
        return self.splat(Typed(str(value), dtype), lanes).text

    def _int_abs(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        minus = self.op(f"sub {a.type} {self._zero(lanes)}, {a.text}", dtype, lanes)
        negative = self.op(f"icmp slt {a.type} {a.text}, {self._zero(lanes)}", boolean, lanes)
        return self._pick(negative, minus, a)

    def _pick(self, condition: Typed, a: Typed, b: Typed) -> Typed:
        return self.op(f"select {condition.type} {condition.text}, {a.type} {a.text}, "
                       f"{b.type} {b.text}", a.dtype, a.lanes)  # fmt: skip

    def _shift(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a, b = args
        signed = dtype.kind == "int"
        word = "shl" if name == "shl" else "ashr" if signed else "lshr"
        bits = dtype.size * 8
        high = self._const(bits - 1, dtype, lanes)
        over = self.op(f"icmp ugt {b.type} {b.text}, {high}", boolean, lanes)
        amount = self._pick(over, Typed(high, dtype, lanes), b)
        shifted = self.op(f"{word} {a.type} {a.text}, {amount.text}", dtype, lanes)
        if word == "ashr":
            return shifted
        return self._pick(over, Typed(self._const(0, dtype, lanes), dtype, lanes), shifted)

    def _divide(self, name: str, node: Call, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a, b = args
        divisor = node.args[1]
        positive = isinstance(divisor, Const) and divisor.value > 0
        unsigned = dtype.kind == "uint"
        if positive and dtype is i64 and bounds(node.args[0])[0] >= 0:
            unsigned = True
        quotient = name in ("div", "floordiv")
        if unsigned:
            b, zero = self._nonzero(b, positive, lanes)
            word = "udiv" if quotient else "urem"
            return self._zeroed(self.op(f"{word} {a.type} {a.text}, {b.text}", dtype, lanes), zero)
        return self._signed_divide(name, a, b, positive, lanes)

    def _nonzero(self, b: Typed, positive: bool, lanes: int) -> tuple[Typed, Typed | None]:
        """A divisor that does not trap, and where it was zero."""
        if positive:
            return b, None
        zero = self.op(f"icmp eq {b.type} {b.text}, {self._zero(lanes)}", boolean, lanes)
        one = Typed(self._const(1, b.dtype, lanes), b.dtype, lanes)
        return self._pick(zero, one, b), zero

    def _zeroed(self, result: Typed, zero: Typed | None) -> Typed:
        if zero is None:
            return result
        nothing = Typed(self._const(0, result.dtype, result.lanes), result.dtype, result.lanes)
        return self._pick(zero, nothing, result)

    def _signed_divide(self, name, a: Typed, b: Typed, positive: bool, lanes: int) -> Typed:
        dtype, b0 = a.dtype, b
        b, zero = self._nonzero(b, positive, lanes)
        minus = None
        if not positive:  # MIN / -1 traps: divide by 1 and negate instead
            ones = self._const(-1, dtype, lanes)
            minus = self.op(f"icmp eq {b.type} {b.text}, {ones}", boolean, lanes)
            b = self._pick(minus, Typed(self._const(1, dtype, lanes), dtype, lanes), b)
        q = self.op(f"sdiv {a.type} {a.text}, {b.text}", dtype, lanes)
        r = self.op(f"srem {a.type} {a.text}, {b.text}", dtype, lanes)
        if minus is not None:
            negated = self.op(f"sub {a.type} {self._zero(lanes)}, {a.text}", dtype, lanes)
            q = self._pick(minus, negated, q)
        if name in ("floordiv", "mod"):
            q, r = self._floored(q, r, b0, lanes)
        return self._zeroed(q if name in ("div", "floordiv") else r, zero)

    def _floored(self, q: Typed, r: Typed, b: Typed, lanes: int) -> tuple[Typed, Typed]:
        dtype, zero = q.dtype, self._zero(lanes)
        some = self.op(f"icmp ne {r.type} {r.text}, {zero}", boolean, lanes)
        signs = self.op(f"xor {r.type} {r.text}, {b.text}", dtype, lanes)
        differ = self.op(f"icmp slt {r.type} {signs.text}, {zero}", boolean, lanes)
        fix = self._logic("and", [some, differ], lanes)
        lower = self.op(f"sub {q.type} {q.text}, {self._const(1, dtype, lanes)}", dtype, lanes)
        raised = self.op(f"add {r.type} {r.text}, {b.text}", dtype, lanes)
        return self._pick(fix, lower, q), self._pick(fix, raised, r)

    # ---------------------------------------------------------------- conversions

    def convert(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        source = a.dtype
        if source is dtype:
            return a
        if how == "bitcast":
            return self._bitcast(a, dtype, lanes)
        if source is boolean or dtype is boolean:
            return self._convert_boolean(a, dtype, lanes)
        if source.is_float and dtype.is_float:
            return self._float_to_float(how, a, dtype, lanes)
        if source.is_float:
            return self._float_to_int(a, dtype, lanes)
        if dtype.is_float:
            return self._int_to_float(how, a, dtype, lanes)
        return self._int_to_int(a, dtype, lanes)

    def _bitcast(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        target = spell.vector_of(spell.register_type(dtype), lanes)
        if a.type == target:
            return Typed(a.text, dtype, lanes)
        return self.op(f"bitcast {a.type} {a.text} to {target}", dtype, lanes)

    def _change(self, word: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        target = spell.vector_of(spell.register_type(dtype), lanes)
        return self.op(f"{word} {a.type} {a.text} to {target}", dtype, lanes)

    def _convert_boolean(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        if a.dtype is boolean:
            if dtype.is_float:
                return self.convert("cast", self._change("uitofp", a, f32, lanes), dtype, lanes)
            return self._change("zext", a, dtype, lanes)
        if a.dtype.is_float:
            wide = self.convert("cast", a, a.dtype.compute, lanes)
            zero = self.splat(Typed(spell.literal(0.0, wide.dtype), wide.dtype), lanes)
            return self.op(f"fcmp une {wide.type} {wide.text}, {zero.text}", boolean, lanes)
        return self.op(f"icmp ne {a.type} {a.text}, {self._zero(lanes)}", boolean, lanes)

    def _float_to_float(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        source = a.dtype
        native = ("f64", "f32", "f16", "bf16")
        if source.name not in native or dtype.name not in native or how == "cast_sat":
            raise InternalError(f"{how} from {source} to {dtype} must be decomposed first")
        if source.bits == dtype.bits == 16:
            return self._change("fptrunc", self._change("fpext", a, f32, lanes), dtype, lanes)
        return self._change("fpext" if dtype.bits > source.bits else "fptrunc", a, dtype, lanes)

    def _float_to_int(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        a = self.convert("cast", a, a.dtype.compute, lanes)
        unsigned = dtype.kind == "uint" and dtype.bits >= 32
        middle = dtype if dtype.bits >= 32 else i32
        name = f"llvm.fpto{'ui' if unsigned else 'si'}.sat"
        target = spell.register_type(middle)
        kind = spell.vector_of(target, lanes)
        full = f"{name}.{spell.suffix(target, lanes)}.{spell.suffix(a.element, lanes)}"
        self.declare(f"declare {kind} @{full}({a.type})")
        whole = self.op(f"call {kind} @{full}({a.type} {a.text})", middle, lanes)
        return self._int_to_int(whole, dtype, lanes)

    def _int_to_float(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        word = "uitofp" if a.dtype.kind == "uint" else "sitofp"
        if dtype.name in ("f32", "f64"):
            return self._change(word, a, dtype, lanes)
        return self.convert(how, self._change(word, a, f32, lanes), dtype, lanes)

    def _int_to_int(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        if a.dtype is dtype:
            return a
        if dtype.size < a.dtype.size:
            a = self._change("trunc", a, dtype, lanes)
        elif dtype.size > a.dtype.size:
            a = self._change("zext" if a.dtype.kind == "uint" else "sext", a, dtype, lanes)
        else:
            a = Typed(a.text, dtype, lanes)
        return self._wrap_narrow(a, dtype, lanes)

    def _wrap_narrow(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        """Keeps a sub-byte integer's value within its logical width."""
        if dtype.bits >= 8:
            return a
        amount = self._const(8 - dtype.bits, i8, lanes)
        left = self.op(f"shl {a.type} {a.text}, {amount}", dtype, lanes)
        word = "ashr" if dtype.kind == "int" else "lshr"
        return self.op(f"{word} {a.type} {left.text}, {amount}", dtype, lanes)
