"""A loader of object files for x86-64 (ELF): sections are mapped, relocated and made executable.

A process that runs models from the cache or from files needs no compiler, so it should not have to
load LLVM either. `load` does what LLVM's own linker (JITLink) would do with the code that graphc
emits: position-independent, without thread-local variables. It gives up (None) where it meets
anything else, and jit.py links the object then.

One anonymous mapping holds the sections, those that are executed first, then those that are read,
then those that are written; each kind begins a page, and none is writable and executable at once.
Calls of functions outside go through a stub, and addresses outside are read from a table, both of
which follow the code: the process's own libraries may be further away than 2^31 bytes.

Format: System V ABI, AMD64 supplement, 4.4.1 (relocation types).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Iterable, Mapping

import numpy as np

from graphc.errors import InternalError
from graphc.records import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
    ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
])  # fmt: skip
_SYMBOL = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
    ("size", "<u8"),
])  # fmt: skip
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_X86_64, _RELOCATABLE = 62, 1
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8  # types of sections
_WRITE, _ALLOC, _EXECUTE, _THREAD = 1, 2, 4, 0x400  # flags of sections
_UNDEFINED, _RESERVED = 0, 0xFF00  # numbers of sections
_PLAIN_SYMBOLS = (0, 1, 2, 3)  # of no type, data, functions, sections: no indirect functions
_ABS64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24  # types of relocations
_GOT = (9, 41, 42)  # GOTPCREL, and the two forms that a linker may relax
_JUMP = b"\xff\x25"  # jmp *offset(%rip)
_STUB = 8  # bytes of a stub, with two to spare
_TABLE = "_GLOBAL_OFFSET_TABLE_"  # by that name, code of other models asks for the table
_EH_FRAME = ".eh_frame"  # nothing unwinds through compiled code


class _Unknown(Exception):
    """The object has something that this loader does not know."""


@dataclass
class Loaded:
    """Addresses of the functions asked for; they are valid as long as `memory`."""

    addresses: dict[str, int]
    memory: object


def load(data: bytes, exports: Iterable[str], imports: Mapping[str, int]) -> Loaded | None:
    """Maps an object file; None if LLVM has to. InternalError if a symbol is missing."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    try:
        return _Object(data).load(exports, imports)
    except _Unknown:
        return None


