"""``Study(storage=…)``: a loop of one's own that is kept in a folder."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.tune import Study
from bireme.tune.look import read_study
from bireme.tune.study.trial import Trial

LOOP = """
import os, sys
from bireme.tune import Study

study = Study({"n": [1, 2, 3, 4], "mode": ["safe", "fast"]}, maximize="rate", storage="kept", trials=30)
for note in study.notes:
    print(note)
told = 0
while trial := study.ask():
    if told == int(sys.argv[1]):
        os.kill(os.getpid(), 9)
    rate = 100 + 10 * trial.point["n"] + (trial.point["mode"] == "fast")
    study.tell(trial.name, rate=rate + len(trial.name) / 1000)
    print("told", trial.name, trial.phase, dict(trial.point))
    told += 1
print("best", study.answer.best, study.over)
"""


def loop(folder: Path, kill_after: int) -> list[str]:
    words = [sys.executable, "-c", LOOP, str(kill_after)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == (0 if kill_after < 0 else -9), done.stderr
    return done.stdout.splitlines()


def test_a_killed_loop_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    undisturbed = [line.split(" ", 2)[2] for line in loop(whole, -1) if line.startswith("told")]
    killed, outputs = [], [loop(tmp_path, 3), loop(tmp_path, 4), loop(tmp_path, -1)]
    assert outputs[1][0] == "resuming the study: 3 of its trials have ended"
    assert outputs[2][0] == "resuming the study: 7 of its trials have ended"
    for lines in outputs:
        killed += [line.split(" ", 2)[2] for line in lines if line.startswith("told")]
    assert killed[:6] == undisturbed[:6], "it goes on as if it had not been killed"
    assert outputs[-1][-1].startswith("best {'n': 4, 'mode': 'fast'} ")
    view = read_study(str(tmp_path / "kept"))[0]
    assert sum(trial.cause == "ok" for trial in view.trials) == len(killed) and view.over
    assert loop(tmp_path, -1)[1:] == outputs[-1][-1:], "nothing is asked again"


def test_what_holds_of_another_space_is_taken_over(tmp_path: Path) -> None:
    def study(**choices: object) -> Study:
        return Study(choices, maximize="rate", storage=str(tmp_path), trials=9)  # type: ignore[arg-type]

    first = study(n=[1, 2])
    first.add_trial({"n": 2}, rate=5.0)
    first.add_trial({"n": 2}, rate=5.0)
    for _ in range(2):
        trial = first.ask()
        assert trial is not None
        first.tell(trial.name, rate=1.0)
    with pytest.raises(BadInputError, match="another tuner is using this folder"):
        study(n=[1, 2])
    first.close()
    second = study(n=[1, 3, 2], mode=["safe", "fast"])
    said = "resuming the study, now with other parameters: 3 of its 3 trials are still valid"
    assert second.notes == (said,), "what was added twice counts once"
    second.close()
    another = Study({"n": [1, 2], "mode": ["safe", "fast"]}, maximize="speed", storage=str(tmp_path))
    assert another.notes[1].startswith("not taken over, because speed was not measured: known-1, trial-1")


def test_a_round_that_another_program_has_asked_for_counts(tmp_path: Path) -> None:
    def study() -> Study:
        return Study({"n": [1, 2]}, maximize="rate", storage=str(tmp_path), effect=0.02)

    chance = random.Random(5)
    rounds: dict[int, int] = {}

    def tell(of: Study, trial: Trial) -> None:
        of.tell(trial.name, rate=100.0 * float(str(trial.point["n"])) * chance.gauss(1, 0.03))
        rounds[trial.round] = rounds.get(trial.round, 0) + trial.paired

    first = study()
    while (trial := first.ask()) and not trial.paired:
        tell(first, trial)
    assert trial is not None
    asked = [trial, first.ask()]
    first.close()
    second = study()
    for each in asked:
        assert each is not None and each.round == 1
        tell(second, each)
    while trial := second.ask():
        tell(second, trial)
    assert second.answer.best == {"n": 2} and second.answer.confirmed
    assert 1.8 < second.answer.ratio < 2.2, "each value is that of its own trial"
    assert second.answer.rounds == sum(count == 2 for count in rounds.values()) >= 3
    with pytest.raises(BadInputError, match="is pending"):
        second.tell(asked[0].name, rate=1.0)
