"""A cache of whole compiled models, so that a process which runs a known one imports no compiler.

The key is made of the model's bytes, all arguments of `graphc.compile`, graphc's own sources, the
packages that models are read with, and the CPU. Under it the cache of compiled code keeps a
*record*: inputs and outputs, and the digests of external data. For each tuple of input shapes that
was compiled to one piece of native code, and for the program for all shapes, it keeps under which
key that code is (artifact.py), and how long compiling took. Code and weights are not kept twice.

A *fingerprint* is made of the same, but of a sample of the bytes. Where the cache does not have it,
it does not have the model either, whose bytes are then hashed behind the first answer. All is
written then, too.

The bytes of a file are hashed only if it changed since that was last done: their digest is kept by
the file's identity (files.py).

What a record cannot tell is not kept: models with parts on the host, of inputs that are not
tensors, with operators or rules of a user's own, and those that graphc warned about.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from graphc import config, errors
from graphc.backends.behind import behind, finish
from graphc.backends.cache import DiskCache, cache_key, default_cache
from graphc.backends.llvm_cpu.artifact import kept_image
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.memory import Scratch
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import default_threads, host_target
from graphc.errors import ModelError
from graphc.files import identity, installed, is_settled, open_regular
from graphc.ir.types import TensorType
from graphc.records import dataclass
from graphc.runtime.compiled import CompiledModel
from graphc.runtime.exchange import as_numpy
from graphc.runtime.listing import FROM_CACHE, ExecutableInfo
from graphc.runtime.recurring import MOST_REMEMBERED, Recurring
from graphc.runtime.saved import described, has_shapes, loaded, read_interface

if TYPE_CHECKING:
    from graphc.ir.graph import Graph

READERS = ("onnx", "numpy", "ml_dtypes", "tflite")  # packages that the graph of a model depends on
PLAIN = (str, int, float, bool, type(None))  # types of options that their text tells all about
SAMPLED = 1 << 12  # bytes at either end of a file
BLOCK = 1 << 20  # bytes of a file that are hashed at a time
GENERAL = "general"  # names the program for all shapes among the parts of a model
DECLINED = "declined"  # names why there is none
Make = Callable[[], CompiledModel]


@dataclass(frozen=True)
class Source:
    """The bytes of a model: `contents`, or a file as it was when it was sampled."""

    sample: bytes
    contents: bytes = b""
    path: Path | None = None
    identity: str = ""

    @staticmethod
    def of(source: object) -> Source | None:
        """The source if it is bytes, or a file that can be read."""
        try:
            if isinstance(source, bytes):
                return Source(_sample(io.BytesIO(source)), source)
            if not isinstance(source, (str, os.PathLike)):
                return None
            path = Path(source).absolute()
            with open(open_regular(path), "rb") as file:
                return Source(_sample(file), path=path, identity=identity(path.stat()))
        except (OSError, ValueError, TypeError):
            return None

    def digest(self, cache: DiskCache) -> str:
        """The SHA-256 of all bytes. Raises OSError."""
        if self.path is None:
            return hashlib.sha256(self.contents).hexdigest()
        return _digest(self.path, cache)

    @property
    def is_unchanged(self) -> bool:
        try:
            return self.path is None or identity(self.path.stat()) == self.identity
        except OSError:
            return False


class Part(NamedTuple):
    """Something that a model was compiled to, and the seconds that took."""

    run: NativeModel
    seconds: float


class Entry:
    """Where the cache keeps a model."""

    def __init__(self, cache: DiskCache, parts: Sequence[str], source: Source):
        self.cache, self.parts, self.source = cache, parts, source
        self.fingerprint = cache_key("fingerprint of a model", source.sample, *parts)
        self.warnings = errors.warned

    @cached_property
    def key(self) -> str:
        """Raises OSError if the source cannot be read, or has changed."""
        digest = self.source.digest(self.cache)
        if not self.source.is_unchanged:
            raise OSError(errno.ESTALE, "has changed")
        return cache_key("model", digest, *self.parts)

    @staticmethod
    def of(
        source: object, arguments: Mapping[str, object], options: Mapping[str, object]
    ) -> Entry | None:
        """The entry for a model compiled for the CPU with arguments and options of
        `graphc.compile`; None if no key can tell what it depends on."""
        cache = default_cache()
        if options.get("tune_file") is not None:  # whose contents no argument tells
            return None
        if cache is None or config.debug() or config.fuel() is not None or _is_extended():
            return None
        told = _text_of(arguments, options)
        known = None if told is None else Source.of(source)
        if told is None or known is None:
            return None
        return Entry(cache, (told, host_target().key, *map(installed, READERS)), known)

    # ---------------------------------------------------------------- reading

    def model(self, threads: int | None, make: Make) -> CachedModel | None:
        """The model, if the cache has it; `make` compiles it."""
        data = self._get(lambda: self.key)
        record = None if data is None else json.loads(data)
        if record is None or not self._has_external(record["external"]):
            return None
        model = CachedModel(self, record, threads or default_threads(), make)
        return model if record["shapes"] is None or model.has(_tuples(record["shapes"])) else None

    def _has_external(self, files: Sequence[Sequence[str]]) -> bool:
        """Whether external data are what they were."""
        try:
            return all(_digest(Path(path), self.cache) == digest for path, digest in files)
        except OSError:
            return False

    def _get(self, key: Callable[[], str]) -> bytes | None:
        """What the cache has under a key, which costs reading the model, if it knows the model."""
        finish(self.fingerprint)
        if self.cache.get(self.fingerprint) is None:
            return None
        try:
            return self.cache.get(key())
        except OSError:
            return None

    def part(self, key: object, threads: int, scratch: Scratch) -> Part | None:
        """What the model was compiled to: for the shapes of inputs, or the GENERAL program."""
        data = self._get(lambda: self._part_key(key))
        if data is None:
            return None
        entry, seconds = json.loads(data)
        image = kept_image(self.cache, entry)
        return None if image is None else Part(NativeModel(image, threads, scratch), seconds)

    def declined(self) -> str:
        """Why the model has no program for all shapes, if that was tried before."""
        why = self._get(lambda: self._part_key(DECLINED))
        return "" if why is None else why.decode()

    def _part_key(self, key: object) -> str:
        return cache_key("part of a model", self.key, repr(key))

    # ---------------------------------------------------------------- writing

    def add_part(self, info: ExecutableInfo) -> None:
        """Keeps what a model was compiled to, if that is native code, for inputs of some shapes or
        of all; and why there is no program for all. How long it took the first time is kept, not
        when it came from the cache."""
        if info.run is None:
            why = info.why.encode()
            self._behind(lambda: self.cache.put(self._part_key(DECLINED), why))
        if not isinstance(info.run, NativeModel):
            return
        image = info.run.image
        if (image.sizes and not info.contents) or has_shapes(info):
            part = GENERAL if image.sizes else info.shapes
            self._behind(partial(self._keep_part, part, image, info.seconds))

    def _behind(self, work: Callable[[], object]) -> None:
        def keep() -> None:
            with contextlib.suppress(OSError):
                work()

        behind(self.fingerprint, keep)

    def _keep_part(self, part: object, image: Image, seconds: float) -> None:
        if not image.kept.key:
            return
        place = self._part_key(part)
        known = self.cache.get(place)
        if known is None or json.loads(known)[0] != image.kept.key:
            self.cache.put(place, json.dumps([image.kept.key, seconds]).encode())

    def add(self, model: CompiledModel, external: Mapping[Path, str]) -> None:
        """Keeps a model that has been compiled, unless the record cannot tell all about it.
        `external` are the files that it was read from, with their identities."""
        made = [info for info in model.executables() if info.run is not None]
        if (
            not model.is_plain
            or not all(isinstance(spec.type, TensorType) for spec in model.inputs)
            or not all(isinstance(info.run, NativeModel) for info in made)
            or errors.warned != self.warnings
        ):
            return
        is_closed = not model.graph.symbols
        if is_closed and not (made and has_shapes(made[0])):
            return
        record = {
            "interface": described(model.graph, model.inputs, model.outputs),
            "mode": model.mode,
            "shapes": made[0].shapes if is_closed else None,
        }
        self._behind(partial(self._keep_record, record, dict(external)))

    def _keep_record(self, record: dict[str, Any], external: Mapping[Path, str]) -> None:
        files = [[str(path), _digest(path, self.cache)] for path in sorted(external)]
        if all(identity(path.stat()) == known for path, known in external.items()):
            self.cache.put(self.key, json.dumps({**record, "external": files}).encode())
            self.cache.put(self.fingerprint, b"")


class CachedModel(CompiledModel):
    """A model from the cache. It is read and compiled only for what the cache does not have."""

    def __init__(self, entry: Entry, record: Mapping[str, Any], threads: int, make: Make):
        self._make, self._entry, self._threads = make, entry, threads
        self._present(*read_interface(record["interface"]))
        self.mode = record["mode"]
        self._scratch = Scratch()
        self._lock, self._making = RLock(), RLock()
        self._ready: dict[tuple, NativeModel] = {}  # what runs inputs of some shapes
        self._general: NativeModel | None = None
        self._recurring = Recurring(self._compile_for)

    def execute(self, values: Sequence[Any]) -> list[Any]:
        shapes = tuple([v.shape for v in values])
        run = self._ready.get(shapes)
        if run is None:
            if not self.has(shapes):
                return self._compiled_now(values)
            run = self._ready[shapes]
        recurring = self._recurring
        is_general = run is self._general
        if self.mode != "auto" or not (is_general or shapes in recurring.trials):
            return run(values)
        begin = time.perf_counter()
        results = run(values)
        note = recurring.note if is_general else recurring.tried
        note(shapes, time.perf_counter() - begin)
        return results

    def has(self, shapes: tuple) -> bool:
        """Whether the cache has what the model was compiled to for these shapes; loads it."""
        with self._lock:
            if shapes not in self._ready:
                part = self._part(shapes)
                run = self._general_for(shapes) if part is None else part.run
                if run is not None:
                    if len(self._ready) >= MOST_REMEMBERED:
                        self._ready.clear()
                    self._ready[shapes] = run
            return shapes in self._ready

    def _part(self, key: object) -> Part | None:
        return self._entry.part(key, self._threads, self._scratch)

    def _general_for(self, shapes: tuple) -> NativeModel | None:
        """The program for all shapes, if there is one and it takes these."""
        general = self._load_general()
        return general if general is not None and general.takes(shapes) else None

    def _load_general(self) -> NativeModel | None:
        if self._general is None and self.mode != "exact":
            part = self._part(GENERAL)
            if part is not None:
                self._general = part.run
                self._recurring.background.expect(part.seconds)
        return self._general

    def _compiled_now(self, values: Sequence[Any]) -> list[Any]:
        """The outputs of the model compiled from its source. There may be a program for all shapes
        now, or one of wider bounds."""
        results = self.whole.execute(values)
        with self._lock:
            self._ready = {s: run for s, run in self._ready.items() if run is not self._general}
            self._general = None
        return results

    def _compile_for(self, shapes: tuple, why: str) -> None:
        """Compiles for shapes that keep coming."""
        self.whole._specialised.compile_for(shapes, why)
        part = self._part(shapes)
        if part is not None:
            with self._lock:
                self._ready[shapes] = part.run

    @cached_property
    def whole(self) -> CompiledModel:
        """The model compiled from its source. ModelError if that has changed."""
        with self._making:
            model = self.__dict__.get("whole")  # of another thread
            if model is None:
                model = self._make()
                if not self._entry.source.is_unchanged:
                    raise ModelError(
                        f"{self._entry.source.path} has changed since graphc.compile read it: "
                        "compile it again"
                    )
            return model

    @property
    def graph(self) -> Graph:  # type: ignore[override]
        return self.whole.graph

    def prepare(self) -> bool:
        with self._lock:
            if self._load_general() is not None:
                return True
        return all(isinstance(s.type, TensorType) and s.type.is_static for s in self.inputs)

    @property
    def why_exact(self) -> str:
        return self.whole.why_exact

    def executables(self) -> list[ExecutableInfo]:
        """What has been loaded or compiled so far."""
        with self._lock:
            general, ready = self._general, dict(self._ready)
        model = self.__dict__.get("whole")  # None as long as nothing had to be compiled
        made = [] if model is None else model.executables()
        known = {info.shapes for info in made}
        if general is not None and not any(info.is_general for info in made):
            made = [loaded((), general, FROM_CACHE), *made]
        exact = [(shapes, run) for shapes, run in ready.items() if run is not general]
        made += [loaded(shapes, run, FROM_CACHE) for shapes, run in exact if shapes not in known]
        return [*made, *self._recurring.failures()]

    def save(self, path: str | os.PathLike) -> None:
        self.whole.save_with(path, self.executables())


# ---------------------------------------------------------------- keys


def _text_of(arguments: Mapping[str, Any], options: Mapping[str, object]) -> str | None:
    """A text that tells all about the arguments; None if there is none."""
    shapes, dims, values = (arguments.get(name) or {} for name in ("shapes", "dims", "values"))
    try:
        extents = sorted((str(n), [_whole(d) for d in shape]) for n, shape in shapes.items())
        bounds = sorted(
            (str(n), [_whole(x) for x in d] if isinstance(d, tuple) else _whole(d))
            for n, d in dims.items()
        )
        contents = sorted((str(n), _contents(n, value)) for n, value in values.items())
    except TypeError:
        return None
    if options.get("passes") is not None or not all(isinstance(v, PLAIN) for v in options.values()):
        return None
    return repr((extents, bounds, contents, sorted(options.items())))


def _whole(value: object) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError
    return int(value)


def _contents(name: object, value: object) -> tuple:
    array = as_numpy(value, f"the value of {name!r}")
    if array.dtype.kind == "O":
        raise TypeError
    return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def _tuples(shapes: Sequence[Sequence[int]]) -> tuple:
    return tuple(map(tuple, shapes))


def _is_extended() -> bool:
    """Whether operators, rules or targets of a user's own are registered in this process."""
    operators, rules, targets = (
        list(getattr(sys.modules.get(f"graphc.{module}"), name, {}).values())
        for module, name in (
            ("ir.opdef", "REGISTRY"),
            ("passes.rewriter", "RULES"),
            ("targets.base", "TARGETS"),
        )
    )
    makers = [x.function for x in (*operators, *rules) if x.function is not None] + targets
    return not all(getattr(m, "__module__", "").startswith("graphc.") for m in makers)


def _sample(file: BinaryIO) -> bytes:
    """The size of a file, its first bytes and its last."""
    first = file.read(SAMPLED)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - SAMPLED))
    return b"%d " % size + first + file.read(SAMPLED)


def _digest(path: Path, cache: DiskCache) -> str:
    """The SHA-256 of a file; from the cache if the file has not changed since."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        key = cache_key("digest of a file", identity(status))
        known = cache.get(key)
        if known is not None:
            return known.decode()
        state = hashlib.sha256()
        while block := file.read(BLOCK):
            state.update(block)
        digest = state.hexdigest()
        if is_settled(status) and identity(os.fstat(file.fileno())) == identity(status):
            cache.put(key, digest.encode())
    return digest
