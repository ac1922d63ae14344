"""The Gaussian-process estimate of points that were not measured."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from bireme.tune.samplers.gaussian_process import GaussianProcess, _gain

ENDS = [(0.0,), (1.0,)]


def test_what_was_measured_is_known():
    model = GaussianProcess([(0.0,), (0.5,), (1.0,)], [0.0, 0.4, 0.1])
    assert model.expected([(0.0,), (0.5,), (1.0,)]) == pytest.approx([0.0, 0.4, 0.1], abs=0.05)
    assert max(model.gains([(0.5,)])) < 0.03


def test_between_two_it_expects_something_between():
    (middle,) = GaussianProcess(ENDS, [0.0, 1.0]).expected([(0.5,)])
    assert 0.3 < middle < 0.7


def test_the_unknown_is_worth_more_than_the_known():
    known, near, far = GaussianProcess([(0.0,), (0.1,)], [0.0, 0.01]).gains([(0.1,), (0.2,), (1.0,)])
    assert known < near < far


def test_near_what_is_poor_there_is_little_to_gain():
    model = GaussianProcess([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)], [0.0, -1.0, -1.1])
    beside_the_best, beside_the_worst = model.gains([(0.1, 0.0), (1.0, 0.9)])
    assert beside_the_worst < 0.2 * beside_the_best


def test_more_than_the_whole_way_is_no_farther():
    model = GaussianProcess([(0.0,)], [0.0])
    assert model.gains([(10.0,)]) == model.gains([(20.0,)])


def test_one_measurement_is_enough_to_begin_and_equal_ones_do_no_harm():
    assert GaussianProcess([(0.0,)], [3.0]).expected([(1.0,)]) == pytest.approx([3.0])
    assert all(map(math.isfinite, GaussianProcess([*ENDS, *ENDS], [1.0] * 4).gains([(0.5,)])))


def test_the_same_measurements_give_the_same_answers():
    one, other = (GaussianProcess(ENDS, [0.0, 1.0]).gains([(0.3,), (0.6,)]) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("ahead", [-3.0, -0.5, 0.0, 0.7, 2.0])
def test_a_gain_is_the_mean_of_what_is_above_zero(ahead):
    """Against the normal distribution of the standard library."""
    normal = NormalDist(ahead, 1.5)
    expected = 1.5**2 * normal.pdf(0.0) + ahead * (1 - normal.cdf(0.0))
    assert _gain(np.array([ahead]), np.array([1.5]))[0] == pytest.approx(expected, abs=1e-6)


def test_runs_of_the_same_places_tell_the_noise():
    def noise(deviation: float) -> float:
        model = GaussianProcess(ENDS, [0.0, 0.3], [20, 20], 38 * deviation**2)
        return float(model.weights @ model.noises)

    assert noise(0.002) < 0.004 and 0.07 < noise(0.1) < 0.14


@pytest.mark.parametrize("logarithmic", [False, True])
def test_of_two_views_of_an_axis_the_one_that_explains_is_believed(logarithmic):
    at = [number / 1000 for number in (0, 3, 10, 30, 100, 200, 300, 500, 700, 900, 1000)]
    views = [(one, math.log1p(1000 * one) / math.log1p(1000)) for one in at]
    values = [math.sin(5 * view[logarithmic]) for view in views]
    model = GaussianProcess(views, values, pairs=[(0, 1)])
    assert model.weights @ model._seen[:, int(logarithmic)] > 0.9
