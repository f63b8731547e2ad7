"""What made a file: the version, the model by its digest, and the options. No dates and no paths,
so that the same input gives the same files."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import PurePath

from graphc import __version__

CODE = "Apache-2.0"  # of graphc, whose text generated code is
CONSTANTS = "LicenseRef-Model"  # the terms of the model, which only its owner knows
BLOCK = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".ld", ".S", ".ts")  # /* such */
HASH = (".cmake", ".conf", ".ini", ".properties", ".py", ".toml", ".yaml", ".yml")  # after #
SLASHES = (".ptx", ".rs")  # after //
HASH_NAMES = ("CMakeLists.txt", "Makefile", "Kconfig")


@dataclass(frozen=True)
class Provenance:
    """The SHA-256 of the model's file, as sha256sum prints it, and the options it was compiled
    with, as text."""

    digest: str
    options: str

    @classmethod
    def of(cls, path: str | os.PathLike, options: str) -> Provenance:
        """That of a model in a file."""
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return cls(digest.hexdigest(), options)

    @property
    def data(self) -> dict[str, str]:
        """As a report tells it."""
        return {
            "licence": CODE, "graphc": __version__, "model_sha256": self.digest,
            "options": self.options,
        }  # fmt: skip

    def lines(self, licence: str = CODE) -> list[str]:
        """In words, the licence first."""
        plain = (
            c if c.isprintable() and c.isascii() and c not in "?\\" else "_" for c in self.options
        )
        return [
            f"SPDX-License-Identifier: {licence}",
            f"Made by graphc {__version__} from the model of SHA-256",
            self.digest,
            f"with: {''.join(plain)}",
        ]

    def stamped(self, name: str, text: str) -> str:
        """The text of a file with these lines in a comment at its beginning, if its kind has
        comments; in Markdown at its end, in an object of JSON as `made_by`."""
        path = PurePath(name)
        lines = self.lines(CONSTANTS if "_weights" in path.stem else CODE)
        if path.suffix == ".md":
            told = f"{lines[1]} `{self.digest}`, `{self.options}`."
            return f"{text.rstrip()}\n\n{told}\n\n<!-- {lines[0]} -->\n"
        if path.suffix == ".json":
            return json.dumps({**json.loads(text), "made_by": self.data}, indent=1) + "\n"
        if path.suffix in SLASHES:
            return "".join(f"// {line}\n" for line in lines) + text
        if path.suffix in BLOCK:
            inner = "\n * ".join(lines).replace("*/", "* /").replace("/*", "/ *")
            return f"/* {inner} */\n{text}"
        if path.suffix in HASH or path.name in HASH_NAMES:
            first, rest = ("", text)
            if text.startswith("#!"):
                first, _, rest = text.partition("\n")
                first += "\n"
            return first + "".join(f"# {line}\n" for line in lines) + rest
        return text
