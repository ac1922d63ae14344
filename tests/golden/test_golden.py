"""The tuner does and says what it did when the records were made; renewing them is a decision (`tests/golden`).

A sample of the 1,000 studies; ``BIREME_TEST_GOLDEN=all`` plays them all, as ``python -m tests.golden`` does.
"""

from __future__ import annotations

import os

import pytest

from tests.golden import __main__ as golden
from tests.kit import needs

pytestmark = needs.modules("numpy", "hjson")

PARTS = 2
SAMPLE = 60
"""Of so many studies one is played."""

STEP = 1 if os.environ.get("BIREME_TEST_GOLDEN") == "all" else SAMPLE


@pytest.mark.slow
@pytest.mark.timeout(0 if STEP == 1 else 900)
@pytest.mark.parametrize("part", range(PARTS))
def test_studies_are_as_recorded(part: int) -> None:
    chosen = range(part * STEP, golden.NUMBER, PARTS * STEP)
    changes = golden.differences(golden.recorded(), golden.played(chosen, 1))
    assert not changes, "\n".join([*changes, "", golden.ADVICE])


@pytest.mark.slow
@pytest.mark.parametrize("study", [724, 892])
def test_runs_of_a_later_round_that_ended_before_those_of_an_earlier_one_are_not_run_again(study: int) -> None:
    """Both run rounds of DeepSpeed side by side, and were interrupted before a run of the first had ended."""
    changes = golden.differences(golden.recorded(), golden.played([study], 1))
    assert not changes, "\n".join([*changes, "", golden.ADVICE])


@pytest.mark.slow
@needs.modules("vl_convert")
def test_what_is_said_of_a_study_is_as_recorded() -> None:
    changes = golden.changed_views()
    assert not changes, "\n".join([*changes, "", golden.ADVICE])
