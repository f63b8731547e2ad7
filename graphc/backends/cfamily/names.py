"""Names and comments in C: what a user calls things never breaks the text around it.

An identifier keeps its spelling unless a language of the family, a macro of their libraries, or
another name forbids it; then a number follows. A comment has nothing in it that ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphc.ir import dtypes

_RESERVED_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t
while xor xor_eq

NAN INFINITY NULL errno linux unix i386 main memcpy memset run stderr stdin stdout
int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t size_t
isnan isinf acos acosh asin asinh atan atanh ceil copysign cos cosh erf exp fabs floor fmod log pow
rint sin sinh sqrt tan tanh trunc
"""
_HEADERS = """
assert complex ctype cuda errno fenv float inttypes iso646 limits locale math setjmp signal stdarg
stdbool stddef stdint stdio stdlib string tgmath time wchar wctype
"""
_CMAKE_TARGETS = "all clean depend edit_cache help install package rebuild_cache test"
_NO_BUNDLES = frozenset(f"{_HEADERS} {_CMAKE_TARGETS}".split())
_RESERVED = frozenset(w + f for w in _RESERVED_WORDS.split() for f in ("", "f"))
_HELPER = re.compile(rf"\w+_(?:{'|'.join(dtypes.BY_NAME)}|narrow|odd|bits)\Z")


def prefix(name: str) -> str:
    """What identifiers may begin with: `name` as far as C allows it."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    return f"v{plain}" if plain[0] in "_0123456789" else plain


def identifier(name: str, taken: Iterable[str] = ()) -> str:
    """A C identifier like `name` that is no keyword and not in `taken`."""
    plain = prefix(name)
    unique, count = plain, 0
    while unique in taken or unique in _RESERVED or _HELPER.match(unique):
        count += 1
        unique = f"{plain}_{count}"
    return unique


def bundle_name(name: str, taken: Iterable[str] = ()) -> str:
    """What the files and symbols of a model begin with: like `name`, an identifier, not in `taken`.
    NAME.h hides no header of C's library or CUDA's, and CMake may call a library so."""
    plain = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]", "_", name)).strip("_")[:40].strip("_")
    if not plain or plain.lower() in _NO_BUNDLES or plain in taken:
        plain = f"{plain}_model".strip("_")
    return prefix(plain)


def text_literal(text: str) -> str:
    """A text as a literal of C or C++, of the bytes of UTF-8."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{plain}"'


def comment(text: str) -> str:
    """A C comment on one line (or several, as the text has)."""
    plain = text.replace("\\", "/")
    safe = "".join(c if c == "\n" or c.isprintable() and ord(c) < 128 else "?" for c in plain)
    for danger, harmless in (("*/", "* /"), ("/*", "/ *"), ("??", "? ?")):
        while danger in safe:  # trigraphs among them
            safe = safe.replace(danger, harmless)
    return "/* " + safe.replace("\n", "\n * ") + " */"
