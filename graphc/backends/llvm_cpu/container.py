"""The format of saved models, and of what the compilation cache keeps of one.

A file is one container of `Image`s, one per specialisation:

    8 bytes magic, u64 size of the header, u64 size of the file, SHA-256 of what comes before and of
    the header, the header (JSON), zeros up to a multiple of 64; then parts, each at such a multiple

The header lists per image its types, the size of its arena, and where its code and constants lie,
each with its digest (digests.py), which goes over the zeros behind it as well. It lists the bounds
of sizes that the types name, if the image runs at all sizes within them. Every byte of a file is
covered: the header and code are checked when it is loaded, constants before the image that has them
runs for the first time. Until then they are not read: they are views of the mapped file.

A container holds native code, which can do whatever its process can. What else is in it does no
harm, whoever wrote it: everything is checked against the size of the file, nothing is allocated by
what it says, and there are no names of files and no pickles in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.backends.block import Block, bytes_of
from graphc.backends.digests import Sums, digests
from graphc.backends.llvm_cpu.image import Image
from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.alignment import ALIGNMENT
from graphc.ir.checks import Check
from graphc.ir.types import TensorType, Type, plain_type

if TYPE_CHECKING:
    from graphc.ir.expr import Sym

FORMAT = 4
_NAME = b"graphc\x00"
MAGIC = _NAME + bytes([FORMAT])
_HEAD = struct.Struct("<8sQQ")
_START = _HEAD.size + hashlib.sha256().digest_size  # of the header
MOST_BYTES = 1 << 47  # that any process can address
Shapes = tuple[tuple["int | str", ...], ...]
"""Dims of inputs: what an image was compiled for. Those that are open are text."""
Symbols = Mapping[str, list]
"""The bounds of symbols, by name, as JSON has them."""
Part = tuple[int, int, str]
"""Where a part lies behind the header, its size without the zeros, and its digest with them."""
Place = tuple[str, int, int]
"""Where a constant is kept elsewhere: under which name, and there its offset and size."""
_MALFORMED = (
    ValueError,  # those of JSON, of types and of shapes
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    UnsupportedError,  # of a dim without bounds
    struct.error,
)


def pack(
    images: Mapping[Shapes, Image],
    interface: Mapping[str, Any],
    elsewhere: Mapping[int, Place] | None = None,
) -> list[memoryview]:
    """The bytes of a container, in pieces. `interface` is kept as it is (JSON); constants that are
    kept elsewhere, by their `id`, are left out; those with equal contents are there once."""
    places = elsewhere or {}
    parts = _Parts()
    listed = [
        {
            "shapes": shapes,
            "name": image.name,
            "inputs": [[name, str(type)] for name, type in image.inputs],
            "outputs": [[name, str(type)] for name, type in image.outputs],
            "sizes": [[size.name, size.lo, size.hi] for size in image.sizes],
            "counts": [[size.name, size.lo, size.hi] for size in image.counts],
            "arena": image.arena_bytes,
            "kernels": image.kernels,
            "steps": image.steps,
            "shared": image.shared,
            "checks": [[check.low, check.high, check.message] for check in image.checks],
            "code": parts.add(memoryview(image.code)),
            "constants": [
                [
                    dtypes.of(c.dtype).name,
                    list(c.shape),
                    *(places.get(id(c)) or parts.add_once(bytes_of(c))),
                ]
                for c in image.constants
            ],
        }
        for shapes, image in images.items()
    ]
    target = next(iter(images.values())).target_key
    header = json.dumps({"target": target, "interface": interface, "images": listed}).encode()
    size = _aligned(_START + len(header)) + parts.block.size
    head = _HEAD.pack(MAGIC, len(header), size)
    front = Block(ALIGNMENT)
    front.add(head + hashlib.sha256(head + header).digest() + header)
    return front.parts + parts.block.parts


class _Parts:
    """Parts one after another, each with its digest."""

    def __init__(self) -> None:
        self.block = Block(ALIGNMENT)
        self._known: dict[str, list[tuple[memoryview, Part]]] = {}

    def add(self, data: memoryview) -> Part:
        (digest,) = digests([_filled(data)], threads=1)
        return self.block.add(data), data.nbytes, digest

    def add_once(self, data: memoryview) -> Part:
        """The part that has these bytes already, or a new one."""
        (digest,) = digests([_filled(data)])
        same = self._known.setdefault(digest, [])
        for other, part in same:
            if np.array_equal(np.asarray(other), np.asarray(data)):
                return part
        same.append((data, (self.block.add(data), data.nbytes, digest)))
        return same[-1][1]


def _filled(data: memoryview) -> Any:
    """The bytes with the zeros that follow them in a file; a copy only if there are any."""
    zeros = -data.nbytes % ALIGNMENT
    return np.concatenate([np.asarray(data), np.zeros(zeros, np.uint8)]) if zeros else data


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Container:
    """A container read from memory, which stays in use as long as its images do. `find` gives the
    bytes that are kept elsewhere under a name, or None. ModelError if the header is damaged."""

    def __init__(
        self,
        data: memoryview,
        where: str,
        find: Callable[[str], memoryview | None] = lambda name: None,
    ):
        self.data, self.where, self.find = data, where, find
        self.kept_elsewhere: dict[str, memoryview] = {}
        self._checked: set[Part] = set()
        header = self._header()
        with self.understood():
            self.target = str(header["target"])
            self.interface: dict = dict(header["interface"])
            self.entries = {
                tuple(tuple(map(_dim, shape)) for shape in entry["shapes"]): entry
                for entry in header["images"]
            }

    def _header(self) -> dict:
        """The header, checked; `start` is where parts begin."""
        if self.data.nbytes < _START:
            raise ModelError(f"{self.where} is not a compiled model")
        magic, size, total = _HEAD.unpack_from(self.data)
        if magic[: len(_NAME)] != _NAME:
            raise ModelError(f"{self.where} is not a compiled model")
        if magic != MAGIC:
            raise ModelError(
                f"{self.where} has format {magic[-1]}, this version of graphc reads format "
                f"{FORMAT}: compile the model again"
            )
        if total != self.data.nbytes or size > total - _START:
            raise self.damaged(f"it has {self.data.nbytes} bytes and should have {total}")
        head, header = self.data[: _HEAD.size], self.data[_START : _START + size]
        digest = hashlib.sha256(head)
        digest.update(header)
        self.start = min(_aligned(_START + size), total)
        if digest.digest() != self.data[_HEAD.size : _START] or any(
            self.data[_START + size : self.start]
        ):
            raise self.damaged("its header does not match its digest")
        with self.understood():
            return json.loads(bytes(header))

    def damaged(self, why: str) -> ModelError:
        return ModelError(f"{self.where} is damaged: {why}; compile the model again")

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Makes ModelErrors of what comes of a header that is whole, but says what none should."""
        try:
            yield
        except ModelError:
            raise
        except _MALFORMED as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise self.damaged(f"its header cannot be understood ({text})") from error

    def images(self) -> dict[Shapes, Image]:
        """The images by the shapes they were compiled for, their code checked."""
        with self.understood():
            self._check([tuple(entry["code"]) for entry in self.entries.values()], "code")
            return {shapes: self._image(entry) for shapes, entry in self.entries.items()}

    def check(self, shapes: Shapes, sums: Sums | None = None) -> None:
        """Reads the constants of an image, unless that was done before; ModelError if they are
        not what was saved. Those kept elsewhere were checked there."""
        with self.understood():
            constants = [tuple(place) for _, _, *place in self.entries[shapes]["constants"]]
            inside = [place for place in constants if isinstance(place[0], int)]
            self._check(inside, "constant", sums)

    def _check(self, parts: list, what: str, sums: Sums | None = None) -> None:
        new = [part for part in dict.fromkeys(parts) if part not in self._checked]
        data = [self._part(offset, _aligned(_natural(size))) for offset, size, _ in new]
        for part, digest in zip(new, digests(data, sums=sums)):
            if digest != part[2]:
                where = self.start + part[0]
                raise self.damaged(f"its {what} at byte {where} does not match its digest")
        self._checked.update(new)

    def _image(self, entry: dict) -> Image:
        offset, size, _ = entry["code"]
        bounds, counted = (
            {str(name): [low, high] for name, low, high in entry.get(key, ())}
            for key in ("sizes", "counts")
        )
        inputs = _interface(entry["inputs"], bounds)
        outputs = _interface(entry["outputs"], {**bounds, **counted})
        return Image(
            str(entry["name"]), self.target, bytes(self._part(offset, size)), inputs, outputs,
            tuple(self._constant(*c) for c in entry["constants"]), _natural(entry["arena"]),
            tuple(map(str, entry["kernels"])), _natural(entry["steps"]),
            _checks(entry["checks"], outputs), sizes=_sizes(bounds, inputs),
            shared=_shared(entry.get("shared", ()), len(inputs), len(outputs)),
            counts=tuple(symbols_of(counted).values()) if counted else (),
        )  # fmt: skip

    def _part(self, offset: int, size: int) -> memoryview:
        begin = self.start + _natural(offset)
        if begin + _natural(size) > self.data.nbytes:
            raise self.damaged("a part lies outside the file")
        return self.data[begin : begin + size]

    def _constant(self, dtype: str, shape: list[int], *place: Any) -> np.ndarray:
        """A constant: a `Part`, or a `Place` if it is kept elsewhere."""
        type, elsewhere = dtypes.of(dtype), isinstance(place[0], str)
        offset, size = place[1:] if elsewhere else place[:2]
        if math.prod(map(_natural, shape)) * type.size != _natural(size):
            raise self.damaged("a constant has the wrong size")
        data = self._kept(place[0]) if elsewhere else self._part(offset, size)
        data = data[_natural(offset) :][:size] if elsewhere else data
        return np.frombuffer(data, type.np).reshape(shape)

    def _kept(self, name: str) -> memoryview:
        """What is kept elsewhere under a name."""
        if name not in self.kept_elsewhere:
            data = self.find(name)
            if data is None:
                raise self.damaged(f"{name} is missing")
            self.kept_elsewhere[name] = data
        return self.kept_elsewhere[name]


