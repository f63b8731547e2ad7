"""Targets: what models are compiled for. Importing this registers those of graphc; none of their
backends is loaded before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphc.errors import ModelError, UnsupportedError, did_you_mean, near_or_all
from graphc.targets import cpu, cuda, micro_c, plain  # noqa: F401  (register)
from graphc.targets.base import TARGETS, Target, option, options_of, register_target

__all__ = [
    "DEFAULT", "TARGETS", "Target", "configured", "lookup", "option", "options_of", "owner_of",
    "register_target",
]  # fmt: skip

DEFAULT = cpu.Cpu.name


def lookup(name: str) -> type[Target]:
    """The target of that name; ModelError tells which there are."""
    if name not in TARGETS:
        near = did_you_mean(name, TARGETS)
        raise ModelError(f"target {name!r} is not one of {', '.join(TARGETS)}{near}")
    return TARGETS[name]


def configured(
    target: str | Target, options: Mapping[str, Any], others: Sequence[str] = ()
) -> Target:
    """A target with options; those that are what they are anyhow may be of another target. `others`
    are names that are options too."""
    cls = lookup(target) if isinstance(target, str) else type(target)
    given = {}
    for name, value in options.items():
        owner = owner_of(name, cls)
        if owner is None:
            known = near_or_all(name, [*others, *options_of(cls)])
            raise ModelError(f"there is no option {name!r}{known}")
        if owner is cls:
            given[name] = value
        elif value != options_of(owner)[name].default:
            raise UnsupportedError(
                f"target {cls.name!r} has no {name}={value!r}; target {owner.name!r} has"
            )
    return cls(**given) if isinstance(target, str) else replace(target, **given)


def owner_of(
    option: str, preferred: type[Target], command: str | None = None
) -> type[Target] | None:
    """The target that has an option: the preferred one if it does, else the first."""
    having = (cls for cls in (preferred, *TARGETS.values()) if option in options_of(cls, command))
    return next(having, None)
