"""Dataclasses that are made quickly.

`dataclass` makes classes of the standard library's kind: fields, defaults, `replace` and whatever
else it offers work as ever. Before Python 3.13 the library compiles each method of each class from
text, which took a tenth of a second of a process that compiles a model. Here that is done for
`__init__` alone, once it is asked for, as many classes are not used in a process. Methods that
compare, hash and print read fields by a getter, which is as fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING


class _Factory:
    """Stands for an argument that is made by a factory if it is not given."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, eq=True, frozen=False, slots=False, kw_only=False):
        """As `dataclasses.dataclass`, of these options."""

        def make(cls):
            if slots:
                options = {"eq": eq, "frozen": frozen, "slots": slots, "kw_only": kw_only}
                return dataclasses.dataclass(cls, **options)
            return _completed(cls, eq, frozen, kw_only)

        return make if cls is None else make(cls)


def _is_frozen(cls: type) -> bool:
    """Whether a class that a class is made of is a frozen dataclass."""
    known = (getattr(base, "__dataclass_params__", None) for base in cls.__mro__[1:])
    return any(params is not None and params.frozen for params in known)


def _completed(cls: type, eq: bool, frozen: bool, kw_only: bool) -> type:
    """A class with the methods of a dataclass, less those that it has itself."""
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # or the library puts a signature together
    derives = _is_frozen(cls)  # then the library sees to what is frozen
    options = {"init": False, "repr": False, "eq": False, "frozen": frozen and derives}
    dataclasses.dataclass(**options, kw_only=kw_only)(cls)  # type: ignore[call-overload]
    cls.__dataclass_params__.frozen = frozen  # type: ignore[attr-defined]  # for derived classes
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    methods = [_printing(fields)]
    if eq:
        compared = _getter([f.name for f in fields if f.compare])
        methods.append(_comparing(compared))
        if frozen:
            methods.append(_hashing(compared))
        elif "__hash__" not in own:
            cls.__hash__ = None  # type: ignore[assignment]
    if frozen and not derives:
        methods += _refusing(cls, {f.name for f in fields})
    for method in methods:
        if method.__name__ not in own:
            _put(cls, method)
    if "__init__" not in own:
        cls.__init__ = _Filling(cls, fields, frozen)  # type: ignore[misc]
    return cls


def _put(cls: type, method: Callable) -> None:
    """Makes a function a method of a class."""
    method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
    method.__module__ = cls.__module__
    setattr(cls, method.__name__, method)


class _Filling:
    """Stands for the `__init__` of a class, which takes its place when it is asked for."""

    def __init__(self, cls: type, fields: tuple[Field, ...], frozen: bool):
        self.cls, self.fields, self.frozen = cls, fields, frozen

    def __get__(self, record: object, owner: type | None = None) -> Callable:
        made = _filling(self.cls, self.fields, self.frozen)
        _put(self.cls, made)
        return made.__get__(record, owner)


def _getter(names: list[str]) -> Callable[[object], tuple]:
    """What gives the values of some fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _comparing(values: Callable[[object], tuple]) -> Callable:
    def __eq__(self: object, other: object) -> bool:  # noqa: N807 (a method)
        return (
            values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
        )

    return __eq__


def _hashing(values: Callable[[object], tuple]) -> Callable:
    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _printing(fields: tuple[Field, ...]) -> Callable:
    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields if f.repr)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    return __repr__


def _refusing(cls: type, names: set[str]) -> list[Callable]:
    """The methods of a class whose fields stay as they are."""

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return [__setattr__, __delattr__]


def _filling(cls: type, fields: tuple[Field, ...], frozen: bool) -> Callable:
    """The `__init__` of a class."""
    scope: dict[str, object] = {"_put": object.__setattr__, "_factory": _FACTORY}
    given: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for field in fields:
        name, default = field.name, f"_default_{field.name}"
        argument = value = name
        if field.default_factory is not MISSING:
            scope[default], argument = field.default_factory, f"{name}=_factory"
            value = (
                f"{default}() if {name} is _factory else {name}" if field.init else f"{default}()"
            )
        elif not field.init:
            continue
        elif field.default is not MISSING:
            scope[default], argument = field.default, f"{name}={default}"
        if field.init:
            (named if field.kw_only else given).append(argument)
        lines.append(f"_put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    arguments = ", ".join(["self", *given, *(["*", *named] if named else [])])
    exec("\n ".join([f"def __init__({arguments}):", *lines, "return"]), scope)
    made: Callable = scope["__init__"]  # type: ignore[assignment]
    made.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return made
