"""Writes docs/runtime_table.md: the kernels of ONNX Runtime's CPU provider, and what graphc has.

    python docs/runtime_table.py           # writes the page
    python docs/runtime_table.py --check   # exit code 1 if the page is not up to date

A row is an operator with all types that its kernels take. What is said of it follows from the
definitions: an operator is supported if there is a definition, a reading as another operator, or a
body of others; a type, if the operands that have it take it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

import graphc.frontend.onnx_import  # noqa: F401  (registers what nodes are read as)
from graphc.frontend.upgrade import LIFTS
from graphc.ir import dtypes
from graphc.ir.opdef import OpDef, find

PAGE = Path(__file__).with_name("runtime_table.md")
HEAD = f"""# Kernels of ONNX Runtime

Written by `docs/runtime_table.py` from the kernels that ONNX Runtime {onnxruntime.__version__}
registers for its CPU provider, and from graphc's definitions.
[ONNX Runtime's own operators](runtime_operators.md) says more of those, and lists what is refused.
"""
SEARCH = "a search that runs sub-graphs; run the decoder by itself (docs/generation.md)"
MISSING = {
    "AttnLSTM": "not defined yet; a recurrent layer with an attention of its own",
    "BeamSearch": SEARCH,
    "BifurcationDetector": "not defined yet; the length of its result depends on data",
    "DynamicTimeWarping": "not defined yet; the length of its result depends on data",
    "GatherPacked": "not defined yet; it has block formats of its own",
    "GreedySearch": SEARCH,
    "Sampling": SEARCH,
    "VarlenNGramHashMapping": "not defined yet; NGramHashMapping is",
    "WhisperBeamSearch": SEARCH,
}
NAMES = {"": "ai.onnx"}
ORDER = ("com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml", "")


def kernels() -> dict[str, dict[str, dict[str, set[str]]]]:
    """Per domain and operator the types of each type variable, of the kernels of newest versions;
    graphc reads older ones as these."""
    newest: dict[tuple[str, str], int] = {}
    found: dict[str, dict[str, dict[str, set[str]]]] = {}
    own = [k for k in runtime.get_all_opkernel_def() if k.provider == "CPUExecutionProvider"]
    for kernel in own:
        key = kernel.domain, kernel.op_name
        newest[key] = max(newest.get(key, 0), kernel.version_range[1])
    for kernel in own:
        if kernel.version_range[1] == newest[kernel.domain, kernel.op_name]:
            types = found.setdefault(kernel.domain, {}).setdefault(kernel.op_name, {})
            for variable, allowed in kernel.type_constraints.items():
                types.setdefault(variable, set()).update(allowed)
    return found


def definition(domain: str, name: str) -> OpDef | None:
    """What a node becomes: its own definition, or that of the operator it is read as."""
    return find(name, domain) or (find(name) if (domain, name) in LIFTS else None)


def is_supported(domain: str, name: str) -> bool:
    """Whether an operator is, with some of its types."""
    if definition(domain, name) is not None or (domain, name) in LIFTS:
        return True
    return onnx.defs.has(name, domain) and bool(
        onnx.defs.get_schema(name, domain=domain).has_function
    )


def dtype_of(text: str) -> dtypes.DType | None:
    """graphc's type of "tensor(float)"; None if it has none, or if this is no tensor."""
    inner = text.partition("(")[2].rstrip(")").upper()
    numbers = dict(TensorProto.DataType.items())
    return dtypes.BY_ONNX.get(numbers.get(inner, 0)) if text.startswith("tensor") else None


def refused(defn: OpDef, schema: Any, variable: str, text: str) -> bool:
    """Whether an operand of a type variable does not take a type."""
    dtype = dtype_of(text)
    if dtype is None:
        return text.startswith("tensor")
    for number, formal in enumerate(schema.inputs):
        if formal.typeStr == variable and defn.params:
            param = defn.params[min(number, len(defn.params) - 1)]
            if not param.accepts.accepts(dtype):
                return True
    return False


def verdict(domain: str, name: str, types: dict[str, set[str]], schema: Any) -> str:
    """What a row says: supported, supported but for some types, or why not."""
    if not is_supported(domain, name):
        return f"no: {MISSING[name]}"
    defn = definition(domain, name)
    if defn is None or schema is None:
        return "yes"
    lacking = [
        f"{variable} = {', '.join(sorted(bad))}"
        for variable, allowed in sorted(types.items())
        if (bad := {short(t) for t in allowed if refused(defn, schema, variable, t)})
    ]
    return f"yes, but for {'; '.join(lacking)}, which graphc lacks" if lacking else "yes"


def short(text: str) -> str:
    """A type without the word tensor."""
    return text[7:-1] if text.startswith("tensor(") else text


def rows(domain: str, operators: dict[str, dict[str, set[str]]], schemas: dict) -> Iterator[str]:
    """The rows of a domain's table."""
    for name, types in sorted(operators.items()):
        schema = schemas.get((domain, name))
        listed = "; ".join(
            f"{variable}: {', '.join(sorted(map(short, allowed)))}"
            for variable, allowed in sorted(types.items())
        )
        yield f"| {name} | {listed or 'as declared'} | {verdict(domain, name, types, schema)} |"


def page() -> str:
    """The text of the page."""
    schemas = {(s.domain, s.name): s for s in runtime.get_all_operator_schema()}
    found, lines = kernels(), [HEAD]
    for domain in ORDER:
        operators = found[domain]
        count = sum(is_supported(domain, name) for name in operators)
        lines += [
            f"## {NAMES.get(domain, domain)}",
            "",
            f"{count} of {len(operators)} operators.",
            "",
        ]
        lines += ["| operator | types | supported |", "|---|---|---|"]
        lines += [*rows(domain, operators, schemas), ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    return int(PAGE.read_text() != page())


if __name__ == "__main__":
    sys.exit(main())
