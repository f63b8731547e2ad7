"""Machine code (SASS) of kernels: their instructions, loops, and what they take, by nvdisasm."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from graphc.backends.cuda.nvcc import find_nvcc
from graphc.backends.cuda.ptx.flow import post_dominators
from graphc.errors import InternalError, UnsupportedError

INSTALL = "pip install nvidia-cuda-nvdisasm, or set NVDISASM to the path of nvdisasm"
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_SECTION = re.compile(r"\s*\.section\s+([^,]+),")
_TARGET = re.compile(r"`\((\.L[\w.]*)\)")
OUTSIDE, UNREACHED = -1, -2  # in place of the number of a loop
RESERVED = 1024  # bytes of shared memory of a block that the system takes, from sm_90 on
JUMPS, ENDS = ("BRA", "JMP"), ("EXIT", "RET", "BRX", "JMX")


def find_nvdisasm() -> str | None:
    """The path of nvdisasm: $NVDISASM, what the PATH has, beside nvcc, or PyPI's package."""
    given = os.environ.get("NVDISASM")
    if given:
        return shutil.which(given)
    nvcc = find_nvcc()
    beside = [Path(nvcc).resolve().parent / "nvdisasm"] if nvcc else []
    named = (str(path) for path in (*beside, *_packaged()))
    return shutil.which("nvdisasm") or next((p for p in named if shutil.which(p)), None)


def required_nvdisasm() -> str:
    """The path of nvdisasm; UnsupportedError, which says how to get it, if there is none."""
    tool = find_nvdisasm()
    if tool is None:
        raise UnsupportedError(f"nvdisasm, which reads machine code, was not found: {INSTALL}")
    return tool


def _packaged() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(folder).glob("*/bin/nvdisasm"), reverse=True)


@dataclass(frozen=True)
class Instruction:
    """An instruction: where it is, the predicate that guards it (or none), its opcode with all
    modifiers, and its operands as text."""

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".")[0]

    @property
    def bytes(self) -> int:
        """Bytes that each lane moves, of an instruction that accesses memory."""
        width = re.search(r"\.(?:U|S)?(8|16|32|64|128|256)(?:\.|$)", self.opcode)
        return int(width[1]) // 8 if width else 4


@dataclass(frozen=True)
class Loop:
    """A natural loop: positions of its instructions, those of loops within it among them."""

    body: frozenset[int]


@dataclass
class Sass:
    """A kernel: its instructions, and the labels among them by position; registers of a thread,
    bytes of static shared memory of a block and of stack of a thread."""

    name: str
    instructions: list[Instruction]
    labels: dict[str, int]
    registers: int = 0
    shared: int = 0
    stack: int = 0

    @property
    def local_accesses(self) -> int:
        """Loads and stores of local memory: spilled registers, and arrays that are indexed."""
        return sum(i.base in ("LDL", "STL") for i in self.instructions)

    @cached_property
    def loops(self) -> list[Loop]:
        """Natural loops, outer ones before those within them."""
        blocks, followers = self._blocks()
        before: list[list[int]] = [[] for _ in followers]
        for block, after in enumerate(followers):
            for follower in after:
                before[follower].append(block)
        parents = _dominators(followers, before)
        bodies: dict[int, set[int]] = {}
        for block, after in enumerate(followers):
            for header in after:
                if parents[block] is not None and _dominates(parents, header, block):
                    body = bodies.setdefault(header, {header})
                    _reach(body, block, before)
        loops = [
            frozenset(n for b in body for n in range(*blocks[b]))
            for _, body in sorted(bodies.items())
        ]
        self._unreached = frozenset(
            n for b, p in enumerate(parents) if p is None for n in range(*blocks[b])
        )
        return [Loop(body) for body in sorted(loops, key=lambda body: (-len(body), min(body)))]

    @cached_property
    def places(self) -> list[int]:
        """For each instruction the number of the innermost loop it is in, OUTSIDE, or UNREACHED."""
        places = [OUTSIDE] * len(self.instructions)
        for number, loop in enumerate(self.loops):
            for n in loop.body:
                places[n] = number
        return [UNREACHED if n in self._unreached else p for n, p in enumerate(places)]

    def _blocks(self) -> tuple[list[tuple[int, int]], list[list[int]]]:
        """First positions and ends of basic blocks, and those that follow each."""
        count = len(self.instructions)
        jumps = {n: t for n, t in enumerate(map(self._target, self.instructions)) if t is not None}
        stops = {n for n, i in enumerate(self.instructions) if i.base in ENDS}
        leaders = {0, *jumps.values(), *(n + 1 for n in (*jumps, *stops))}
        firsts = sorted(n for n in leaders if n < count)
        number = {first: block for block, first in enumerate(firsts)}
        blocks = list(zip(firsts, [*firsts[1:], count]))
        followers = []
        for _, end in blocks:
            last = self.instructions[end - 1]
            leaves = (end - 1 in jumps and not _may_go_on(last)) or (
                end - 1 in stops and not last.guard
            )
            after = [] if leaves or end == count else [number[end]]
            if end - 1 in jumps and jumps[end - 1] < count:
                after.append(number[jumps[end - 1]])
            followers.append(after)
        return blocks, followers

    def _target(self, instruction: Instruction) -> int | None:
        """Where a jump leads."""
        target = _TARGET.search(instruction.operands)
        if instruction.base not in JUMPS or target is None:
            return None
        return self.labels.get(target[1])


