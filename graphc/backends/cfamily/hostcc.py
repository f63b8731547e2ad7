"""C and C++ text compiled into shared libraries by the system's compilers.

`CC`, else gcc or cc, compiles C; `CXX`, else g++ or c++, compiles C++. Libraries are kept by a hash
of all files and flags in a folder of this user's below the system's temporary directory (or
GRAPHC_HOST_CACHE), written under another name and renamed, so that concurrent builds do no harm.
Their digests are part of their names: a damaged library is compiled again. A folder that others can
write to is refused: code of anybody who can write there is run. A header that many libraries share
is kept compiled there too; a compiler that has no use for that reads the header itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphc.backends.digests import digest
from graphc.errors import InternalError, UnsupportedError
from graphc.files import NO_LINK, open_regular, who_else

Contents = str | bytes
OUTPUT = "output"
LANGUAGES = {  # suffixes of sources, the variable that names a compiler, the usual compilers
    "C": ((".c", ".S"), "CC", ("gcc", "cc")),
    "C++": ((".cc",), "CXX", ("g++", "c++")),
}


def shared_library(
    files: Mapping[str, Contents], flags: Sequence[str], language: str = "C", header: str = ""
) -> Path:
    """The library made of those files that are sources (.c and .S, or .cc of C++), from the cache
    if it is there. `header`: the file that C++ sources include first, if it is worth compiling on
    its own.

    UnsupportedError if there is no compiler, InternalError if it rejects the text.
    """
    sources = [file for file in files if file.endswith(LANGUAGES[language][0])]
    command = [*flags, "-shared", "-fPIC", "-I.", *sources, "-o", OUTPUT, "-lm"]
    compiled = {}
    if header:
        alone = {header: files[header]}
        how = [*flags, "-fPIC", "-x", "c++-header", header, "-o", OUTPUT]
        compiled[f"{header}.gch"] = _kept(f"{_key(alone, how)}.gch", alone, how, language, {})
    return _kept(f"{_key(files, flags)}.so", files, command, language, compiled)


def _kept(
    name: str,
    files: Mapping[str, Contents],
    arguments: Sequence[str],
    language: str,
    compiled: Mapping[str, Path],
) -> Path:
    """The file of the cache that a compiler makes of these files, and of others made before."""
    folder = _cache_folder()
    stem, suffix = name.split(".", 1)
    for kept in folder.glob(f"{stem}-*.{suffix}"):
        if _is_whole(kept):
            return kept
        with contextlib.suppress(OSError):
            kept.unlink()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        for file, contents in files.items():
            data = contents.encode() if isinstance(contents, str) else contents
            (place / file).write_bytes(data)
        for file, path in compiled.items():
            os.link(path, place / file)
        _compile(place, arguments, language)
        kept = folder / f"{_named(stem, (place / OUTPUT).read_bytes())}.{suffix}"
        os.chmod(place / OUTPUT, 0o700)  # whatever the umask lets others do
        os.replace(place / OUTPUT, kept)
    return kept


def _named(stem: str, contents: bytes) -> str:
    """The name of what was compiled under a stem: it fits one stem and one content only."""
    return f"{stem}-{digest(stem.encode() + contents)}"


def _is_whole(kept: Path) -> bool:
    """Whether a file of the cache is what its name says, and this user's."""
    try:
        with open(open_regular(kept, NO_LINK), "rb") as file:
            private = not who_else(os.fstat(file.fileno()))
            name = kept.name.split(".")[0]
            return private and name == _named(name.rpartition("-")[0], file.read())
    except OSError:
        return False


def _key(files: Mapping[str, Contents], flags: Sequence[str]) -> str:
    key = hashlib.sha256("\0".join(flags).encode())
    for name, contents in files.items():
        data = contents.encode() if isinstance(contents, str) else contents
        key.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return key.hexdigest()[:32]


def _cache_folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"graphc-host-{os.getuid()}"
    folder = Path(os.environ.get("GRAPHC_HOST_CACHE") or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    other = who_else(folder.stat())
    if other:
        raise UnsupportedError(
            f"{folder} {other}: make it private to you, or set GRAPHC_HOST_CACHE to a directory of "
            "yours"
        )
    return folder


def _compile(folder: Path, arguments: Sequence[str], language: str) -> None:
    _, variable, usual = LANGUAGES[language]
    named = os.environ.get(variable)
    compilers = [named] if named else usual
    for compiler in compilers:
        command = [*compiler.split(), *arguments]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if done.returncode:
            raise InternalError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")
        return
    raise UnsupportedError(
        f"no {language} compiler found (tried {', '.join(compilers)}); set {variable}"
    )
