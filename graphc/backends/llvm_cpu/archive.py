"""Static libraries: archives of one object file, as GNU's and LLVM's linkers read them."""

from __future__ import annotations

from collections.abc import Sequence


def archive(name: str, data: bytes | bytearray, symbols: Sequence[str]) -> bytes:
    """An archive (System V's format) of a file that defines these symbols."""
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    index_size = 4 + 4 * len(symbols) + len(names)
    long_names = f"{name}/\n".encode()
    start = 8 + 60 + _even(index_size) + 60 + _even(len(long_names))
    index = len(symbols).to_bytes(4, "big") + start.to_bytes(4, "big") * len(symbols) + names
    members = [("/", index), ("//", long_names), ("/0", data)]
    return b"!<arch>\n" + b"".join(_member(label, part) for label, part in members)


def _even(size: int) -> int:
    return size + size % 2


def _member(label: str, data: bytes | bytearray) -> bytes:
    """A file with its head: name, time, owner, group, mode, size."""
    head = f"{label:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return head.encode() + bytes(data) + b"\n" * (len(data) % 2)
