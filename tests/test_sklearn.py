"""Estimators of scikit-learn at default options agree with ONNX Runtime (sklearn_models.py)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn fits the models")
pytest.importorskip("skl2onnx", reason="skl2onnx converts them")

import sklearn_models as models

MOST_DECLINED = 0.25  # of a family, in float32: versions of skl2onnx differ in what they convert


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_estimators(family, dtype):
    names = models.FAMILIES[family].split()
    found = {name: models.judged(lambda n=name: models.fitted(n, dtype)) for name in names}
    assert not {n: why for n, (result, why) in found.items() if result == "differs"}
    declined = {n: why for n, (result, why) in found.items() if result == "declined"}
    assert dtype is np.float64 or len(declined) <= MOST_DECLINED * len(names), declined


@pytest.mark.parametrize("name", models.OTHERS)
def test_columns_and_text(name):
    result, why = models.judged(models.OTHERS[name])
    if result == "declined":
        pytest.skip(why)
    assert result == "agrees", why
