"""``bireme tune --ask_tell``: a study that another program drives by JSON lines."""

from __future__ import annotations

import json
import subprocess

import pytest

from bireme.cli import tune
from bireme.errors import BadInputError
from tests.conftest import bireme, clean_environ

WORDS = ("tune", "--ask_tell", "--param", "batch=8,16", "--param", "--mode=safe,fast", "--maximize", "rate")


class Driver:
    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            bireme(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environ()
        )

    def __call__(self, line: object) -> dict:
        self.process.stdin.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def test_a_program_drives_the_study():
    ask = Driver(*WORDS)
    while (reply := ask({"ask": True}))["trial"]:
        point = reply["trial"]["point"]
        rate = point["batch"] * (1.5 if point["mode"] == "fast" else 1.0)
        told = ask({"tell": reply["trial"]["name"], "figures": {"rate": rate}, "seconds": 1.0})
        assert told == {"told": reply["trial"]["name"]}
    assert reply["over"]
    answer = ask({"answer": True})["answer"]
    assert answer["best"] == {"batch": 16, "mode": "fast"} and answer["confirmed"]
    ask.process.stdin.close()
    assert ask.process.wait(timeout=60) == 0


def test_trials_are_stopped_early_also_by_what_an_earlier_program_has_told(tmp_path):
    words = (*WORDS, "--search", "gridsearch", "--pruner", "halving", "--results_dir", str(tmp_path / "kept"))
    for rate, stopped in ((3.0, False), (2.0, False), (1.0, False), (2.5, True)):
        ask = Driver(*words)
        name = ask({"ask": True})["trial"]["name"]
        reason = ask({"prune": name, "series": [rate]})["prune"]
        assert reason == ("not among the best 1 of 4 after 1 reading" if stopped else "")
        told = {"tell": name, "figures": {"rate": rate}, **({"failed": "pruned"} if stopped else {})}
        assert ask(told) == {"told": name}
        ask.process.stdin.close()
        assert ask.process.wait(timeout=60) == 0


def test_another_program_goes_on_with_the_study(tmp_path):
    """What was told is not asked again, and what was asked for may be told later."""
    words = (*WORDS, "--results_dir", str(tmp_path / "kept"), "--trials", "6")
    asked = []
    for _ in range(3):
        ask = Driver(*words)
        for later in (False, True):
            trial = ask({"ask": True})["trial"]
            point = json.dumps(trial["point"])
            asked.append((trial["name"], point))
            if not later:
                told = {"tell": trial["name"], "figures": {"rate": trial["point"]["batch"]}, "seconds": 1}
                assert ask(told) == {"told": trial["name"]}
        ask.process.kill()
        ask.process.wait()
        ask = Driver(*words)
        assert ask({"tell": asked[-1][0], "figures": {"rate": 9.0}}) == {"told": asked[-1][0]}
        ask.process.stdin.close()
        assert ask.process.wait(timeout=60) == 0
    assert len({name for name, _ in asked}) == 6
    ask = Driver(*words)
    last = ask({"ask": True})
    assert last == {"trial": None, "over": "the budget of 6 trials is spent"}
    status = subprocess.run(
        bireme("tune", "status", str(tmp_path / "kept")), capture_output=True, text=True, env=clean_environ()
    )
    assert "6 trials done of at most 6: 6 measured" in status.stdout, status.stdout + status.stderr
    ask.process.stdin.close()
    assert ask.process.wait(timeout=60) == 0


def test_what_is_wrong_is_said_and_the_study_goes_on():
    ask = Driver(*WORDS)
    assert "not JSON" in ask("{")["error"]
    assert "not a JSON object" in ask("[]")["error"]
    assert "one of: ask, propose, prune, tell, answer" in ask({"question": 1})["error"]
    assert "no trial 'x' is pending" in ask({"tell": "x", "figures": {"rate": 1}})["error"]
    name = ask({"ask": True})["trial"]["name"]
    assert "no trial 'x' is pending" in ask({"prune": "x", "series": []})["error"]
    assert "a list of numbers" in ask({"prune": name, "series": 3})["error"]
    assert "must be numbers" in ask({"tell": name, "figures": {"rate": "fast"}})["error"]
    assert "no figure 'rate'" in ask({"tell": name, "figures": {"speed": 1}})["error"]
    assert ask({"tell": name, "failed": "out of memory"}) == {"told": name}
    ask.process.stdin.close()
    assert ask.process.wait(timeout=60) == 0


def test_without_seconds_the_time_since_the_ask_counts(monkeypatch, capsys):
    """Otherwise the time of every trial would be 0."""
    monkeypatch.setattr("sys.stdin", ['{"ask": 1}', '{"tell": "trial-1"}', '{"answer": 1}'])
    tune.main(["--ask_tell", "--param", "batch=8,16", "--minimize", "time"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["answer"]["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py",), "--ask_tell runs no program\n  leave out train.py"),
        (("--limit", "p99 < 3"), "--limit: does not apply to --ask_tell, which runs no program\n  tell such trials as"),
        (("--order", "longest"), "--order: does not apply to --ask_tell, which runs no program\n  leave it out"),
        (("--num_gpus", "2"), "--num_gpus: does not apply to --ask_tell"),
    ],
)
def test_what_does_not_apply_is_refused(words, said):
    with pytest.raises(BadInputError, match=said):
        tune.main([*WORDS[1:], *words])
