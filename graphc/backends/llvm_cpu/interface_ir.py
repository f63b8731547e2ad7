"""The documented functions of a library (see header.py) as LLVM IR.

A context is one piece of memory: the pool of threads, a sentence about the last run that failed,
and the arena. It is allocated by NAME_create where there is a C library; NAME_place takes memory of
the caller's, and asks for nothing. A system without threads runs all on the calling one.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.llvm_cpu.emit_kernel import Declarations
from graphc.backends.llvm_cpu.emit_program import Numbers
from graphc.backends.llvm_cpu.image import INVOKE, Image
from graphc.backends.llvm_cpu.triples import Platform
from graphc.ir.alignment import ALIGNMENT
from graphc.ir.checks import VALUE, WHOLE, Check
from graphc.ir.expr import Sym
from graphc.ir.types import Dim, largest

SPIN_NANOSECONDS = 50_000
LONGEST_VALUE = 24  # characters of a number of 64 bits, and an end
NULL, FORBIDDEN, OUT_OF_BOUNDS = -1, 1, 2  # statuses of a run
_POOL_BYTES = 8  # of a context, before the sentence

WEIGHTS = "graphc_weights"


def arena_offset(image: Image) -> int:
    """Bytes of a context in front of its arena."""
    longest = max((len(check.message.encode()) for check in image.checks), default=0)
    return -(-(_POOL_BYTES + longest + LONGEST_VALUE) // ALIGNMENT) * ALIGNMENT


def context_bytes(image: Image) -> int:
    """Bytes of a context, at a multiple of ALIGNMENT."""
    return arena_offset(image) + -(-image.arena_bytes // ALIGNMENT) * ALIGNMENT


class Interface:
    """The functions of a model in an image, whose constants lie `offsets` bytes after WEIGHTS;
    `name` begins those that others may call."""

    def __init__(self, image: Image, name: str, offsets: Sequence[int], platform: Platform):
        self.image, self.name, self.offsets, self.platform = image, name, offsets, platform
        self.sizes = (*image.sizes, *image.counts)

    @property
    def exports(self) -> list[str]:
        """The functions that others may call."""
        made = ["place", "run", "error"]
        if self.platform.has_libc:
            made += ["create", "destroy"]
        shapes = range(len(self.image.told)) if self.sizes else ()
        return [f"{self.name}_{part}" for part in (*made, *(f"output_shape_{n}" for n in shapes))]

    def text(self) -> str:
        """The module."""
        allocating = [self._create(), self._destroy()] if self.platform.has_libc else []
        parts = [
            _TELL, self._tables(), *allocating, self._place(), self._run(), self._error(),
            *(self._shape(n) for n in range(len(self.image.told)) if self.sizes),
            f"declare void @{INVOKE}(ptr)", "attributes #0 = { nounwind }",
        ]  # fmt: skip
        return "\n".join(parts) + "\n"

    # ---------------------------------------------------------------- data

    def _tables(self) -> str:
        """Where constants are, and what checks say."""
        places = [
            f"ptr getelementptr (i8, ptr @{WEIGHTS}, i64 {offset})" for offset in self.offsets
        ]
        texts, rows = [], []
        for number, check in enumerate(self.image.checks):
            before, value, after = check.message.partition(VALUE)
            texts.append(_string(f"before.{number}", before))
            texts.append(_string(f"after.{number}", after))
            second = f"ptr @after.{number}" if value else "ptr null"
            rows.append(f"%Check {{ i64 {_low(check)}, i64 {_signed(check.most)}, "
                        f"ptr @before.{number}, {second} }}")  # fmt: skip
        weights = [f"@{WEIGHTS} = external global i8"] if places else []
        return "\n".join([
            "%Check = type { i64, i64, ptr, ptr }", *weights, *texts,
            _array("graphc_constants", "ptr", places), _array("graphc_checks", "%Check", rows),
        ])  # fmt: skip

    # ---------------------------------------------------------------- contexts

    def _create(self) -> str:
        size, word = context_bytes(self.image), f"i{self.platform.pointer_bits}"
        if self.platform.system == "windows":
            declared = f"declare ptr @_aligned_malloc({word}, {word})"
            lines = [f"  %memory = call ptr @_aligned_malloc({word} {size}, {word} {ALIGNMENT})"]
        else:
            declared = f"declare i32 @posix_memalign(ptr, {word}, {word})"
            lines = [
                "  %cell = alloca ptr",
                "  store ptr null, ptr %cell",
                f"  %no = call i32 @posix_memalign(ptr %cell, {word} {ALIGNMENT}, {word} {size})",
                "  %memory = load ptr, ptr %cell",
            ]
        lines += [
            f"  %context = call ptr @{self.name}_place(ptr %memory)",
            "  %none = icmp eq ptr %context, null",
            "  br i1 %none, label %out, label %made",
            "made:",
        ]
        if self.platform.has_threads:
            declared += "\ndeclare ptr @graphc_pool_create(i64, i64)"
            lines += [
                "  %positive = call i32 @llvm.smax.i32(i32 %threads, i32 1)",
                "  %all = zext i32 %positive to i64",
                f"  %pool = call ptr @graphc_pool_create(i64 %all, i64 {SPIN_NANOSECONDS})",
                "  store ptr %pool, ptr %context",
            ]
        lines += ["  br label %out", "out:", "  ret ptr %context"]
        declared += "\ndeclare i32 @llvm.smax.i32(i32, i32)"
        return "\n".join([
            declared, f"define ptr @{self.name}_create(i32 signext %threads) #0 {{", *lines, "}",
        ])  # fmt: skip

    def _destroy(self) -> str:
        free = "_aligned_free" if self.platform.system == "windows" else "free"
        declared, ending = [f"declare void @{free}(ptr)"], [f"  call void @{free}(ptr %context)"]
        if self.platform.has_threads:  # which takes a pool that is null
            declared.append("declare void @graphc_pool_destroy(ptr)")
            ending = ["  %pool = load ptr, ptr %context",
                      "  call void @graphc_pool_destroy(ptr %pool)", *ending]  # fmt: skip
        return "\n".join([
            *declared, f"define void @{self.name}_destroy(ptr %context) #0 {{",
            "  %none = icmp eq ptr %context, null",
            "  br i1 %none, label %out, label %end",
            "end:", *ending, "  br label %out", "out:", "  ret void", "}",
        ])  # fmt: skip

    def _place(self) -> str:
        word = f"i{self.platform.pointer_bits}"
        return f"""define ptr @{self.name}_place(ptr %memory) #0 {{
  %address = ptrtoint ptr %memory to {word}
  %odd = and {word} %address, {ALIGNMENT - 1}
  %aligned = icmp eq {word} %odd, 0
  %some = icmp ne ptr %memory, null
  %fit = and i1 %aligned, %some
  br i1 %fit, label %fill, label %refuse
