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
    assert ask.process.wait(timeout=20) == 0


def test_what_is_wrong_is_said_and_the_study_goes_on():
    ask = Driver(*WORDS)
    assert "not JSON" in ask("{")["error"]
    assert "not a JSON object" in ask("[]")["error"]
    assert "one of: ask, propose, tell, answer" in ask({"question": 1})["error"]
    assert "no trial 'x' is pending" in ask({"tell": "x", "figures": {"rate": 1}})["error"]
    name = ask({"ask": True})["trial"]["name"]
    assert "are numbers" in ask({"tell": name, "figures": {"rate": "fast"}})["error"]
    assert "no figure 'rate'" in ask({"tell": name, "figures": {"speed": 1}})["error"]
    assert ask({"tell": name, "failed": "out of memory"}) == {"told": name}
    ask.process.stdin.close()
    assert ask.process.wait(timeout=20) == 0


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
        (("--results_dir", "x"), "--results_dir: does not apply to --ask_tell, which runs no program\n  leave it out"),
        (("--num_gpus", "2"), "--num_gpus: does not apply to --ask_tell"),
    ],
)
def test_what_does_not_apply_is_refused(words, said):
    with pytest.raises(BadInputError, match=said):
        tune.main([*WORDS[1:], *words])