class _Object:
    """A relocatable file."""

    def __init__(self, data: bytes):
        self.data = data
        if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
            raise _Unknown
        head = _HEADER.unpack_from(data)
        if head[1] != _RELOCATABLE or head[2] != _X86_64:
            raise _Unknown
        self.sections = np.frombuffer(data, _SECTION, head[12], head[6])
        names = self.bytes_of(head[13])
        self.names = [_text(names, at) for at in self.sections["name"].tolist()]
        tables = np.flatnonzero(self.sections["type"] == _SYMTAB)
        if len(tables) != 1:
            raise _Unknown
        table = tables[0]
        self.symbols = np.frombuffer(self.bytes_of(table), _SYMBOL)
        self.symbol_names = self.bytes_of(self.sections["link"][table])

    def bytes_of(self, section: int) -> bytes:
        at, size = (int(self.sections[key][section]) for key in ("offset", "size"))
        return self.data[at : at + size]

    def load(self, exports: Iterable[str], imports: Mapping[str, int]) -> Loaded:
        self.place()
        memory = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        buffer = np.frombuffer(memory, np.uint8)
        self.base = buffer.ctypes.data
        for section in self.placed:
            if self.sections["type"][section] == _PROGBITS:
                contents = self.bytes_of(section)
                start = self.starts[section]
                buffer[start : start + len(contents)] = np.frombuffer(contents, np.uint8)
        values = self.values(imports)
        buffer[self.table : self.table + 8 * len(values)] = values.view(np.uint8)
        self.write_stubs(buffer)
        for table in np.flatnonzero(self.sections["type"] == _RELA).tolist():
            if self.sections["info"][table] in self.starts:
                self.relocate(buffer, table, values)
        addresses = self.exported(exports, values)
        for start, end, protection in self.kinds:
            _protect(self.base + start, end - start, protection)
        return Loaded(addresses, buffer)

    def place(self) -> None:
        """Where each section goes: `starts` in the mapping."""
        flags = self.sections["flags"]
        is_loaded = (flags & _ALLOC).astype(bool) & (self.sections["size"] > 0)
        self.placed = [int(n) for n in np.flatnonzero(is_loaded) if self.names[n] != _EH_FRAME]
        self.starts: dict[int, int] = {}
        self.kinds: list[tuple[int, int, int]] = []
        at = 0
        for mask, protection in (
            (_EXECUTE, mmap.PROT_READ | mmap.PROT_EXEC),
            (0, mmap.PROT_READ),
            (_WRITE, mmap.PROT_READ | mmap.PROT_WRITE),
        ):
            begin = at
            for section in self.placed:
                if int(flags[section]) & (_EXECUTE | _WRITE) == mask:
                    at = self.place_one(section, at)
            if mask == _EXECUTE:
                self.stubs = _rounded(at, 8)
                at = self.stubs + _STUB * len(self.symbols)
            elif mask == 0:
                self.table = _rounded(at, 8)
                at = self.table + 8 * len(self.symbols)
            at = _rounded(at, mmap.PAGESIZE)
            self.kinds.append((begin, at, protection))
        if set(self.placed) - set(self.starts):
            raise _Unknown  # both written and executed
        self.size = at

    def place_one(self, section: int, at: int) -> int:
        """Places a section at `at` or just behind; where it ends."""
        kind, align = int(self.sections["type"][section]), int(self.sections["align"][section])
        is_thread_local = int(self.sections["flags"][section]) & _THREAD
        if kind not in (_PROGBITS, _NOBITS) or is_thread_local or align > mmap.PAGESIZE:
            raise _Unknown
        self.starts[section] = _rounded(at, max(align, 1))
        return self.starts[section] + int(self.sections["size"][section])

    def values(self, imports: Mapping[str, int]) -> np.ndarray:
        """The addresses of all symbols; 0 for those in sections that are not loaded."""
        addresses = np.zeros(len(self.symbols), np.uint64)
        missing = []
        for n, (name, info, _, section, value, _) in enumerate(self.symbols.tolist()):
            if info & 15 not in _PLAIN_SYMBOLS and section != _RESERVED + 0xF1:  # a file's name
                raise _Unknown
            if section in self.starts:
                addresses[n] = self.base + self.starts[section] + value
            elif section == _UNDEFINED and name:
                text = _text(self.symbol_names, name)
                if text == _TABLE:
                    raise _Unknown
                addresses[n] = imports.get(text) or _address_in_process(text)
                missing += [text] * (not addresses[n])
        if missing:
            raise InternalError(f"cannot load compiled code: there is no {', '.join(missing)}")
        return addresses

    def write_stubs(self, buffer: np.ndarray) -> None:
        """A jump to each undefined symbol, through its place in the table."""
        for n in np.flatnonzero(self.symbols["section"] == _UNDEFINED).tolist():
            at = self.stubs + _STUB * n
            jump = _JUMP + struct.pack("<i", self.table + 8 * n - (at + 6))
            buffer[at : at + len(jump)] = np.frombuffer(jump, np.uint8)

    def relocate(self, buffer: np.ndarray, section: int, values: np.ndarray) -> None:
        """Applies the relocations of one section."""
        start = self.starts[int(self.sections["info"][section])]
        entries = np.frombuffer(self.bytes_of(section), _RELOCATION)
        kinds, symbols = entries["type"], entries["symbol"].astype(np.int64)
        places = start + entries["offset"].astype(np.int64)
        targets = values[symbols].astype(np.int64) - self.base  # offsets in the mapping
        outside = self.symbols["section"][symbols] == _UNDEFINED
        in_table = np.isin(kinds, _GOT)
        targets = np.where(in_table, self.table + 8 * symbols, targets)
        through_stub = outside & ((kinds == _PLT32) | (kinds == _PC32))
        targets = np.where(through_stub, self.stubs + _STUB * symbols, targets)
        results = targets + entries["addend"]
        is_near = in_table | (kinds == _PLT32) | (kinds == _PC32)
        is_wide = (kinds == _ABS64) | (kinds == _PC64)
        unplaced = ~outside & (values[symbols] == 0)
        if not (is_near | is_wide).all() or unplaced.any():
            raise _Unknown
        _store(buffer, places[is_near], (results - places)[is_near].astype("<i4"))
        _store(buffer, places[kinds == _PC64], (results - places)[kinds == _PC64].astype("<i8"))
        absolute = kinds == _ABS64
        _store(buffer, places[absolute], (results + self.base)[absolute].astype("<i8"))

    def exported(self, exports: Iterable[str], values: np.ndarray) -> dict[str, int]:
        """The addresses of functions by name."""
        wanted, addresses = set(exports), {}
        for n in np.flatnonzero(self.symbols["section"] != _UNDEFINED).tolist():
            name = _text(self.symbol_names, int(self.symbols["name"][n]))
            if name in wanted:
                addresses[name] = int(values[n])
        if wanted - set(addresses):
            missing = ", ".join(sorted(wanted - set(addresses)))
            raise InternalError(f"cannot load compiled code: there is no {missing}")
        return addresses


def _store(buffer: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Writes numbers at places that need not be aligned."""
    size = values.dtype.itemsize
    buffer[places[:, None] + np.arange(size)] = values.view(np.uint8).reshape(-1, size)


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(0, at)].decode()


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _address_in_process(name: str) -> int:
    """The address of a function of the C library; 0 if there is none."""
    for library in (None, "libm.so.6"):
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _protect(start: int, size: int, protection: int) -> None:
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if size and mprotect(start, size, protection):
        raise InternalError(f"cannot load compiled code: mprotect fails ({ctypes.get_errno()})")
