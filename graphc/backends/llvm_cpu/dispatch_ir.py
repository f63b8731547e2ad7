"""One library with code for several processors, of which it takes the best when it is loaded.

Code of each level has functions of its own, NAME_LEVEL_run beside NAME_run. Those that callers know
ask, once, which levels the processor has, and go on to the greatest. Where it has none, there is no
context (NULL).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.backends.llvm_cpu.interface_ir import NULL, Interface, literal
from graphc.backends.llvm_cpu.processors.detection import AARCH64_LINUX, X86, Detection
from graphc.backends.llvm_cpu.processors.table import Level
from graphc.backends.llvm_cpu.triples import Platform
from graphc.errors import UnsupportedError

UNKNOWN, NONE = -2, -1  # in place of the number of a level
_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "create": ("ptr", "i32 signext %threads"),
    "destroy": ("void", "ptr %context"),
    "place": ("ptr", "ptr %memory"),
    "error": ("ptr", "ptr %context"),
}  # fmt: skip


def detection_of(platform: Platform) -> Detection:
    """How a platform tells what its processor has. UnsupportedError if it does not."""
    if platform.architecture.name == "x86_64":
        return X86
    if platform.architecture.name == "aarch64" and platform.system == "linux":
        return AARCH64_LINUX
    raise UnsupportedError(
        f"several processors in one library: needs x86-64, or AArch64 with Linux, found "
        f"{platform.name}; write a file for each --mcpu"
    )


def exports_of(interface: Interface) -> list[str]:
    """What others may call: what one level has, and the function that tells the level."""
    return [*interface.exports, f"{interface.name}_processor"]


def dispatcher(interface: Interface, levels: Sequence[tuple[str, str, Level]]) -> str:
    """The functions of `interface`, which go on to those of `levels`: each has a name, what its
    functions begin with, and the level itself; from least to most."""
    detection = detection_of(interface.platform)
    parts = [
        f"@graphc_chosen = internal global i32 {UNKNOWN}",
        detection.functions,
        _chosen(),
        _find_level(detection, [level for _, _, level in levels]),
        _processor(interface.name, [name for name, _, _ in levels]),
    ]
    for export in interface.exports:
        part = export.removeprefix(f"{interface.name}_")
        parts.append(_forwarding(interface, part, [prefix for _, prefix, _ in levels]))
    return "\n".join([*parts, "attributes #0 = { nounwind }"]) + "\n"


def _chosen() -> str:
    """The level, which is found out once; threads that do so at once find the same."""
    return f"""define internal i32 @graphc_level() #0 {{
  %known = load atomic i32, ptr @graphc_chosen monotonic, align 4
  %new = icmp eq i32 %known, {UNKNOWN}
  br i1 %new, label %ask, label %done
ask:
  %told = call i32 @graphc_find_level()
  store atomic i32 %told, ptr @graphc_chosen monotonic, align 4
  br label %done
done:
  %level = phi i32 [ %known, %0 ], [ %told, %ask ]
  ret i32 %level
}}"""


def _find_level(detection: Detection, levels: Sequence[Level]) -> str:
    lines = ["define internal i32 @graphc_find_level() #0 {"]
    lines += [f"  {line}" for line in detection.words]
    for number in reversed(range(len(levels))):
        both = "true"
        for word, mask in sorted(detection.masks(levels[number]).items()):
            at = f"{number}.{word}"
            lines += [
                f"  %set{at} = and i64 %w{word}, {mask}",
                f"  %all{at} = icmp eq i64 %set{at}, {mask}",
                f"  %has{at} = and i1 {both}, %all{at}",
            ]
            both = f"%has{at}"
        lines += [
            f"  br i1 {both}, label %take{number}, label %less{number}",
            f"take{number}:", f"  ret i32 {number}", f"less{number}:",
        ]  # fmt: skip
    return "\n".join([*lines, f"  ret i32 {NONE}", "}"])


def _processor(name: str, levels: Sequence[str]) -> str:
    texts = [
        f'@graphc_level_{n} = internal constant [{len(level) + 1} x i8] '
        f'c"{literal(level.encode())}\\00"'
        for n, level in enumerate(levels)
    ]  # fmt: skip
    values = [f"ptr @graphc_level_{n}" for n in range(len(levels))]
    return "\n".join([*texts, *_switched(f"ptr @{name}_processor()", "ptr", values)])


def _forwarding(interface: Interface, part: str, prefixes: Sequence[str]) -> str:
    """A function that calls the one of the level."""
    sized = ", ptr %sizes" if interface.sizes else ""
    result, given = _ARGUMENTS.get(part, ("signext i32", "ptr %sizes, ptr %shape"))
    if part == "run":
        given = f"ptr %context{sized}, ptr %inputs, ptr %outputs"
    types = ", ".join(x.rsplit(" ", 1)[0] for x in given.split(", "))
    declared = [f"declare {result} @{prefix}_{part}({types})" for prefix in prefixes]
    calls = [f"call {result} @{prefix}_{part}({given})" for prefix in prefixes]
    head = f"{result} @{interface.name}_{part}({given})"
    return "\n".join([*declared, *_switched(head, result, calls)])


def _switched(head: str, result: str, values: Sequence[str]) -> list[str]:
    """A function that gives the value, or makes the call, of the level."""
    plain = result.removeprefix("signext ")
    cases = " ".join(f"i32 {n}, label %is{n}" for n in range(len(values)))
    lines = [
        f"define {head} #0 {{",
        "  %level = call i32 @graphc_level()",
        f"  switch i32 %level, label %none [ {cases} ]",
    ]
    for n, value in enumerate(values):
        lines.append(f"is{n}:")
        if value.startswith("call") and plain != "void":
            lines.append(f"  %value{n} = {value}")
            value = f"{plain} %value{n}"
        elif value.startswith("call"):
            lines.append(f"  {value}")
        lines.append("  ret void" if plain == "void" else f"  ret {value}")
    none = {"void": "void", "ptr": "ptr null", "i32": f"i32 {NULL}"}[plain]
    return [*lines, "none:", f"  ret {none}", "}"]
