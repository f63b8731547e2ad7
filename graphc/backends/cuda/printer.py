"""Prints launches as CUDA C: the C printer of kernels, with grids, shared memory and barriers.

A `parallel` loop becomes the thread's own element, or a loop with the stride of the grid where the
grid does not cover it; `block` and `thread` loops become blockIdx and threadIdx. Indices have 32
bits wherever their bounds fit, so that address arithmetic costs one register and one instruction.
Float and int arithmetic, the bit patterns of narrow types, and helpers are those of C.
"""

from __future__ import annotations

import re

from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.printer import Dialect, KernelPrinter
from graphc.backends.cfamily.spell import Speller, register_type, storage_type
from graphc.backends.cuda import device_math
from graphc.backends.cuda.bulk_instructions import BOXES, SHARED_BOXES
from graphc.backends.cuda.instructions import ALIGNED, FUNCTIONS, TEMPLATES, VECTORS
from graphc.backends.cuda.launches import Launch, alignment, blocks_of, shared_place
from graphc.backends.cuda.machines import KIB, SHARED_LIMIT, WARP
from graphc.backends.cuda.signatures import WARP_REDUCTIONS, WARP_RUNNING, mismatch
from graphc.backends.cuda.tensor_maps import cluster_of, map_of
from graphc.ir import dtypes
from graphc.ir.expr import Const, Expr, Index, Load, Ref, Sym, as_expr, call
from graphc.ir.extents import most
from graphc.ir.kernel import Alloc, Barrier, For, Intrin, Stmt

INDEX = dtypes.i32
SHARED = "shared_memory"  # what a launch gives, of which arrays are parts
LOCAL_BYTES = 128 << 10  # of a thread's own arrays; more would take too much for a full grid


def dialect(launch: Launch, restrict: bool) -> Dialect:
    """CUDA C for the function of a launch. `restrict`: no buffers coincide."""
    bounds = f"{launch.block}, {launch.resident}" if launch.resident else f"{launch.block}"
    cluster = cluster_of(launch.kernel)
    together = f" __cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
    return Dialect(
        function=f'extern "C" __global__ void __launch_bounds__({bounds}){together}',
        index=INDEX,
        restrict="__restrict__" if restrict else "",
    )


def device_helpers(needed: set[str]) -> str:
    """The helper functions that kernels call, for the device, with its own instructions."""
    qualified = "[[maybe_unused]] static __device__ inline "
    others = needed - device_math.FUNCTIONS
    text = helper_text(others).replace("static inline ", qualified)
    return _HELPER.sub(_on_device, text) + device_math.functions_text(needed)


_EXTREME = """\
    float found;
    asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
"""
_ON_DEVICE = {  # helpers that GPUs from an architecture on have an instruction for
    "load_f16": (700, """\
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
"""),
    "store_f16": (700, """\
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
"""),
    "store_bf16": (800, """\
    uint32_t pair; /* the conversion of two is faster than that of one */
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return (uint16_t)pair;
"""),
    "max_f32": (800, _EXTREME.format(name="max")),
    "min_f32": (800, _EXTREME.format(name="min")),
}  # fmt: skip
_HELPER = re.compile(
    rf"(?P<head>\b(?P<name>{'|'.join(_ON_DEVICE)})\(.*\)\n\{{\n)(?P<body>(.*\n)*?)\}}\n"
)


def _on_device(match: re.Match) -> str:
    oldest, native = _ON_DEVICE[match["name"]]
    condition = f"#if __CUDA_ARCH__ >= {oldest}"
    return f"{match['head']}{condition}\n{native}#else\n{match['body']}#endif\n}}\n"


def _has_neighbours(stmt: Stmt) -> bool:
    """Whether threads may read or write several elements next to one another."""
    if not (isinstance(stmt, For) and stmt.kind in ("parallel", "block")):
        return False
    return stmt.kind == "block" or any(isinstance(s, For) and s.kind == "unroll" for s in stmt.body)


