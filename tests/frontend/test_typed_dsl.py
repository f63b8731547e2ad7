"""Types of parameters in the form that type checkers take."""

import inspect
import re
from typing import Annotated

import pytest
from typed_dsl import doubled, run

import graphc
from graphc import dsl
from graphc.ir import dtypes


def test_annotated_parameters():
    x, bias = doubled.params
    assert str(x.type) == "f32[N,4]" and str(bias.type) == "f32[]"
    (symbol,) = doubled.symbols.values()
    assert (symbol.lo, symbol.hi) == (1, 8)
    (y,) = run()
    assert y.shape == (2, 4) and (y == 2.5).all()


def test_annotated_without_a_type_of_the_dsl():
    with pytest.raises(graphc.ModelError, match="needs a type"):

        @dsl.graph
        def wrong(x: Annotated[dsl.Tensor, "f32"]):
            return x


def test_declared_element_types_are_there():
    declared = re.findall(r"^    (\w+): ElementType$", inspect.getsource(dsl), re.M)
    assert {"f32", "i64", "u8", "bf16"} <= set(declared) <= set(dtypes.BY_NAME)
    for name in declared:
        assert repr(getattr(dsl, name)) == f"dsl.{name}"