fill:
  store ptr null, ptr %memory
  %sentence = getelementptr i8, ptr %memory, i64 {_POOL_BYTES}
  store i8 0, ptr %sentence
  ret ptr %memory
refuse:
  ret ptr null
}}"""

    def _error(self) -> str:
        return f"""{_string("graphc_no_context", "no context")}
define ptr @{self.name}_error(ptr %context) #0 {{
  %none = icmp eq ptr %context, null
  %sentence = getelementptr i8, ptr %context, i64 {_POOL_BYTES}
  %told = select i1 %none, ptr @graphc_no_context, ptr %sentence
  ret ptr %told
}}"""

    # ---------------------------------------------------------------- runs

    def _run(self) -> str:
        outputs, checks = len(self.image.told), len(self.image.checks)
        sized = ", ptr %sizes" if self.sizes else ""
        given = ["context", "inputs", "outputs", *(["sizes"] if self.sizes else [])]
        head = (
            f"define signext i32 @{self.name}_run(ptr %context{sized}, ptr %inputs, ptr %outputs)"
        )
        lines = [f"{head} #0 {{", *_refusing(given), *self._checked(self.image.sizes)]
        lines += [
            f"  %all = alloca [{outputs + 1} x ptr], align 16",
            f"  %keys = alloca [{max(checks, 1)} x i64], align 64",
            "  %cells = alloca [6 x ptr], align 16",
        ]
        for n in range(outputs):
            lines += [
                f"  %from{n} = getelementptr ptr, ptr %outputs, i64 {n}",
                f"  %output{n} = load ptr, ptr %from{n}",
                f"  %to{n} = getelementptr ptr, ptr %all, i64 {n}",
                f"  store ptr %output{n}, ptr %to{n}",
            ]
        lines += [
            f"  %last = getelementptr ptr, ptr %all, i64 {outputs}",
            "  store ptr %keys, ptr %last",
            "  %pool = load ptr, ptr %context",
            f"  %arena = getelementptr i8, ptr %context, i64 {arena_offset(self.image)}",
        ]
        cells = ["%inputs", "%all", "%arena", "@graphc_constants", "%pool"]
        if self.sizes:
            lines += self._values()
            cells.append("%values")
        for n, cell in enumerate(cells):
            lines += [
                f"  %cell{n} = getelementptr ptr, ptr %cells, i64 {n}",
                f"  store ptr {cell}, ptr %cell{n}",
            ]
        lines.append(f"  call void @{INVOKE}(ptr %cells)")
        for n in range(len(self.image.sizes), len(self.sizes)):
            lines += [
                f"  %told{n}.a = getelementptr i64, ptr %values, i64 {n}",
                f"  %told{n} = load i64, ptr %told{n}.a",
                f"  %field{n} = getelementptr i64, ptr %sizes, i64 {n}",
                f"  store i64 %told{n}, ptr %field{n}",
            ]
        if checks:
            lines += [
                f"  %sentence = getelementptr i8, ptr %context, i64 {_POOL_BYTES}",
                f"  %status = call i32 @graphc_judge(ptr %sentence, ptr %keys, ptr @graphc_checks, "
                f"i64 {checks})",
                "  ret i32 %status",
            ]
        else:
            lines.append("  ret i32 0")
        return "\n".join([*lines, *_refusals(), "}"])

    def _values(self) -> list[str]:
        """The sizes in an array of the code's own; those that it decides are 0."""
        lines = [f"  %values = alloca [{len(self.sizes)} x i64], align 64"]
        for n in range(len(self.sizes)):
            value = "0"
            if n < len(self.image.sizes):
                value = f"%given{n}"
                lines.append(f"  %given{n}.a = getelementptr i64, ptr %sizes, i64 {n}")
                lines.append(f"  {value} = load i64, ptr %given{n}.a")
            lines.append(f"  %value{n} = getelementptr i64, ptr %values, i64 {n}")
            lines.append(f"  store i64 {value}, ptr %value{n}")
        return lines

    def _checked(self, sizes: Sequence[Sym]) -> list[str]:
        """Lines that refuse sizes out of their bounds; `sizes` are the first of all."""
        lines = []
        for n, size in enumerate(sizes):
            lines += [
                f"  %size{n}.p = getelementptr i64, ptr %sizes, i64 {n}",
                f"  %size{n}.v = load i64, ptr %size{n}.p",
                f"  %size{n}.above = sub i64 %size{n}.v, {size.lo}",
                f"  %size{n}.fits = icmp ule i64 %size{n}.above, {_span(size)}",
                f"  br i1 %size{n}.fits, label %within{n}, label %beyond",
                f"within{n}:",
            ]
        return lines

    def _shape(self, number: int) -> str:
        """The function that tells the shape of an output."""
        dims: Sequence[Dim] = self.image.told[number][1].dims
        declarations = Declarations()
        lines = [*_refusing(["sizes", "shape"]), *self._checked(self.sizes)]
        numbers = Numbers(lines, self.sizes, declarations)
        for axis, dim in enumerate(dims):
            value = numbers.value(dim)
            lines.append(f"  %axis{axis} = getelementptr i64, ptr %shape, i64 {axis}")
            lines.append(f"  store i64 {value}, ptr %axis{axis}")
        head = f"define signext i32 @{self.name}_output_shape_{number}(ptr %sizes, ptr %shape)"
        return "\n".join([
            *declarations.lines, f"{head} #0 {{", *lines, "  ret i32 0", *_refusals(), "}",
        ])  # fmt: skip