def _natural(value: Any) -> int:
    """A size or offset."""
    if type(value) is not int or not 0 <= value < MOST_BYTES:
        raise ValueError(f"{value!r} is no size")
    return value


def _shared(entries: Sequence, inputs: int, outputs: int) -> tuple[tuple[int, int], ...]:
    """Pairs of an output and an input."""
    pairs = tuple((_natural(out), _natural(into)) for out, into in entries)
    if any(out >= outputs or into >= inputs for out, into in pairs):
        raise ValueError("it shares the memory of an output or input that it has not")
    return pairs


def _checks(entries: list, outputs: tuple[tuple[str, TensorType], ...]) -> tuple[Check, ...]:
    """Checks, whose keys are the last output."""
    checks = tuple(Check(int(low), int(high), str(message)) for low, high, message in entries)
    if checks and outputs[-1][1] != TensorType(dtypes.u64, (len(checks),)):
        raise ValueError("it has no keys for its checks")
    return checks


def _dim(value: Any) -> int | str:
    """A dim of what an image was compiled for."""
    return value if isinstance(value, str) else _natural(value)


def _sizes(bounds: Symbols, inputs: tuple[tuple[str, TensorType], ...]) -> tuple[Sym, ...]:
    """The sizes of an image, each of them read from a dim of an input."""
    if not bounds:
        return ()
    from graphc.ir.sizes import line_of

    sizes = symbols_of(bounds)
    dims = {dim for _, type in inputs for dim in type.dims}
    if not all(any(line_of(dim, size) for dim in dims) for size in sizes.values()):
        raise ValueError("it has sizes that no input has")
    return tuple(sizes.values())


def _interface(entries: list, bounds: Symbols) -> tuple[tuple[str, TensorType], ...]:
    tensors = []
    for name, text in entries:
        type = read_type(text, bounds)
        if not isinstance(type, TensorType):
            raise ValueError(f"{text} is not a tensor")
        _natural(type.most_bytes)
        tensors.append((str(name), type))
    return tuple(tensors)


def read_type(text: str, bounds: Symbols) -> Type:
    """The type that `str` wrote, of symbols with these bounds. ValueError if there is none."""
    symbols = symbols_of(bounds) if bounds else {}
    plain = plain_type(text, symbols)
    if plain is not None:
        return plain
    from graphc.ir.text.type_parser import parse_type  # most types need no arithmetic

    try:
        return parse_type(text, symbols)
    except GraphcError as error:
        raise ValueError(str(error)) from error


def symbols_of(bounds: Symbols) -> dict[str, Sym]:
    """Symbols by name."""
    from graphc.ir.expr import Sym

    return {
        name: Sym(name, int(low), None if high is None else int(high))
        for name, (low, high) in bounds.items()
    }
