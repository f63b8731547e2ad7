"""No operator reads where data says without a check: the sweep that a new operator joins by itself.

It goes over the scalar bodies of all operators that have operands in narrow_cases.py, those that
composites are made of included.
"""

from __future__ import annotations

import functools

import pytest
from narrow_cases import cases_of
from test_narrow_floats import operators

from graphc.ir.conditions import asked_by
from graphc.ir.dtypes import f32
from graphc.ir.expr import Load, loads
from graphc.ir.graph import Op
from graphc.ir.infer import expand, op_body
from graphc.passes.specialise import specialise

UNCHECKED = {  # operators whose definition says what an index out of range means
    "DeformConv": "positions outside of the image read zeros",
    "ExpertProduct": "only TopK over the experts says which are chosen",
    "GridSample": "positions outside of the image are padded",
    "GatherBlockQuantized": "ONNX Runtime gives zeros",
    "LabelledLoss": "its labels are checked where the loss itself takes them",
    "Lookup": "its table has an entry for every byte",
}
OPERATORS = {defn.full_name: defn for defn in operators()}


@functools.cache
def bodies(name: str) -> list[Op]:
    """Ops with scalar bodies that an operator is, or is made of, with static types."""
    found: list[Op] = []
    defn = OPERATORS[name]
    pending = [op for case in cases_of(defn) for op in specialise(case.graph(defn, f32)).walk()]
    while pending:
        op = pending.pop()
        if op.defn.form == "composite":
            pending += expand(op)[0].walk()
        elif op.defn.form in ("elementwise", "indexed"):
            found.append(op)
    return found


def reads_where_data_says(op: Op) -> bool:
    """Whether an index of a load is itself loaded."""
    return any(
        isinstance(inner, Load)
        for k in range(len(op.outputs))
        for load in loads(op_body(op, k))
        for index in load.index
        for inner in loads(index)
    )


@pytest.mark.suite(100)
@pytest.mark.parametrize("name", OPERATORS)
def test_indices_from_data_are_checked(name):
    for op in bodies(name):
        if reads_where_data_says(op) and op.name not in UNCHECKED:
            assert asked_by(op), f"{op.name} reads {op_body(op)} unchecked"


def test_the_sweep_sees_indices_and_no_exception_is_needless():
    reading = {op.name for name in OPERATORS for op in bodies(name) if reads_where_data_says(op)}
    assert {"Gather", "GatherND", "GatherElements"} <= reading
    assert set(UNCHECKED) <= reading
