"""Bodies that cannot run, in graphs that can: branches that nobody may take, loops of no trips.

    fail_instead   a body becomes ops that raise the error, which names what was wrong and where
    failure        the error that a body has become, if it is one

A `Fail` gives one result. Its `type` is what the other branch gives, once that is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import GraphcError, ModelError, NeedsValue, UnsupportedError
from graphc.ir.graph import Op, Region, Value
from graphc.ir.opdef import host, lookup
from graphc.ir.types import Type

DEFERRED = (ModelError, UnsupportedError)  # what waits until a body is run


def _declared(*, message: str, unsupported: int = 0, type: Type | None = None) -> Type:
    if type is None:
        raise NeedsValue("it only fails", None)
    return type


@host("Fail", infer=_declared, domain="graphc")
def fail(*, message: str, unsupported: int = 0, type: Type | None = None) -> None:
    """Raises an error that was found earlier."""
    raise _error(message, unsupported)


def _error(message: str, unsupported: int) -> GraphcError:
    error = UnsupportedError(message) if unsupported else ModelError(message)
    error.located = True
    return error


def failure(region: Region) -> GraphcError | None:
    """The error that running a region raises, if that is all it does."""
    for value in region.results[:1]:
        if value.producer is not None and value.producer.defn is lookup("Fail", "graphc"):
            return _error(**{k: v for k, v in value.producer.attrs.items() if k != "type"})
    return None


def fail_instead(region: Region, error: GraphcError, names: Sequence[str]) -> None:
    """Makes a region raise an error; its results, of these names, have no types yet."""
    region.set_results([])
    for op in reversed(region.ops.copy()):
        op.erase()
    region.set_results(failing(region, error, names))


def failing(region: Region, error: Exception, names: Sequence[str]) -> list[Value]:
    """Adds values of these names, each of which raises the error and has no type yet."""
    attrs = {"message": str(error), "unsupported": int(isinstance(error, UnsupportedError))}
    made = [region.append(Op(lookup("Fail", "graphc"), [], attrs)).output for _ in names]
    for value, name in zip(made, names):
        value.name = name
    return made


def fail_with_types(region: Region, types: Sequence[Type | None]) -> None:
    """Gives the results of a region that only fails these types."""
    for value, type in zip(region.results, types):
        assert value.producer is not None
        value.producer.attrs["type"] = value.type = type
