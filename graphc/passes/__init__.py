"""Passes over graphs and kernels. The public surface for a user's own passes and rules is here."""

from graphc.passes import cse, dce, decompose, fuse, layout, specialise  # noqa: F401  (register)
from graphc.passes.context import Context
from graphc.passes.pass_manager import (
    Hook,
    Pass,
    PassManager,
    make_pass,
    parse_pipeline,
    register_pass,
    run_pipeline,
)

__all__ = [
    "Context", "Hook", "Pass", "PassManager", "make_pass", "parse_pipeline", "register_pass",
    "run_pipeline",
]  # fmt: skip
