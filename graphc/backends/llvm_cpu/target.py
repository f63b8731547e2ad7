"""What CPU code is compiled for: instruction set, vector registers, cache sizes.

A `CpuTarget` is plain data that strategies read to choose tiles, and from which the LLVM target
machine is made: that of this machine, or of a platform (triples.py) and a processor of its tables
(processors/). Invariants: `vector_bits` never exceeds what `features` can hold in one register,
and equal targets give equal machine code, so `CpuTarget.key` may name entries of a cache.

What LLVM says of this machine's CPU is kept in the disk cache, so that processes which compile
nothing need not load LLVM. The key is what the system says of the CPU, and of the LLVM installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.backends.cache import cache_key, default_cache
from graphc.backends.llvm_cpu.processors import ALIASES, ARCHITECTURES
from graphc.backends.llvm_cpu.processors.table import Level
from graphc.backends.llvm_cpu.triples import platform_of
from graphc.errors import ModelError
from graphc.files import installed
from graphc.records import dataclass

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_SYSFS_CPU = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


L2_BYTES = 512 << 10  # where nothing is known


@dataclass(frozen=True)
class CpuTarget:
    """A CPU: `features` are the enabled LLVM feature names, `vector_bits` 0 means scalar code, and
    `l2_bytes` is the second level of cache that one core sees."""

    triple: str
    cpu: str
    features: frozenset[str]
    disabled: frozenset[str]
    vector_bits: int
    vector_registers: int
    l2_bytes: int = L2_BYTES

    def lanes(self, element_bytes: int) -> int:
        """Elements of one vector register; 1 where there are no vectors."""
        return max(1, self.vector_bits // (8 * element_bytes))

    @property
    def arch(self) -> str:
        return self.triple.split("-")[0]

    @property
    def instructions(self) -> frozenset[str]:
        """The features, and the instructions of `Machine` that come with them."""
        table = ARCHITECTURES.get(ALIASES.get(self.arch, self.arch))
        return self.features | (table.instructions(self.features) if table else frozenset())

    @property
    def feature_string(self) -> str:
        """The features as LLVM's comma-separated list, sorted."""
        return ",".join(
            [f"+{x}" for x in sorted(self.features)] + [f"-{x}" for x in sorted(self.disabled)]
        )

    @cached_property
    def key(self) -> str:
        """Everything that machine code depends on, the version of LLVM included."""
        return f"llvm-{_told_by_llvm()['version']} {self.triple} {self.cpu} {self.feature_string}"

    @property
    def runs_here(self) -> bool:
        """Whether this process's CPU can execute code compiled for the target."""
        host = host_target()
        return self.arch == host.arch and self.features <= host.features


def host_target() -> CpuTarget:
    """The CPU this process runs on."""
    return _host_target()


@lru_cache(maxsize=1)
def _host_target() -> CpuTarget:
    told = _told_by_llvm()
    enabled, disabled = frozenset(told["enabled"]), frozenset(told["disabled"])
    triple = told["triple"]
    bits, registers = _vector_file(triple.split("-")[0], enabled)
    return CpuTarget(triple, told["cpu"], enabled, disabled, bits, registers, _l2_bytes())


@lru_cache(maxsize=1)
def _told_by_llvm() -> dict[str, Any]:
    """LLVM's version, and what it says of this CPU."""
    cache, cpu = default_cache(), _cpu_identity()
    if cache is None or not cpu:
        return _ask_llvm()
    key = cache_key("host", cpu, installed("llvmlite"))
    entry = cache.get(key)
    if entry is None:
        entry = json.dumps(_ask_llvm()).encode()
        cache.put(key, entry)
    return json.loads(entry)


def _ask_llvm() -> dict[str, Any]:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    enabled = [name for name, on in features.items() if on]
    return {
        "version": ".".join(map(str, llvm.llvm_version_info)),
        "triple": llvm.get_process_triple(),
        "cpu": llvm.get_host_cpu_name(),
        "enabled": sorted(enabled),
        "disabled": sorted(set(features) - set(enabled)),
    }


def _cpu_identity(path: Path = Path("/proc/cpuinfo")) -> str:
    """What Linux says of the first core, but for what changes; "" elsewhere."""
    try:
        with path.open() as file:
            first = file.read(_CPUINFO).partition("\n\n")[0]
    except OSError:
        return ""
    lines = [line for line in first.splitlines() if not line.startswith(_CHANGING)]
    return "\n".join(lines) if "flags" in first or "Features" in first else ""


