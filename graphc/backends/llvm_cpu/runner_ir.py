"""A program with a process of its own, as LLVM IR: what apart.py runs.

The process reads the sizes of a run and the inputs from its standard input, runs the program, and
writes the sizes and the outputs to its standard output. Each array has room for the most that it
can hold, at a multiple of ALIGNMENT. WebAssembly has neither files nor processes: its host asks for
the address of the buffers, and writes and reads there.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.llvm_cpu.image import INVOKE, Image
from graphc.backends.llvm_cpu.interface_ir import WEIGHTS
from graphc.backends.llvm_cpu.triples import Platform
from graphc.ir.alignment import ALIGNMENT
from graphc.records import dataclass

EXPORTS = ("main", "graphc_run_apart", "graphc_taken", "graphc_given")


@dataclass(frozen=True)
class Layout:
    """Where arrays lie in what a run takes and in what it gives, and the bytes of both; sizes come
    first in both."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    taken: int
    given: int


def layout_of(image: Image) -> Layout:
    """The places of a run's arrays."""
    head = _rounded(8 * (len(image.sizes) + len(image.counts)))
    inputs, taken = _places([t.most_bytes for _, t in image.inputs], head)
    outputs, given = _places([t.most_bytes for _, t in image.outputs], head)
    return Layout(inputs, outputs, taken, given)


def _places(sizes: Sequence[int], start: int) -> tuple[tuple[int, ...], int]:
    places = []
    for size in sizes:
        places.append(start)
        start += _rounded(size)
    return tuple(places), max(start, ALIGNMENT)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def runner_ir(image: Image, offsets: Sequence[int], platform: Platform) -> str:
    """The module; constants lie `offsets` bytes after WEIGHTS."""
    layout = layout_of(image)
    sized = bool(image.sizes or image.counts)
    lines = [f"@{WEIGHTS} = external global i8"] if offsets else []
    lines += [
        f"declare void @{INVOKE}(ptr)",
        _buffer("taken", layout.taken),
        _buffer("given", layout.given),
        _buffer("arena", max(image.arena_bytes, ALIGNMENT)),
        _table("inputs", "taken.bytes", layout.inputs),
        _table("outputs", "given.bytes", layout.outputs),
        _table("constants", WEIGHTS, offsets),
        "define i32 @graphc_run_apart() {",
        f"  %cells = alloca [{5 + sized} x ptr]",
    ]
    cells = ["@inputs", "@outputs", "@arena.bytes", "@constants", "null"]
    if sized:
        cells.append("@given.bytes")
        for n in range(len(image.sizes)):
            lines += [
                f"  %from{n} = getelementptr i64, ptr @taken.bytes, i64 {n}",
                f"  %size{n} = load i64, ptr %from{n}",
                f"  %to{n} = getelementptr i64, ptr @given.bytes, i64 {n}",
                f"  store i64 %size{n}, ptr %to{n}",
            ]
    for n, cell in enumerate(cells):
        lines += [
            f"  %cell{n} = getelementptr ptr, ptr %cells, i64 {n}",
            f"  store ptr {cell}, ptr %cell{n}",
        ]
    lines += [f"  call void @{INVOKE}(ptr %cells)", "  ret i32 0", "}"]
    if platform.has_libc:
        word = f"i{platform.pointer_bits}"
        lines.append(_MAIN.replace("WORD", word).replace("TAKEN", str(layout.taken))
                     .replace("GIVEN", str(layout.given)))  # fmt: skip
    else:
        for name in ("taken", "given"):
            lines.append(f"define ptr @graphc_{name}() {{\n  ret ptr @{name}.bytes\n}}")
    return "\n".join(lines) + "\n"


def _buffer(name: str, size: int) -> str:
    return f"@{name}.bytes = internal global [{size} x i8] zeroinitializer, align {ALIGNMENT}"


def _table(name: str, base: str, offsets: Sequence[int]) -> str:
    places = [f"ptr getelementptr (i8, ptr @{base}, i64 {offset})" for offset in offsets]
    inner = f"[{', '.join(places)}]" if places else "zeroinitializer"
    return f"@{name} = internal constant [{max(len(places), 1)} x ptr] {inner}"


_MAIN = """declare WORD @read(i32, ptr, WORD)
declare WORD @write(i32, ptr, WORD)
define i32 @main() {
entry:
  br label %reading
reading:
  %at = phi WORD [ 0, %entry ], [ %at.next, %some ]
  %missing = sub WORD TAKEN, %at
  %there = icmp eq WORD %missing, 0
  br i1 %there, label %run, label %more
more:
  %to = getelementptr i8, ptr @taken.bytes, WORD %at
  %got = call WORD @read(i32 0, ptr %to, WORD %missing)
  %bad = icmp slt WORD %got, 1
  br i1 %bad, label %fail, label %some
some:
  %at.next = add WORD %at, %got
  br label %reading
run:
  %status = call i32 @graphc_run_apart()
  br label %writing
writing:
  %out = phi WORD [ 0, %run ], [ %out.next, %sent ]
  %left = sub WORD GIVEN, %out
  %done = icmp eq WORD %left, 0
  br i1 %done, label %good, label %send
send:
  %from = getelementptr i8, ptr @given.bytes, WORD %out
  %put = call WORD @write(i32 1, ptr %from, WORD %left)
  %worse = icmp slt WORD %put, 1
  br i1 %worse, label %fail, label %sent
sent:
  %out.next = add WORD %out, %put
  br label %writing
good:
  ret i32 0
fail:
  ret i32 3
}
"""
