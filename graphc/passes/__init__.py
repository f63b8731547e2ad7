"""Passes over graphs and kernels. The public surface for a user's own passes and rules is here."""

from graphc.passes import (  # noqa: F401  (register)
    checks,
    cse,
    dce,
    dead_channels,
    decompose,
    fusion,
    integers,
    layout,
    precision,
    rewriter,
    rules,
    samples,
    specialise,
)  # fmt: skip
from graphc.passes.manager.base import Hook, Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.manager.manager import PassManager, run_pipeline
from graphc.passes.manager.pipeline import make_pass, parse_pipeline
from graphc.passes.pattern import P, const, opt, rest, var
from graphc.passes.rewriter import Rule, rule

__all__ = [
    "Context", "Hook", "P", "Pass", "PassManager", "Rule", "const", "make_pass", "opt",
    "parse_pipeline", "register_pass", "rest", "rule", "run_pipeline", "var",
]  # fmt: skip
