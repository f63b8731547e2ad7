"""A program whose steps are timed: a second function that runs them, and reads a counter between.

    void graphc_invoke_timed(ptr cells, ptr timing)

The counter is the processor's own, which costs some nanoseconds to read. One reading ends a step
and begins the next, so that the times of all steps add up to that of the call. `timing` is an array
of i64 that the caller clears: the last reading, how many readings are in the log, how many fit, and
the first reading; for each step, in the order in which steps end (`ending`), the counts it took and
how often it ran; then the log, a step and a reading each time. A loop or a branch is a step that
takes what is left when those inside it have ended. Steps that run on several threads are timed on
the calling one.
"""

from __future__ import annotations

from graphc.backends.llvm_cpu.emit_kernel import Declarations, Phase
from graphc.backends.llvm_cpu.emit_program import Steps
from graphc.backends.llvm_cpu.target import CpuTarget
from graphc.errors import UnsupportedError
from graphc.ir.program import Program, ending

INVOKE_TIMED = "graphc_invoke_timed"
HEADER = 4  # cells before those of steps
LAST, LOGGED, ROOM, BEGIN = range(HEADER)
COUNTERS = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}
"""What reads a counter of constant rate, by architecture."""

NOTE = """\
declare i64 @{counter}()

define internal void @graphc_note(ptr %timing, i64 %step, i64 %steps) #0 {{
  %now = call i64 @{counter}()
  %last = load i64, ptr %timing
  store i64 %now, ptr %timing
  %taken = sub i64 %now, %last
  %twice = shl i64 %step, 1
  %cell = add i64 %twice, {header}
  %sum.a = getelementptr i64, ptr %timing, i64 %cell
  %sum = load i64, ptr %sum.a
  %longer = add i64 %sum, %taken
  store i64 %longer, ptr %sum.a
  %count.a = getelementptr i64, ptr %sum.a, i64 1
  %count = load i64, ptr %count.a
  %more = add i64 %count, 1
  store i64 %more, ptr %count.a
  %logged.a = getelementptr i64, ptr %timing, i64 {logged}
  %logged = load i64, ptr %logged.a
  %room.a = getelementptr i64, ptr %timing, i64 {room}
  %room = load i64, ptr %room.a
  %fits = icmp slt i64 %logged, %room
  br i1 %fits, label %log, label %done
log:
  %next = add i64 %logged, 1
  store i64 %next, ptr %logged.a
  %entry = add i64 %logged, %steps
  %entry2 = shl i64 %entry, 1
  %entry3 = add i64 %entry2, {header}
  %log.a = getelementptr i64, ptr %timing, i64 %entry3
  store i64 %step, ptr %log.a
  %log.b = getelementptr i64, ptr %log.a, i64 1
  store i64 %now, ptr %log.b
  br label %done
done:
  ret void
}}
"""

COST = """\
define i64 @graphc_counter() #0 {{
  %now = call i64 @{counter}()
  ret i64 %now
}}

define void @graphc_notes(ptr %timing, i64 %times) #0 {{
entry:
  %now = call i64 @{counter}()
  store i64 %now, ptr %timing
  br label %loop
loop:
  %n = phi i64 [0, %entry], [%next, %loop]
  call void @graphc_note(ptr %timing, i64 0, i64 1)
  %next = add i64 %n, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}}

attributes #0 = {{ nounwind }}
"""


class TimedSteps(Steps):
    """Emits the functions that run steps and time them, by a counter (`counter_of`)."""

    run, invoked = "graphc_run_timed", INVOKE_TIMED
    prefix = "graphc_timed_"
    more = ("timing",)

    def __init__(
        self,
        program: Program,
        phases: dict[str, list[Phase]],
        declarations: Declarations,
        counter: str,
    ):
        super().__init__(program, phases, declarations)
        self.counter, self.done, self.all = counter, 0, len(list(ending(program.steps)))

    def main(self) -> list[str]:
        return [note_text(self.counter), *super().main()]

    def begun(self) -> list[str]:
        return [
            f"  %now = call i64 @{self.counter}()",
            "  store i64 %now, ptr %timing",
            f"  %begin = getelementptr i64, ptr %timing, i64 {BEGIN}",
            "  store i64 %now, ptr %begin",
        ]

    def ended(self) -> list[str]:
        self.done += 1
        return [f"  call void @graphc_note(ptr %timing, i64 {self.done - 1}, i64 {self.all})"]


def counter_of(target: CpuTarget) -> str:
    """The function of LLVM that reads a counter of constant rate."""
    if target.arch not in COUNTERS:
        known = " and ".join(COUNTERS)
        raise UnsupportedError(f"steps are timed on {known}; found {target.arch}")
    return COUNTERS[target.arch]


def note_text(counter: str) -> str:
    """The function that takes a reading."""
    return NOTE.format(counter=counter, header=HEADER, logged=LOGGED, room=ROOM)


def cost_text(counter: str) -> str:
    """A module of functions by which readings are understood: one that gives what the counter says,
    and one that takes readings in a row (the only step is number 0)."""
    return note_text(counter) + COST.format(counter=counter)
