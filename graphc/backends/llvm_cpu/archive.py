"""Static libraries: archives of object files, as GNU's and LLVM's linkers read them."""

from __future__ import annotations

from collections.abc import Sequence

Member = tuple[str, bytes | bytearray, Sequence[str]]  # its name, its bytes, what it defines


def archive(members: Sequence[Member]) -> bytes:
    """An archive (System V's format) of object files."""
    symbols = [symbol for _, _, defined in members for symbol in defined]
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    index_size = 4 + 4 * len(symbols) + len(names)
    long_names, labels = b"", []
    for name, _, _ in members:
        labels.append(f"/{len(long_names)}")
        long_names += f"{name}/\n".encode()
    at, starts = 8 + 60 + _even(index_size) + 60 + _even(len(long_names)), []
    for _, data, defined in members:
        starts += [at] * len(defined)
        at += 60 + _even(len(data))
    index = len(symbols).to_bytes(4, "big") + b"".join(s.to_bytes(4, "big") for s in starts) + names
    parts = [("/", index), ("//", long_names), *zip(labels, (data for _, data, _ in members))]
    return b"!<arch>\n" + b"".join(_member(label, part) for label, part in parts)


def _even(size: int) -> int:
    return size + size % 2


def _member(label: str, data: bytes | bytearray) -> bytes:
    """A file with its head: name, time, owner, group, mode, size."""
    head = f"{label:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return head.encode() + bytes(data) + b"\n" * (len(data) % 2)
