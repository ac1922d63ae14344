"""The contract of all searches, and the particulars of each."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from operator import eq

import pytest

from bireme.errors import BadInputError
from bireme.tune.samplers import KINDS, check, make
from bireme.tune.space.points import Parameter, Space, Union, key_of, shuffled
from bireme.tune.space.value_lists import read
from bireme.tune.study.study import Study
from tests.kit import needs
from tests.unit.tune.samplers.searching import Search

SPACE = Union(tuple(Space((Parameter("stage", (stage,)), Parameter("micro", (4, 8, 16, 32)))) for stage in (0, 1, 2)))
MIXED = Union((
    Space((Parameter("stage", (0,)), Parameter("kind", ("a", "b", None)))),
    Space((Parameter("stage", (1,)), Parameter("kind", ("a", "b", None)), Parameter("overlap", (True, False)))),
))  # fmt: skip

every_search = pytest.mark.parametrize("kind", KINDS)
every_space = pytest.mark.parametrize("space", [SPACE, MIXED, Space(())], ids=["numbers", "mixed", "empty"])


def speed(point) -> float:
    return 10 * point.get("micro", 1) ** 0.5 / (1 + point.get("stage", 0))


def asked(search, count: int = 10**6) -> list[dict[str, object]]:
    """Asks and tells until nothing more comes."""
    points = []
    while len(points) < count and (point := search.ask()) is not None:
        points.append(point)
        search.tell(point, speed(point))
    return points


# -- the contract ------------------------------------------------------------------------------------


@every_space
@every_search
def test_every_point_once(kind, space):
    search = Search(kind, space, seed=3)
    keys = [key_of(point) for point in asked(search)]
    assert len(keys) == len(set(keys))
    assert set(keys) == {key_of(point) for point in space.points()}


@every_search
def test_what_is_pending_is_not_asked_for_again(kind):
    search = Search(kind, SPACE)
    points = [search.ask() for _ in range(SPACE.size)]
    assert len({key_of(point) for point in points}) == SPACE.size
    assert search.ask() is None
    for point in points:
        search.tell(point, 1.0)
    assert search.ask() is None and not search.pending


@every_search
def test_the_same_seed_the_same_points(kind):
    assert asked(Search(kind, SPACE, seed=5)) == asked(Search(kind, SPACE, seed=5))


@pytest.mark.parametrize("kind", ["random", "model_based"])
def test_another_seed_other_points(kind):
    assert len({str(asked(Search(kind, SPACE, seed=seed))) for seed in range(4)}) > 1


@pytest.mark.parametrize("cut", [0, 1, 5, 11])
@every_search
def test_goes_on_when_told_the_past(kind, cut):
    undisturbed = Search(kind, SPACE, seed=7)
    points = asked(undisturbed)
    resumed = Search(kind, SPACE, seed=7)
    for point in points[:cut]:
        resumed.tell(point, speed(point))
    assert asked(resumed) == points[cut:]


@every_search
def test_what_was_interrupted_is_asked_for_again(kind):
    search = Search(kind, SPACE)
    point = search.ask()
    search.forget(point)
    assert not search.pending
    assert key_of(point) in {key_of(other) for other in asked(search)}


@every_search
def test_what_is_ruled_out_is_not_asked_for(kind):
    rest = asked(Search(kind, SPACE, excluded=lambda point: point["micro"] > 8))
    assert len(rest) == 6 and all(point["micro"] <= 8 for point in rest)
    assert Search(kind, SPACE, excluded=lambda point: True).ask() is None


@every_search
def test_the_best_is_the_greatest(kind):
    search = Search(kind, SPACE)
    asked(search)
    assert search.best is not None and search.best.point == {"stage": 0, "micro": 32}


@pytest.mark.parametrize("kind", [*KINDS, "optuna:TPE"])
def test_a_sampler_knows_only_what_it_is_given(kind):
    """The same arguments, the same point: whatever was asked before, and as often as one likes."""
    if kind.startswith("optuna"):
        needs.module("optuna")
    search = Search(kind, SPACE, seed=3)
    given = []
    for _ in range(9):
        given.append((dict(search.finished), dict(search.pending)))
        point = search.ask()
        assert search.sampler.propose(SPACE, *given[-1]) == point
        if len(given) % 3:
            search.tell(point, speed(point))
    proposed = [make(kind, 3).propose(SPACE, *each) for each in given]
    assert [search.sampler.propose(SPACE, *each) for each in given] == proposed
    assert [search.sampler.propose(SPACE, *each) for each in reversed(given)] == proposed[::-1]


@every_search
def test_failures_do_not_win(kind):
    search = Search(kind, SPACE)
    while (point := search.ask()) is not None:
        if point["micro"] == 32:
            search.tell(point, None)
        else:
            search.tell(point, speed(point))
    assert search.best is not None
    assert search.best.point == {"stage": 0, "micro": 16}


@every_search
def test_nothing_works(kind):
    search = Search(kind, SPACE)
    count = 0
    while (point := search.ask()) is not None:
        search.tell(point, None)
        count += 1
    assert count == SPACE.size
    assert search.best is None


def test_unknown_words():
    with pytest.raises(BadInputError, match="unknown search: 'annealing'"):
        make("annealing")


# -- each one's own ----------------------------------------------------------------------------------


def test_grid_keeps_the_order():
    assert asked(Search("gridsearch", SPACE)) == list(SPACE.points())


def test_a_forgotten_point_comes_next_in_a_grid():
    search = Search("gridsearch", SPACE)
    first, second = search.ask(), search.ask()
    search.forget(first)
    assert search.ask() == first
    assert search.ask() not in (first, second)


def test_points_that_are_forgotten_again_and_again_cost_nothing():
    """As where each end makes what was to come next be chosen anew."""
    search = Search("gridsearch", Space((Parameter("x", tuple(range(5000))),)))
    seen = []
    while (point := search.ask()) is not None:
        search.forget(point)
        again = search.ask()
        assert again == point
        search.tell(again, 1.0)
        seen.append(again["x"])
    assert seen == list(range(5000))


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_shuffled_gives_every_number_once(size):
    assert sorted(shuffled(size, 1)) == list(range(size))
    assert size < 100 or list(shuffled(size, 1)) != list(range(size))


def test_a_long_grid_is_walked_once():
    class Counted(Space):
        def points(self):
            for number, point in enumerate(super().points()):
                counts.append(number)
                yield point

    counts: list[int] = []
    search = Search("gridsearch", Counted((Parameter("x", tuple(range(500))),)))
    assert len(asked(search)) == 500
    assert len(counts) == 500


def test_random_does_not_draw_more_than_it_needs():
    space = Space(tuple(Parameter(f"d{number}", tuple(range(100))) for number in range(10)))
    assert len({key_of(point) for point in asked(Search("random", space), 20)}) == 20


@pytest.mark.slow
def test_the_model_finds_the_winner_sooner_than_chance():
    """Of 60 points, over ten seeds; by chance half of them would have to be tried."""
    space = Space((
        Parameter("stage", (0, 1, 2)),
        Parameter("overlap", (True, False)),
        Parameter("micro", (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)),
    ))  # fmt: skip

    def trials(seed: int) -> int:
        search = Search("model_based", space, seed=seed)
        for count in range(1, space.size + 1):
            point = search.ask()
            search.tell(point, speed(point) * (1.1 if point["overlap"] else 1.0))
            if search.best.point == {"stage": 0, "overlap": True, "micro": 32}:
                return count
        raise AssertionError("never found")

    assert sum(trials(seed) for seed in range(10)) / 10 < space.size / 4


@pytest.mark.slow
def test_the_model_learns_the_wall():
    """Half of the points run out of memory, and the best is beside them; of those tried, fewer than half do."""
    space = Space((Parameter("stage", (0, 1, 2, 3)), Parameter("micro", tuple(range(1, 17)))))
    broken = tried = 0
    for seed in range(3):
        search = Search("model_based", space, seed=seed)
        while search.promising:
            point = search.ask()
            fits = point["micro"] <= 8
            search.tell(point, speed(point) if fits else None)
            tried, broken = tried + 1, broken + (not fits)
        assert search.best.value > 0.75 * speed({"stage": 0, "micro": 8})
    assert broken < 0.5 * tried
    assert tried / 3 < 20


def test_a_model_stops_when_there_is_nothing_to_hope_for():
    search = Search("model_based", SPACE)
    tried = 0
    while search.promising:
        point = search.ask()
        search.tell(point, speed(point))
        tried += 1
    assert search.best.point == {"stage": 0, "micro": 32}
    assert tried <= 8
    assert search.ask() is not None  # who wants may go on


def test_a_model_does_not_give_up_before_it_knows_what_is_beside_the_best():
    """A ridge where a product is 16, which rises to its middle: all that is beside the ridge looks bad."""
    sizes = Parameter(name="m", choices=(1, 2, 4, 8, 16)), Parameter(name="n", choices=(1, 2, 4, 8, 16))
    space = Space((*sizes, Parameter(name="k", choices=(1, 2, 3, 4))))

    def ridge(point) -> float:
        off, apart = abs(math.log2(point["m"] * point["n"] / 16)), abs(math.log2(point["m"] / point["n"]))
        return (1 - 0.02 * apart) * (1 + 0.001 * point["k"]) / (1 + off)

    for seed in range(5):
        search = Search("model_based", space, seed, repeats=True, negligible=0.0004)
        while search.promising and (point := search.ask()):
            search.tell(point, ridge(point))
        best = search.best.point
        for name, choices in (("m", (1, 2, 4, 8, 16)), ("n", (1, 2, 4, 8, 16))):
            at = choices.index(best[name])
            beside = [{**best, name: choices[other]} for other in (at - 1, at + 1) if 0 <= other < 5]
            assert not any(map(search.open, beside)), (seed, best)


def test_a_model_does_not_give_up_before_anything_works():
    search = Search("model_based", SPACE)
    for _ in range(11):
        search.tell(search.ask(), None)
        assert search.promising


def test_a_model_counts_on_what_is_pending():
    """Asked for several at once, it does not ask for all: what is pending may tell what the others would."""
    search = Search("model_based", SPACE)
    for _ in range(4):
        point = search.ask()
        search.tell(point, speed(point))
    while search.promising:
        assert search.ask() is not None
    assert len(search.pending) < 8


@every_search
def test_every_search_says_whether_it_hopes(kind):
    assert Search(kind, SPACE).promising


@pytest.mark.slow
def test_a_large_space_can_be_modelled():
    space = Space(tuple(Parameter(f"d{number}", tuple(range(10))) for number in range(8)))
    points = asked(Search("model_based", space), 12)
    assert len({key_of(point) for point in points}) == 12


def test_numpy_is_imported_by_the_model_only():
    code = "import sys, bireme.tune.samplers as s; s.make('random'); "
    code += "print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_samplers_of_optuna():
    needs.module("optuna")
    search = Search("optuna:tpe", MIXED)
    assert len(asked(search)) == MIXED.size
    for name in ("annealing", "Grid", "PartialFixed", "BruteForce", "Base"):
        with pytest.raises(BadInputError, match=f"cannot search by optuna:{name}\n.*tpe"):
            Search(f"optuna:{name}", SPACE)


def test_every_sampler_that_is_listed_works():
    needs.module("optuna")
    with pytest.raises(BadInputError) as caught:
        check("optuna:x")
    names = caught.value.hint.removeprefix("choose one of ").split(", ")
    assert {"tpe", "random", "qmc", "nsgaii"} <= set(names)
    for name in names:
        try:
            search = Search(f"optuna:{name}", MIXED)
        except BadInputError as error:
            assert "type: pip install" in str(error)
        else:
            assert len(asked(search)) == MIXED.size


def test_neighbouring_seeds_share_nothing_by_optuna():
    needs.module("optuna")
    space = Space(tuple(Parameter(f"d{number}", (0, 1)) for number in range(8)))
    one, other = (asked(Search("optuna:random", space, seed=seed), 9) for seed in (1, 2))
    assert sum(map(eq, one[1:], other)) <= 1


# -- how much is tried -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_finds_a_smooth_peak_of_a_million():
    """Within half a percent after 40 runs."""
    space = Space((Parameter("x", range(1, 10**6 + 1)),))
    search = Search("model_based", space, 1)
    for _ in range(40):
        point = search.ask()
        search.tell(point, 1 / (1 + ((point["x"] / 10**6 - 0.37) / 0.09) ** 2))
    assert 1 - search.best.value <= 0.005


# -- what the model believes -------------------------------------------------------------------------

LINE = Space((Parameter("x", tuple(range(12))),))


def test_a_model_expects_what_was_measured():
    search = Search("model_based", LINE)
    for x in range(0, 12, 2):
        search.tell({"x": x}, math.exp(0.04 * x))
    expected = {
        point["x"]: (mean, deviation) for mean, deviation, point in search.sampler.estimates(LINE, search.finished)
    }
    assert [expected[x][0] for x in range(0, 12, 2)] == pytest.approx([0.04 * x for x in range(0, 12, 2)], abs=0.02)
    assert all(deviation < 0.1 for _, deviation in expected.values())


def test_a_pruned_trial_is_at_most_as_good_as_its_figure():
    """It was stopped because it could not be better than 9; what is around it says that it is worse."""
    search = Search("model_based", LINE)
    for x in (0, 1, 2, 4, 5, 6):
        search.tell({"x": x}, 2.0 + 0.01 * x)
    search.tell({"x": 3}, 9.0, cause="pruned")
    means = {point["x"]: mean for mean, _, point in search.sampler.estimates(LINE, search.finished)}
    assert means[3] < math.log(3)


def test_only_what_ran_out_of_memory_excludes_larger_sizes():
    sizes = Space((Parameter("size", (1, 2, 4, 8), memory=True),))
    for cause, left in (("out of memory", {1}), ("failed", {1, 4, 8})):
        search = Search("random", sizes)
        search.tell({"size": 2}, None, cause=cause)
        assert {point["size"] for point in asked(search)} == left


@pytest.mark.parametrize("values", [(1.0, 2.0), (-2.0, -1.0), (-1.0, 1.0)])
def test_a_sampler_of_optuna_knows_that_more_is_better(values):
    needs.module("optuna")
    search = Search("optuna:tpe", Space((Parameter("x", ("low", "high")), Parameter("y", range(200)))), seed=1)
    for y in range(30):
        search.tell({"x": ("low", "high")[y % 2], "y": y}, values[y % 2])
    proposed = []
    for _ in range(15):
        proposed.append(search.ask())
        search.tell(proposed[-1], values[proposed[-1]["x"] == "high"])
    assert sum(point["x"] == "high" for point in proposed) >= 10


# -- intervals ---------------------------------------------------------------------------------------

RATES = Space(
    (read("lr", "1e-5..1e-1:log", where=""), read("drop", "0.0..0.5", where=""), read("n", "1..9999:log", where=""))
)


def smooth(point) -> float:
    off = math.log10(point["lr"] / 3e-4), 4 * (point["drop"] - 0.1), math.log10(point["n"] / 50)
    return math.exp(-0.1 * sum(each**2 for each in off))


@pytest.mark.parametrize("kind", ["random", "model_based", "optuna:TPE"])
def test_intervals_are_searched(kind):
    if kind.startswith("optuna"):
        needs.module("optuna")
    search = Search(kind, RATES, seed=2)
    search.tell({"lr": 0.000123456, "drop": 0.1234567, "n": 77}, 0.5)  # as a user has measured it
    points = []
    for _ in range(20):
        points.append(search.ask())
        assert RATES.allows(points[-1]) and type(points[-1]["n"]) is int
        search.tell(points[-1], smooth(points[-1]))
    assert len({key_of(point) for point in points}) == 20
    assert min(point["lr"] for point in points) < 1e-3 < max(point["lr"] for point in points)
    assert min(point["n"] for point in points) < 100 < max(point["n"] for point in points)


def test_a_grid_of_an_interval_is_refused():
    said = (
        "needs a list of numbers, but 'lr' is any number from 1e-05 to 0.1\n  give the numbers \\(lr=1e-05..0.1:log:10"
    )
    with pytest.raises(BadInputError, match=said):
        Study({"lr": "1e-5..1e-1:log"}, maximize="x", search="gridsearch")
    with pytest.raises(BadInputError, match=r"x=0\.0\.\.0\.8:0\.1"):
        Study({"x": "0.0..0.8"}, maximize="x", search="gridsearch")
    Study({"x": "0.0..0.8:0.1", "lr": "1e-5..1e-1:log:10"}, maximize="x", search="gridsearch")


@pytest.mark.slow
def test_a_model_finds_a_smooth_peak_of_intervals():
    search = Search("model_based", RATES, 1)
    for _ in range(40):
        point = search.ask()
        search.tell(point, smooth(point))
    assert 1 - search.best.value <= 0.005


@pytest.mark.slow
def test_a_model_finds_a_peak_among_the_first_thousandths_of_a_range():
    """As where a range is written without ``:log``: the model sees it as logarithmic too."""
    space = Space((Parameter("x", range(1, 10**6 + 1)),))
    search = Search("model_based", space, 1)
    for _ in range(30):
        point = search.ask()
        search.tell(point, 1 / (1 + math.log10(point["x"] / 3000) ** 2))
    assert search.best.value > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("values", ["0..9", "1..1000", "1e-5..1e-1:log"])
def test_an_ask_after_many_results_is_quick(values):
    """Its time does not grow with the results; also where each parameter has very many values. It is 0.2 s, alone."""
    space = Space(tuple(read(f"d{number}", values, where="") for number in range(15)))

    def seconds(count: int) -> float:
        search = Search("model_based", space, repeats=True)
        for point in space.sample(count, 1):
            search.tell(point, 1.0 + sum(point.values()), seconds=1.0)
        begun = time.process_time()
        search.ask()
        return time.process_time() - begun

    few = seconds(100)
    assert seconds(10_000) < max(2.0, 3 * few) and few < 2.0
