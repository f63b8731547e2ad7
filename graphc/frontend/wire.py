"""Large initializers, taken out of a model's bytes before protobuf copies them.

Parsing copies the contents of every tensor, and reading them from the message copies them again.
What lies here between known marks of protobuf's wire format is left out of the bytes that are
parsed, and used where it is. Whatever is not as usual is left to protobuf as a whole.

Source: https://protobuf.dev/programming-guides/encoding/ and the numbers of fields in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

LARGE = 1 << 12  # bytes of contents that are taken out
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
_SIZES = {FIXED64: 8, FIXED32: 4}


class _Unusual(Exception):
    """The bytes are not those of a model as it is usually written."""


def split(data: memoryview) -> tuple[bytes | memoryview, dict[int, memoryview]]:
    """The bytes of a ModelProto without the contents of large initializers of its graph, and these
    contents by the number of the initializer."""
    try:
        return _split(data)
    except (_Unusual, IndexError):
        return data, {}


def _split(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    contents: dict[int, memoryview] = {}
    graph: list[bytes | memoryview] = []
    places = _only(data, GRAPH)
    if not places:
        raise _Unusual
    ((start, body, end),) = places
    number = at = 0
    inside = data[body:end]
    for field, begin, first, last in _fields(inside):
        if field != INITIALIZER:
            continue
        raw = _only(inside[first:last], RAW_DATA)
        if raw and raw[0][2] - raw[0][1] >= LARGE:
            ((head, low, high),) = raw
            contents[number] = inside[first + low : first + high]
            rest = bytes(inside[first : first + head]) + bytes(inside[first + high : last])
            graph += [inside[at:begin], _message(INITIALIZER, rest)]
            at = last
        number += 1
    text = b"".join([*graph, inside[at:]])
    return b"".join([data[:start], _message(GRAPH, text), data[end:]]), contents


def _only(data: memoryview, wanted: int) -> list[list[int]]:
    """Where the field with a number begins, and its contents begin and end: once, or not at all."""
    places = [place for field, *place in _fields(data) if field == wanted]
    if len(places) > 1:
        raise _Unusual
    return places


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message its number, and where it begins; where its contents begin and end,
    if they are bytes."""
    at, size = 0, len(data)
    while at < size:
        begin = at
        key, at = _varint(data, at)
        kind = key & 7
        first = at
        if kind == BYTES:
            length, first = _varint(data, at)
            at = first + length
        elif kind == VARINT:
            _, at = _varint(data, at)
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise _Unusual
        if at > size:
            raise _Unusual
        yield (key >> 3 if kind == BYTES else 0), begin, first, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends. IndexError beyond the end of the data."""
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise _Unusual


def _message(field: int, contents: bytes) -> bytes:
    return _number(field << 3 | BYTES) + _number(len(contents)) + contents


def _number(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
