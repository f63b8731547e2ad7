"""Numbers the places where kernels access memory, in translated CUDA C.

Lanes run one after another, and not all of them take every branch. What they do together on a GPU
is what they do at one place of the text in the same iteration of the loops around it: every loop
counts its passes, and every access names its place and these counts,

    x[i]    becomes    x(simulator::Site::at(12, pass3, pass4))[i]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KERNEL = re.compile(r"static void (\w+)\(")
_ARRAY = re.compile(r"simulator::(?:Global|Shared)<[^>]*> (\w+)")
_LOOP = re.compile(r"\s*(?:for|while) \(.*\{$")
_SUBSCRIPT = re.compile(r"\b(\w+)\[")


@dataclass(frozen=True)
class Site:
    """A place of the text: which kernel accesses which array there, and the element."""

    kernel: str
    array: str
    element: str


class Numbering:
    """Goes over the text, line by line; `sites` are what it has found."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self._kernel = ""
        self._arrays: set[str] = set()
        self._scopes: list[str] = []  # braces that are open: the counter of a loop, or ""

    def mark(self, text: str) -> str:
        """The text with numbered accesses."""
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        if start := _KERNEL.match(line):
            self._kernel, self._arrays, self._scopes = start[1], set(), []
        if declared := _ARRAY.findall(line):
            self._arrays.update(declared)
            return line
        counter = f"pass{len(self._scopes)}" if _LOOP.match(line) else ""
        for brace in re.findall("[{}]", line):
            if brace == "{":
                self._scopes.append(counter)
            elif self._scopes:
                self._scopes.pop()
        marked = _SUBSCRIPT.sub(self._access, line)
        return f"if (int {counter} = 0; true) {marked} ++{counter};" if counter else marked

    def _access(self, access: re.Match) -> str:
        array = access[1]
        if array not in self._arrays:
            return access[0]
        self.sites.append(Site(self._kernel, array, _element(access.string, access.start())))
        at = ", ".join([str(len(self.sites) - 1), *filter(None, self._scopes)])
        return f"{array}(simulator::Site::at({at}))["


def _element(line: str, start: int) -> str:
    """The subscripted array that starts there."""
    depth = 0
    for end in range(line.index("[", start), len(line)):
        depth += {"[": 1, "]": -1}.get(line[end], 0)
        if not depth:
            return line[start : end + 1]
    return line[start:]