_CPUINFO = 1 << 14  # characters that hold all about one core
_CHANGING = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id")


def named_target(name: str) -> CpuTarget:
    """The host as it is ("host"), or held down to "scalar", "sse", "avx2" or "avx512" code.

    On a CPU that lacks some of the features named, code can be compiled but not run. On another
    architecture than x86 only "host" and "scalar" exist.
    """
    host = host_target()
    if name == "host":
        return host
    if name == "scalar":
        return replace(_x86_level("sse") if host.arch == "x86_64" else host, vector_bits=0)
    if name not in _X86_LEVELS or host.arch != "x86_64":
        known = ("host", "scalar", *(_X86_LEVELS if host.arch == "x86_64" else ()))
        raise ModelError(f"unknown CPU target {name!r} on {host.arch}; known: {', '.join(known)}")
    return _x86_level(name)


def cross_target(triple: str, cpu: str = "") -> CpuTarget:
    """A processor of another machine: the CPU, or level of instructions, of a platform, as it is
    usual there if none is named. ModelError tells which there are."""
    platform = platform_of(triple)
    name, level = platform.architecture.level(cpu)
    return _of_level(platform.llvm, name, level)


def _of_level(triple: str, cpu: str, level: Level) -> CpuTarget:
    return CpuTarget(
        triple, cpu, level.features, frozenset(), level.vector_bits, level.registers,
        level.l2_bytes,
    )  # fmt: skip


def target_machine(target: CpuTarget) -> llvm.TargetMachine:
    """A new LLVM target machine for position-independent code, fit for a JIT and for `.so` files.

    Not cached: whoever asked owns it (a JIT engine disposes of the one it is given).
    """
    import llvmlite.binding as llvm

    _initialise()
    is_wasm = target.arch == "wasm32"  # is linked into one module, at addresses that are known
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.feature_string,
        opt=1,  # more takes longer, and the code it makes runs no faster
        reloc="static" if is_wasm else "pic",
        codemodel="default" if is_wasm else "small",
        jit=False,
    )


def default_threads() -> int:
    """Cores this process may use: its affinity mask, hyper-threads once, bounded by the cgroup."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return max(1, os.cpu_count() or 1)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _cgroup_quota()))


# ---------------------------------------------------------------- instruction sets

_X86_LEVELS = {"sse": "x86-64-v2", "avx2": "x86-64-v3", "avx512": "x86-64-v4"}


def _x86_level(name: str) -> CpuTarget:
    host = host_target()
    cpu, level = ARCHITECTURES["x86_64"].level(_X86_LEVELS[name])
    return replace(_of_level(host.triple, cpu, level), l2_bytes=host.l2_bytes)


def _vector_file(arch: str, features: Iterable[str]) -> tuple[int, int]:
    """Bits of a vector register and the number of registers."""
    if arch != "x86_64":
        return 128, 32 if arch in ("aarch64", "arm64") else 16
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= set(features):
        return 512, 32
    return (256 if {"avx2", "fma"} <= set(features) else 128), 16


@lru_cache(maxsize=1)
def _initialise() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


# ---------------------------------------------------------------- the machine, as sysfs shows it


def _l2_bytes(root: Path = _SYSFS_CPU / "cpu0" / "cache") -> int:
    for entry in sorted(root.glob("index*")):
        level, kind, size = (_read(entry / name) for name in ("level", "type", "size"))
        if level == "2" and kind in ("Data", "Unified"):
            return _parse_size(size) or L2_BYTES
    return L2_BYTES


def _parse_size(text: str) -> int:
    """Bytes of a sysfs size such as "48K"; 0 if it does not read as one."""
    digits, unit = text.rstrip("KMG"), text[-1:]
    if not digits.isdigit():
        return 0
    return int(digits) << {"K": 10, "M": 20, "G": 30}.get(unit, 0)


def _siblings(cpu: int) -> str:
    """A name for the core of a CPU: the list of its hyper-threads."""
    return _read(_SYSFS_CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)


def _cgroup_quota(path: Path = _CGROUP / "cpu.max") -> int:
    """Whole CPUs that a version 2 control group grants, rounded up; a large number if no limit."""
    fields = _read(path).split()
    if len(fields) != 2 or not all(x.isdigit() for x in fields) or int(fields[1]) == 0:
        return 1 << 16
    return max(1, -(-int(fields[0]) // int(fields[1])))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
