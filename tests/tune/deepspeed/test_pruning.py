"""Whether a stage can still win."""

from __future__ import annotations

import pytest

from bireme.tune.deepspeed.limits import cannot_win, flat

FLAT = {8: 100.0, 16: 101.0}
RISING = {8: 100.0, 16: 150.0}


@pytest.mark.parametrize(
    ("speeds", "largest", "lost"),
    [
        ({}, {}, False),
        ({0: {}}, {}, False),
        ({0: FLAT}, {}, False),  # stage 1 was not tried yet: sharing out the optimizer may well pay
        ({0: FLAT, 1: {8: 90.0, 16: 91.0}}, {}, True),
        ({0: FLAT, 1: {8: 98.0, 16: 99.0}}, {}, False),
        ({0: FLAT, 1: {8: 90.0, 16: 120.0}}, {}, False),
        ({0: RISING, 1: {8: 90.0, 16: 91.0}}, {}, False),
        ({0: FLAT, 1: {32: 50.0}}, {}, False),  # nothing to compare
        ({0: RISING}, {2: 15}, True),
        ({0: RISING}, {2: 16}, False),
        ({3: FLAT}, {2: 1}, False),  # only lower stages tell
    ],
)
def test_cannot_win(speeds, largest, lost):
    assert bool(cannot_win(2, speeds, largest)) == lost


@pytest.mark.parametrize(
    ("speeds", "is_flat"),
    [
        ({}, False),
        ({8: 100.0}, False),
        (FLAT, True),
        (RISING, False),
        ({16: 100.0, 20: 101.0}, False),  # too near each other to tell
        ({8: 99.0, 16: 100.0, 20: 101.0}, True),
        ({8: 100.0, 16: 90.0}, True),
    ],
)
def test_flat(speeds, is_flat):
    assert flat(speeds) == is_flat
