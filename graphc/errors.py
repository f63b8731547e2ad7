"""The errors graphc raises, and the exit code each one means on the command line.

`ModelError`        the model or an input is wrong; the user can mend it              (exit 2)
`UnsupportedError`  the model is fine, but graphc or a target cannot do it            (exit 2)
`VerificationError` outputs differ from the reference                                 (exit 1)
`InternalError`     graphc broke one of its own invariants                            (exit 70)

`warn` tells of what is odd but does not stop a run: a `ModelWarning`, which the command line shows
in one line on stderr.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class GraphcError(Exception):
    """Base of all errors raised on purpose. `in_function` says that it names a node of a function
    body, in full: with the names of the calls around it; `located` that it names the op."""

    exit_code = 2
    in_function = False
    located = False


class ModelError(GraphcError, ValueError):
    """The model, an input or an option is wrong."""


class UnsupportedError(GraphcError, NotImplementedError):
    """The model is valid, but this operator, type or target combination is not supported."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: those that begin with it or are spelt
    much like it, if there are any."""
    import difflib  # when something is wrong, and not before

    lower = {text.lower(): text for text in known}
    begun = [text for text in lower if len(name) > 2 and text.startswith(name.lower())]
    near = list(dict.fromkeys([*begun, *difflib.get_close_matches(name.lower(), lower)]))[:3]
    return f"; did you mean {' or '.join(repr(lower[text]) for text in near)}?" if near else ""


def near_or_all(name: str, known: Iterable[str]) -> str:
    """As `did_you_mean`; where nothing is alike, all there are."""
    names = list(known)
    return did_you_mean(name, names) or f"; there are {', '.join(names)}"


NAMED = 3  # nodes of one reason that `together` names


def together(errors: Sequence[UnsupportedError]) -> UnsupportedError:
    """One error that says all of several, each "operator "node": reason": nodes by their reason."""
    if len(errors) == 1:
        return errors[0]
    nodes: dict[str, list[str]] = {}
    for error in errors:
        located = re.match(r'(\S+ "[^"]*"): (.*)', str(error), re.DOTALL)
        where, reason = located.groups() if located else ("", str(error))
        nodes.setdefault(reason, []).append(where)
    lines = [f"{len(errors)} nodes of the model are not supported:"]
    for reason, names in nodes.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"  {', '.join(names[:NAMED])}{more}: {reason}")
    return UnsupportedError("\n".join(lines))


class ModelWarning(UserWarning):
    """The model or an input is odd; what graphc makes of it is what ONNX Runtime does."""


def warn(message: str, category: type[Warning] = ModelWarning) -> None:
    """Warns whoever called graphc: the warning's place is the first caller outside of it."""
    global warned
    warned += 1
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


warned = 0  # how often
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class VerificationError(GraphcError):
    """Outputs differ from the reference by more than the tolerance."""

    exit_code = 1


class InternalError(GraphcError):
    """An invariant of the compiler does not hold; always a bug in graphc."""

    exit_code = 70


class NeedsValue(UnsupportedError):
    """A type depends on the contents of a value that is not known yet.

    `value` is the graph value whose contents are needed (set where the graph is known), or, if
    `contents` is False, only its shape. `graph` is the graph it belongs to, as far as it is typed,
    and `needs` all errors of this kind found in it, this one first.
    """

    def __init__(self, message: str, value: object = None):
        super().__init__(message)
        self.value = value
        self.contents = True
        self.graph: object = None
        self.needs: tuple[NeedsValue, ...] = (self,)


LIMITS = (MemoryError, RecursionError)  # what is raised because this process has limits


def beyond_limits(error: Exception) -> UnsupportedError:
    """What to raise in place of one of LIMITS: more memory is needed, or deeper nesting, than there
    is."""
    if isinstance(error, MemoryError):
        return UnsupportedError(f"needs more memory than there is: {str(error) or 'no more'}")
    return UnsupportedError(f"the model is nested too deeply: {error}")


@contextmanager
def within_limits() -> Iterator[None]:
    """Makes UnsupportedErrors of what ends because this process has limits."""
    try:
        yield
    except LIMITS as error:
        raise beyond_limits(error) from error
