"""Estimators of scikit-learn at default options agree with ONNX Runtime (sklearn_models.py)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn fits the models")
pytest.importorskip("skl2onnx", reason="skl2onnx converts them")

import sklearn_models as models

MOST_DECLINED = 0.25  # of a family: versions of skl2onnx differ in what they convert


@pytest.mark.suite(1)
@pytest.mark.parametrize("family", models.FAMILIES)
def test_estimators(family):
    """Every fifth estimator is compiled; the interpreter runs the others, as it has to agree."""
    names = models.FAMILIES[family].split()
    found = {
        name: models.judged(lambda n=name: models.fitted(n, np.float32), compiled=number % 5 == 0)
        for number, name in enumerate(names)
    }
    assert not {n: why for n, (result, why) in found.items() if result == "differs"}
    declined = {n: why for n, (result, why) in found.items() if result == "declined"}
    assert len(declined) <= MOST_DECLINED * len(names), declined


@pytest.mark.parametrize("family", models.FAMILIES)
def test_estimators_of_doubles(family):
    """The first two of a family; not all of them are taken by ONNX Runtime."""
    for name in models.FAMILIES[family].split()[:2]:
        result, why = models.judged(lambda n=name: models.fitted(n, np.float64), compiled=False)
        assert result != "differs", f"{name}: {why}"


@pytest.mark.parametrize("name", models.OTHERS)
def test_columns_and_text(name):
    result, why = models.judged(models.OTHERS[name])
    if result == "declined":
        pytest.skip(why)
    assert result == "agrees", why