def _refusing(given: Sequence[str]) -> list[str]:
    """Lines that refuse arguments which are null."""
    lines = []
    for name in given:
        lines += [
            f"  %no.{name} = icmp eq ptr %{name}, null",
            f"  br i1 %no.{name}, label %missing, label %have.{name}",
            f"have.{name}:",
        ]
    return lines


def _refusals() -> list[str]:
    return [
        "missing:", f"  ret i32 {NULL}", "beyond:", f"  ret i32 {OUT_OF_BOUNDS}",
    ]  # fmt: skip


def _span(size: Sym) -> int:
    """How far a size may be above its least."""
    return largest(size) - size.lo


def _low(check: Check) -> int:
    return _signed(check.low % WHOLE)


def _signed(value: int) -> int:
    """The same 64 bits as LLVM reads them from text."""
    return value - WHOLE if value >= WHOLE // 2 else value


def _array(name: str, kind: str, items: Sequence[str]) -> str:
    """A table, which has a row even if it is empty."""
    if not items:
        return f"@{name} = internal constant [1 x {kind}] zeroinitializer"
    return f"@{name} = internal constant [{len(items)} x {kind}] [{', '.join(items)}]"


def _string(name: str, text: str) -> str:
    data = [*text.encode(), 0]
    return f'@{name} = internal constant [{len(data)} x i8] c"{literal(bytes(data))}"'


