"""C and C++ text compiled into shared libraries by the system's compilers.

`CC`, else gcc or cc, compiles C; `CXX`, else g++ or c++, compiles C++. Libraries are kept by a hash
of all files and flags in a folder of this user's below the system's temporary directory (or
GRAPHC_HOST_CACHE), written under another name and renamed, so that concurrent builds do no harm.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphc.errors import InternalError, UnsupportedError

Contents = str | bytes
LANGUAGES = {  # suffixes of sources, the variable that names a compiler, the usual compilers
    "C": ((".c", ".S"), "CC", ("gcc", "cc")),
    "C++": ((".cc",), "CXX", ("g++", "c++")),
}


def shared_library(
    files: Mapping[str, Contents], flags: Sequence[str], language: str = "C"
) -> Path:
    """The library made of those files that are sources (.c and .S, or .cc of C++), from the cache
    if it is there.

    UnsupportedError if there is no compiler, InternalError if it rejects the text.
    """
    key = _key(files, flags)
    folder = _cache_folder()
    library = folder / f"{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        for file, contents in files.items():
            data = contents.encode() if isinstance(contents, str) else contents
            (place / file).write_bytes(data)
        _compile(place, list(files), flags, language)
        os.replace(place / "library.so", library)
    return library


def _key(files: Mapping[str, Contents], flags: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(flags).encode())
    for name, contents in files.items():
        data = contents.encode() if isinstance(contents, str) else contents
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:32]


def _cache_folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"graphc-host-{os.getuid()}"
    folder = Path(os.environ.get("GRAPHC_HOST_CACHE") or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UnsupportedError(f"{folder} belongs to another user; set GRAPHC_HOST_CACHE")
    return folder


def _compile(folder: Path, files: Sequence[str], flags: Sequence[str], language: str) -> None:
    suffixes, variable, usual = LANGUAGES[language]
    sources = [file for file in files if file.endswith(suffixes)]
    named = os.environ.get(variable)
    compilers = [named] if named else usual
    for compiler in compilers:
        command = [*compiler.split(), *flags, "-shared", "-fPIC", "-I.", *sources]
        command += ["-o", "library.so", "-lm"]
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
