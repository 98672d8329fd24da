from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ogkd.images.plain import stretch, to_bytes


@given(hnp.arrays(np.float64, (3, 4), elements=st.floats(allow_nan=False, allow_infinity=False)))
@example(np.array([[-1.7e308, 0.0, 1e292, 1.7e308]]))
@example(np.array([[-np.finfo(np.float64).max, 3e292]]))
def test_scaling_keeps_order_and_spans_the_bytes(values):
    flat, out = values.ravel(), stretch(values).ravel().astype(int)
    order = np.argsort(flat, kind="stable")
    assert (np.diff(out[order]) >= 0).all()
    if flat.max() > flat.min():
        assert (out.min(), out.max()) == (0, 255)
    else:
        assert (out == 0).all()


@given(hnp.arrays(np.uint8, (3, 4)))
def test_bytes_stay_as_they_are(values):
    np.testing.assert_array_equal(to_bytes(values), values)


@given(hnp.arrays(np.int32, (3, 4)), st.integers(1, 9), st.integers(-99, 99))
def test_units_do_not_matter(values, factor, shift):
    deep = values.astype(np.float64)
    np.testing.assert_allclose(stretch(deep * factor + shift), stretch(values), atol=1)


def test_what_is_not_valid_does_not_count_and_is_black():
    values = np.array([[0, 10, 20, 10_000]])
    valid = np.array([[True, True, True, False]])
    assert stretch(values, valid=valid).tolist() == [[0, 128, 255, 0]]
    assert stretch(np.full((1, 2), np.nan)).tolist() == [[0, 0]]


def test_complex_numbers_are_no_gray_levels():
    with pytest.raises(ValueError, match="complex"):
        stretch(np.zeros((2, 2), np.complex64))