def literal(data: bytes) -> str:
    """Bytes between the quotes of a constant of LLVM IR."""
    return "".join(f"\\{byte:02X}" for byte in data)


# What checks say of the first value that is forbidden: 1 and a sentence, or 0.
_TELL = """define internal i32 @graphc_judge(ptr %into, ptr %keys, ptr %checks, i64 %count) #0 {
entry:
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %n.next, %fine ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %look, label %good
look:
  %key.p = getelementptr i64, ptr %keys, i64 %n
  %key = load i64, ptr %key.p
  %check = getelementptr { i64, i64, ptr, ptr }, ptr %checks, i64 %n
  %most.p = getelementptr { i64, i64, ptr, ptr }, ptr %check, i32 0, i32 1
  %most = load i64, ptr %most.p
  %bad = icmp ugt i64 %key, %most
  br i1 %bad, label %tell, label %fine
fine:
  %n.next = add i64 %n, 1
  br label %next
tell:
  %low = load i64, ptr %check
  %value = add i64 %low, %key
  %before.p = getelementptr { i64, i64, ptr, ptr }, ptr %check, i32 0, i32 2
  %before = load ptr, ptr %before.p
  %after.p = getelementptr { i64, i64, ptr, ptr }, ptr %check, i32 0, i32 3
  %after = load ptr, ptr %after.p
  %end = call ptr @graphc_copied(ptr %into, ptr %before)
  %plain = icmp eq ptr %after, null
  br i1 %plain, label %said, label %number
number:
  %rest = call ptr @graphc_decimal(ptr %end, i64 %value)
  %last = call ptr @graphc_copied(ptr %rest, ptr %after)
  br label %said
said:
  ret i32 1
good:
  ret i32 0
}

; Copies a text with the zero at its end; where that is.
define internal ptr @graphc_copied(ptr %to, ptr %from) #0 {
entry:
  br label %next
next:
  %t = phi ptr [ %to, %entry ], [ %t.next, %more ]
  %f = phi ptr [ %from, %entry ], [ %f.next, %more ]
  %c = load i8, ptr %f
  store i8 %c, ptr %t
  %end = icmp eq i8 %c, 0
  br i1 %end, label %done, label %more
more:
  %t.next = getelementptr i8, ptr %t, i64 1
  %f.next = getelementptr i8, ptr %f, i64 1
  br label %next
done:
  ret ptr %t
}

; Writes a number; where it ends.
define internal ptr @graphc_decimal(ptr %to, i64 %value) #0 {
entry:
  %digits = alloca [24 x i8]
  %last = getelementptr i8, ptr %digits, i64 23
  store i8 0, ptr %last
  %negative = icmp slt i64 %value, 0
  %minus = sub i64 0, %value
  %size = select i1 %negative, i64 %minus, i64 %value
  br label %next
next:
  %left = phi i64 [ %size, %entry ], [ %quotient, %next ]
  %at = phi ptr [ %last, %entry ], [ %place, %next ]
  %quotient = udiv i64 %left, 10
  %ten = mul i64 %quotient, 10
  %digit = sub i64 %left, %ten
  %short = trunc i64 %digit to i8
  %char = add i8 %short, 48
  %place = getelementptr i8, ptr %at, i64 -1
  store i8 %char, ptr %place
  %some = icmp ne i64 %quotient, 0
  br i1 %some, label %next, label %sign
sign:
  store i8 45, ptr %to
  %after = getelementptr i8, ptr %to, i64 1
  %start = select i1 %negative, ptr %after, ptr %to
  %end = call ptr @graphc_copied(ptr %start, ptr %place)
  ret ptr %end
}
"""