def _may_go_on(jump: Instruction) -> bool:
    """Whether what follows a jump may be next: it is guarded, or reads a predicate itself."""
    before = jump.operands.split("`")[0].strip(" ,")
    return bool(jump.guard) or bool(before) or ".DIV" in jump.opcode


def _dominators(followers: list[list[int]], before: list[list[int]]) -> list[int | None]:
    """Immediate dominators, by post-dominators of the reversed graph; the first block's is itself,
    and blocks that are never reached have none."""
    end = len(followers)
    reversed_graph = [list(b) for b in before]
    reversed_graph[0].append(end)  # the first block is where all ways back end
    return post_dominators(reversed_graph, end)


def _dominates(parents: list[int | None], header: int, block: int) -> bool:
    at: int | None = block
    while at is not None and at < len(parents):
        if at == header:
            return True
        at = parents[at]
    return False


def _reach(body: set[int], block: int, before: list[list[int]]) -> None:
    """Adds the blocks from which one is reached without those that are there already."""
    waiting = [block]
    while waiting:
        at = waiting.pop()
        if at not in body:
            body.add(at)
            waiting += before[at]


def disassembled(cubin: bytes) -> dict[str, Sass]:
    """The kernels of a cubin by name. UnsupportedError without nvdisasm, InternalError, with what
    it says, if it does not read the file."""
    tool = required_nvdisasm()
    with tempfile.TemporaryDirectory(prefix="graphc-sass-") as folder:
        path = Path(folder, "kernels.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise InternalError(f"nvdisasm failed:\n{(done.stdout + done.stderr).strip()[:2000]}")
    return parsed(done.stdout)


def parsed(text: str) -> dict[str, Sass]:
    """Kernels from what nvdisasm prints."""
    kernels: dict[str, Sass] = {}
    shared: dict[str, int] = {}
    facts: dict[tuple[str, str], int] = {}
    section = attribute = index = ""
    for line in text.splitlines():
        begins = _SECTION.match(line)
        if begins:
            section = begins[1]
            if section.startswith(".text."):
                kernels[section[6:]] = Sass(section[6:], [], {})
        elif section.startswith(".text."):
            _add(kernels[section[6:]], line)
        elif section.startswith(".nv.shared.") and ".zero" in line:
            shared[section[11:]] = shared.get(section[11:], 0) + int(line.split()[-1], 0)
        elif section == ".nv.info":
            attribute = line.split(":")[-1].strip() if "nvinfo" in line else attribute
            named = re.search(r"index@\(([^)]*)\)", line)
            index = named[1] if named else index
            word = re.search(r"\.word\s+(0x[0-9a-f]+)", line)
            if word:
                facts[attribute, index] = int(word[1], 16)
    reserves = "reserved.0" in shared  # within the static memory of each kernel
    for name, kernel in kernels.items():
        kernel.registers = facts.get(("EIATTR_REGCOUNT", name), 0)
        kernel.stack = facts.get(("EIATTR_FRAME_SIZE", name), 0)
        kernel.shared = max(shared.get(name, 0) - (RESERVED if reserves else 0), 0)
    return kernels


def _add(kernel: Sass, line: str) -> None:
    instruction = _INSTRUCTION.match(line)
    if instruction:
        address, guard, opcode, operands = instruction.groups()
        made = Instruction(int(address, 16), guard or "", opcode, operands.strip())
        kernel.instructions.append(made)
    elif line.rstrip().endswith(":"):
        kernel.labels[line.strip()[:-1]] = len(kernel.instructions)