class LaunchPrinter(KernelPrinter):
    """Prints one launch as a `__global__` function."""

    def __init__(
        self, launch: Launch, name: str, speller: Speller, restrict: bool, aligned: bool = False
    ):
        super().__init__(launch.kernel, name, speller, dialect(launch, restrict))
        self.aligned = aligned and any(map(_has_neighbours, self.kernel.body))
        self.launch = launch
        if launch.shared > SHARED_LIMIT:
            raise self.fail(f"{launch.shared} bytes of shared memory; GPUs have {SHARED_LIMIT}")
        self.shared_end = 0  # of arrays so far
        self.instructions: set[str] = set()

    def _size_params(self) -> list[str]:
        """Each size by itself, in the 8 bytes that an address takes; then maps of tensors."""
        sizes = [f"const int64_t {self._given(size)}" for size in self.used_sizes]
        maps = range(len(self.launch.maps))
        return sizes + [f"const __grid_constant__ TensorMap {self._map(n)}" for n in maps]

    def _map(self, number: int) -> str:
        return self.name(f"map{number}")

    def _given(self, size: Sym) -> str:
        return self.name(f"{size.name}_given")

    def _sizes(self) -> None:
        """Also tells the compiler where operands may lie, so that it can join accesses."""
        for size in self.used_sizes:
            kind, name = register_type(self.index_type(size)), self.name(size.name)
            self.lines.append(f"    const {kind} {name} = ({kind}){self._given(size)};")
        if self.aligned:
            self.instructions.add(ALIGNED)
            self.lines += [f"    {ALIGNED}({self.name(b.name)});" for b in self.kernel.params]

    # ------------------------------------------------------------ grids

    def _loop(self, stmt: For) -> None:
        if stmt.kind == "parallel":
            self._elements(stmt)
        elif stmt.kind in ("block", "thread"):
            self._position(stmt)
        else:
            if stmt.kind == "unroll":
                self.line(f"#pragma unroll {stmt.width}" if stmt.width else "#pragma unroll")
            super()._loop(stmt)

    def _position(self, stmt: For) -> None:
        """A loop over blocks or threads: where this thread is, if it matters, then the body."""
        position = "blockIdx.x" if stmt.kind == "block" else "threadIdx.x"
        var, type = self.name(stmt.var.name), register_type(self.index_type(stmt.var))
        start = len(self.lines)
        self.line(f"const {type} {var} = ({type}){position};")
        self.depth -= 1
        self._body(stmt.body)
        self.depth += 1
        if not any(re.search(rf"\b{var}\b", line) for line in self.lines[start + 1 :]):
            del self.lines[start]

    def _elements(self, stmt: For) -> None:
        var, type = self.name(stmt.var.name), register_type(self.index_type(stmt.var))
        first = f"({type})(blockIdx.x * blockDim.x + threadIdx.x)"
        end = as_expr(stmt.extent, dtypes.i64)
        with self.scope(end):
            limit = str(self.expr(end))
        if self.launch.grid == blocks_of(stmt.extent):
            self.line(f"const {type} {var} = {first};")
            self.line(f"if ({var} < {limit}) {{")
        else:
            step = f"({type})(gridDim.x * blockDim.x)"
            self.line(f"for ({type} {var} = {first}; {var} < {limit}; {var} += {step}) {{")
        self._body(stmt.body)
        self.line("}")

    def index_type(self, var: Expr) -> dtypes.DType:
        """32 bits unless the last step of the loop could pass them."""
        wide = isinstance(var, Index) and most(var.extent) + (1 << 25) > INDEX.max
        return dtypes.i64 if wide else super().index_type(var)

    # ------------------------------------------------------------ memory, barriers, instructions

    def _alloc(self, stmt: Alloc) -> None:
        size = stmt.buffer.size * stmt.buffer.dtype.size
        if stmt.scope != "shared":
            if size > LOCAL_BYTES:
                raise self.fail(f"array {stmt.buffer.name} of {size} bytes is too large for CUDA")
            super()._alloc(stmt)
            return
        self.buffers[stmt.buffer.name] = stmt.buffer
        type, name = storage_type(stmt.buffer.dtype), self.name(stmt.buffer.name)
        if not self.launch.shared:
            aligned = f"__align__({alignment(stmt.buffer)})"
            self.line(f"__shared__ {aligned} {type} {name}[{stmt.buffer.size}];")
            return
        if not self.shared_end:
            self.line(f"extern __shared__ __align__({KIB}) unsigned char {SHARED}[];")
        start = shared_place(stmt.buffer, self.shared_end)
        place = f"{SHARED} + {start}"
        self.line(f"{type} *const {name} = ({type} *)({place}); /* {stmt.buffer.size} elements */")
        self.shared_end = start + size

    def _barrier(self, stmt: Barrier) -> None:
        self.line("__syncthreads();")

    def _intrin(self, stmt: Intrin) -> None:
        if problem := mismatch(stmt):
            raise self.fail(problem)
        if stmt.name in WARP_REDUCTIONS:
            self._warp_reduction(stmt)
        elif stmt.name in WARP_RUNNING:
            self._warp_running(stmt)
        elif stmt.name in BOXES:
            self._box(stmt)
        elif stmt.name in FUNCTIONS:
            self._function(stmt)
        elif stmt.name in VECTORS:
            self._vector(stmt)
        else:
            raise self.fail(f"instruction {stmt.name} has no meaning in CUDA")

    def _function(self, stmt: Intrin) -> None:
        """A call of a function of instructions.py."""
        self.instructions.add(stmt.name)
        with self.scope(*stmt.args):
            args = [self._operand(x) for x in stmt.args]
            first = TEMPLATES.get(stmt.name, len(args))
            template = f"<{', '.join(args[first:])}>" if args[first:] else ""
            self.line(f"{stmt.name}{template}({', '.join(args[:first])});")

    def _box(self, stmt: Intrin) -> None:
        """A copy of a box of a tensor that a map of the kernel describes."""
        self.instructions.add(stmt.name)
        to, barrier, _, *rest = stmt.args
        given = (to, barrier, *rest[: BOXES[stmt.name]])
        map = self._map(self.launch.maps.index(map_of(self.kernel, stmt)))
        with self.scope(*given):
            place, phase, *at = (self._operand(x) for x in given)
            block = f"<{self._operand(rest[-1])}>" if stmt.name in SHARED_BOXES else ""
            self.line(f"{stmt.name}{block}({', '.join((place, phase, map, *at))});")

    def _vector(self, stmt: Intrin) -> None:
        """Neighbours in memory: registers take elements as they are stored, and give values."""
        self.instructions.add(stmt.name)
        place, *others = stmt.args
        assert isinstance(place, Load)
        buffer = self.buffer(place.source)
        with self.scope(*self.flat(buffer, place.index), *others):
            texts = [self._operand(place), *(self.stored(x, buffer.dtype) for x in others)]
            self.line(f"{stmt.name}({', '.join(texts)});")

    def _operand(self, node: Expr) -> str:
        """An operand of an instruction; elements are places."""
        if not isinstance(node, Load):
            return str(self.expr(node))
        buffer = self.buffer(node.source)
        return self.place(buffer, self.flat(buffer, node.index))

    def _warp_reduction(self, stmt: Intrin) -> None:
        """A scalar variable becomes its reduction over the warp, or over each group of so many
        lanes, which may be so far apart, the same in all of them."""
        target, *rest = stmt.args
        given = [int(x.value) for x in rest if isinstance(x, Const)]
        width, apart = given + [WARP, 1][len(given) :]
        name, other = self._variable(stmt), self.temporary()
        mine, theirs = target, Ref(other, target.dtype)
        with self.block(f"for (int step = {width * apart // 2}; step > {apart // 2}; step >>= 1)"):
            shuffle = f"__shfl_xor_sync(0xffffffffu, {name}, step)"
            self.line(f"const {register_type(target.dtype)} {other} = {shuffle};")
            combined = call(WARP_REDUCTIONS[stmt.name], mine, theirs)
            with self.scope(combined):
                self.line(f"{name} = {self.expr(combined)};")

    def _variable(self, stmt: Intrin) -> str:
        """The name of the scalar variable that an instruction takes first."""
        target = stmt.args[0]
        if not isinstance(target, Load) or target.index:
            raise self.fail(f"instruction {stmt.name} takes a scalar variable first")
        return self.name(target.source)

    def _warp_running(self, stmt: Intrin) -> None:
        """A scalar variable is combined with those of all lanes before."""
        (target,) = stmt.args
        name, other = self._variable(stmt), self.temporary()
        combined = call(WARP_RUNNING[stmt.name], Ref(other, target.dtype), target)
        with self.block(f"for (int step = 1; step < {WARP}; step <<= 1)"):
            shuffle = f"__shfl_up_sync(0xffffffffu, {name}, step)"
            self.line(f"const {register_type(target.dtype)} {other} = {shuffle};")
            with self.scope(combined):
                sum = self.expr(combined)
                self.line(f"{name} = (threadIdx.x & {WARP - 1}) < step ? {name} : {sum};")
