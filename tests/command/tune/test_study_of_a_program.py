"""``bireme tune`` of any program as a user types it: the answer, its files, and what survives a stop or a kill."""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.command.tune.conftest import TUNABLE
from tests.conftest import TIMES

RATE = ("--maximize", "rate: {}")
BATCHES = ("--param", "batch=8,16,32")
MODES = ("--param", "mode=safe,fast")


def test_from_the_command_line_to_the_real_job(bench):
    done = bench.run(*BATCHES, *MODES, *RATE, args=("--batch", "{batch}", "--mode", "{mode}"))
    assert "noise of a run: 0." in done.stdout
    best = next(line for line in done.stdout.splitlines() if line.startswith("best: "))
    assert best.startswith("best: batch=32 mode=fast")
    assert re.search(r" x the default \(95%: (at least )?2\.", best), best
    real = done.stdout.splitlines()[-2].split(":  ")[1]
    assert real.endswith("--batch 32 --mode fast")
    assert shlex.split((bench.folder / "tuning" / "cmd_best.txt").read_text()) == shlex.split(real)
    assert (bench.folder / "tuning" / "summary.txt").read_text() in done.stdout
    assert done.stdout.splitlines()[-1] == "  a page about it:  bireme tune report tuning"
    assert "batch=32 mode=fast" in bench.tune("status").stdout
    assert "rate: 1" in bench.tune(*shlex.split(real)[1:], command=()).stdout
    ends = bench.ends()
    assert list(ends) == bench.ran[:-1]
    assert all(len(record["series"]["rate"]) == 6 for record in ends.values())
    assert all(record["parts"].keys() == {"launch", "warm_up", "measuring"} for record in ends.values())
    again = bench.run(*BATCHES, *MODES, *RATE, args=("--batch", "{batch}", "--mode", "{mode}"))
    assert again.stdout.splitlines()[-2:] == done.stdout.splitlines()[-2:]
    took = [next(line for line in each.stdout.splitlines() if line.startswith("Tuning took")) for each in (done, again)]
    assert took[0] == took[1], "nothing ran, so it took no longer"
    assert len(bench.ran) == len(ends) + 1, "nothing ran again"


def test_the_screen_says_how_long_the_finalists_take_and_status_the_same(bench):
    (bench.folder / "noisy.py").write_text(
        "import os, random, subprocess, sys\n"
        "if os.environ['BIREME_TRIAL'] == 'trial-9':\n"
        "    subprocess.run([sys.executable, '-m', 'bireme', 'tune', 'status'], stdout=open('seen', 'w'))\n"
        "print('rate:', random.Random(os.environ['BIREME_TRIAL']).gauss(92 + 8 * int(sys.argv[1]), 4))\n"
    )
    words = ("--param", "x=1,2", *RATE, "--effect", "5", "--confirm", "sure", "noisy.py", "{x}")
    done = bench.tune(*words)
    time = r"(?:\d+ min )?[\d.]+ s|\d+ min"
    forecast = rf"about (?:{time}) \((?:{time}) to (?:{time})\)"
    before = re.search(rf"^comparing the best takes {forecast}.*\ntrial-\d+ \[round 1\]", done.stdout, re.MULTILINE)
    told = re.findall(rf"^trial-\d+ \[round \d+\].* \({forecast} to go\)$", done.stdout, re.MULTILINE)
    assert before and len(told) > 2, done.stdout
    last = re.search(r"\((about [^\n]* to go)\)\ntrial-9 .* starts", done.stdout)
    seen = (bench.folder / "seen").read_text()
    line = rf"^comparing the finalists, for [\d.]+ s: {re.escape(last[1] if last else '')}$"
    assert re.search(line, seen, re.MULTILINE), seen
    assert "It ended: the rounds have settled every difference that matters." in done.stdout


def test_values_reach_environment_and_files(bench):
    """The copy of the file is the trial's own; the best one is kept beside the command that names it."""
    config = bench.folder / "config.json"
    config.write_text('{"training": {"batch": 8, "other": [1]}, "name": "x"}')
    options = ("--env", "THREADS=1,2", "--in", "config.json:training.batch=8,64", *RATE, "--confirm", "off")
    done = bench.run(*options, args=("--config", "config.json"))
    assert "best so far: THREADS=2 batch=64" in done.stdout
    command = shlex.split((bench.folder / "tuning" / "cmd_best.txt").read_text())
    assert command[command.index("--export") + 1] == "THREADS=2"
    kept = json.loads(Path(command[command.index("--config") + 1]).read_text())
    assert kept == {"training": {"batch": 64, "other": [1]}, "name": "x"}
    assert json.loads(config.read_text())["training"]["batch"] == 8, "the user's file is as it was"
    ran = {tuple(line.split()[1:]) for line in (bench.folder / "ran").read_text().splitlines()}
    assert ran == {("8", "safe", "1"), ("8", "safe", "2"), ("64", "safe", "1"), ("64", "safe", "2")}


def test_memory_and_limits_forbid(bench):
    options = (*BATCHES, *RATE, "--limit", "p99: {} < 60ms", "--confirm", "off")
    done = bench.run(*options, args=("--batch", "{batch}", "--fail", "32"))
    assert "best so far: batch=16" in done.stdout
    ends = {str(each["point"]["batch"]): each["ending"] for each in bench.ends().values()}
    assert ends["32"]["cause"] == "out of memory"
    done = bench.run(*options, "--results_dir", "other", args=("--batch", "{batch}"))
    assert "over limit: p99 is 96 ms, the limit is < 60 ms" in done.stdout and "best so far: batch=16" in done.stdout


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_continued(bench, sent):
    """What has ended does not run again; what was stopped does."""
    options = (*BATCHES, *RATE, "--trials", "4")
    args = ("--batch", "{batch}", "--slow", "0.3")
    study = bench.start(*options, args=args, stdout=subprocess.PIPE)
    for line in study.stdout:
        if line.startswith(b"trial-3") and b"starts" in line:
            break
    study.send_signal(sent)
    out, _ = study.communicate(timeout=60)
    assert study.returncode == 128 + sent and b"interrupted: the same command resumes the study" in out
    assert bench.stage.left() == {}
    ended = bench.ends().keys()
    assert {"trial-1", "trial-2"} <= ended
    before = Counter(bench.ran)
    done = bench.run(*options, args=args)
    assert f"resuming the study: {len(ended)} of its trials have ended" in done.stdout
    after = Counter(bench.ran)
    assert all(after[name] == before[name] for name in ended)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_undisturbed(bench):
    options, args = (*BATCHES, *MODES, *RATE), ("--batch", "{batch}", "--mode", "{mode}")
    chance = random.Random(3)
    kills = 0
    while kills < 3 * TIMES:
        study = bench.stage.start(
            "tune", *bench.words(*options, args=args), cwd=bench.folder, stdout=subprocess.DEVNULL
        )
        try:
            study.wait(timeout=chance.uniform(0.2, 1.5))
        except subprocess.TimeoutExpired:
            study.kill()
            study.wait()
            kills += 1
        else:
            break
    done = bench.run(*options, args=args)
    assert "best: batch=32 mode=fast" in done.stdout
    assert bench.stage.left(within=30) == {}
    assert bench.ends(), "what has an end record never ends again"


def test_a_round_runs_on_the_same_slots_and_rounds_side_by_side(bench):
    options = ("--hosts", "localhost:2", "--num_gpus", "1", *BATCHES, *RATE)
    bench.run(*options, args=("--batch", "{batch}"))
    places: dict[str, set[str]] = {}
    on = {record["start"]: record["on"] for record in bench.records() if "start" in record}
    for name, record in bench.ends().items():
        if record["block"]:
            places.setdefault(record["block"], set()).add(on[name])
    assert len(places) > 2 and all(len(each) == 1 for each in places.values()), places
    assert set(on.values()) == {"localhost:0", "localhost:1"}


def test_files_of_trials_side_by_side_are_kept_apart(bench):
    options = ("--hosts", "localhost:2", "--num_gpus", "1", *BATCHES, "--confirm", "off")
    done = bench.run(*options, "--maximize", "out.json:rate", args=("--batch", "{batch}"), code=2)
    assert "2 trials run side by side, and each would write out.json" in done.stderr
    assert not (bench.folder / "ran").exists()
    done = bench.run(
        *options, "--maximize", "out-{trial}.json:rate", args=("--batch", "{batch}", "--out", "out-{trial}.json")
    )
    assert "best so far: batch=32" in done.stdout and (bench.folder / "out-trial-2.json").exists()
    assert done.stdout.splitlines()[-3].endswith("--out out-best.json")


@pytest.mark.parametrize(
    ("options", "args", "message"),
    [
        (RATE, ("--batch", "{batch}"), "no parameters: nothing varies"),
        (BATCHES, ("--batch", "{batch}"), "no goal\n  add --maximize 'samples/s: {}', or --minimize time"),
        ((*BATCHES, *RATE), ("--batch", "{bathc}"), "no parameter for {bathc} in the program's arguments"),
        ((*BATCHES, *RATE), (), "'batch' does not reach the program"),
        ((*BATCHES, "--maximize", "rate"), ("--batch", "{batch}"), "no figure 'rate': bireme.report was not called"),
        ((*BATCHES, "--minimize", "tiem"), ("--batch", "{batch}"), "did you mean time? Or call bireme.report(tiem=…)"),
        ((*BATCHES, "--maximize", "rat: {}"), ("--batch", "{batch}"), "rate: "),
        ((*BATCHES, *RATE, "--limit", "p99: {}"), ("--batch", "{batch}"), "no <, <=, > or >= in 'p99: {}'"),
        ((*BATCHES, *RATE, "--limit", "p98: {} < 3"), ("--batch", "{batch}"), "p98"),
        ((*BATCHES, *RATE, "--constraint", "batch > 64"), ("--batch", "{batch}"), "batch > 64"),
        ((*BATCHES, *RATE, "--budget", "soon"), ("--batch", "{batch}"), "'soon' is not a duration"),
        ((*BATCHES, *RATE, "--effect", "0.05"), ("--batch", "{batch}"), "is not a percentage from 0.1 to 100"),
        ((*BATCHES, *RATE, "--search", "best"), ("--batch", "{batch}"), "unknown search: 'best'"),
        ((*BATCHES, *RATE, "--pruner", "best"), ("--batch", "{batch}"), "--pruner: no pruner 'best'"),
        ((*BATCHES, "--minimize", "time", "--pruner", "halving"), ("--batch", "{batch}"), "at the end of a trial"),
    ],
)
def test_a_wrong_description_is_refused_before_the_second_trial(bench, options, args, message):
    done = bench.run(*options, args=args, code=2)
    assert message in done.stderr and "Traceback" not in done.stderr
    words = done.stderr.split("the last lines")[0]  # what the program printed may be quoted
    assert len(words.strip().splitlines()) <= 4, done.stderr
    assert not (bench.folder / "ran").exists() or bench.ran == ["trial-1"]


def test_what_cannot_start_ends_the_study(bench):
    (bench.folder / "broken.sh").write_text("#!/bin/sh\nexec ./missing\n")
    (bench.folder / "broken.sh").chmod(0o755)
    done = bench.tune(*BATCHES, *RATE, "./broken.sh", "{batch}", code=2)
    assert "trial-2" not in done.stdout and "exit code 127" in done.stderr, done.stderr
    done = bench.tune(*BATCHES, *RATE, "missing.py", "{batch}", code=2)
    assert "no such script: missing.py" in done.stderr


def test_a_program_on_the_path_needs_no_option(bench):
    words = ("--param", "word=one,two", "--maximize", "'{}'", "--trials", "2", "printf", "{word} '%s'", "1")
    assert "bireme run --no_python --num_gpus 1 printf" in bench.tune(*words).stdout


def test_another_study_is_not_mixed_with(bench):
    options = ("--trials", "1", *RATE)
    bench.run(*options, *BATCHES, args=("--batch", "{batch}"))
    refused = [
        ((*options, *BATCHES), ("--batch", "{batch}", "--mode", "fast"), "other arguments"),
        ((*options, "--param", "--batch=8,16"), (), "other parameters and arguments"),
        (("--trials", "1", *BATCHES, "--maximize", "rate={}"), ("--batch", "{batch}"), "other goals"),
    ]
    for words, args, what in refused:
        done = bench.run(*words, args=args, code=2)
        assert (
            f"holds a study with {what}: 1 of its trials has ended\n" in done.stderr and "--results_dir" in done.stderr
        )
    assert len(bench.ran) == 1


def test_a_space_is_extended_and_what_was_measured_still_holds(bench):
    """More values, fewer values and another parameter: the points that are left are not run again."""
    first = ("--param", "batch=8,16", *RATE, "--trials", "4")
    bench.run(*first, args=("--batch", "{batch}"))
    before = list(bench.ran)
    more = ("--param", "batch=8,32,16", *MODES, *RATE, "--trials", "12")
    done = bench.run(*more, args=("--batch", "{batch}", "--mode", "{mode}"))
    said = "resuming the study, now with other arguments and parameters: 4 of its 4 trials are still valid"
    assert said in done.stdout, done.stdout
    assert "batch=32 mode=fast" in done.stdout and bench.ran[:4] == before
    status = json.loads(bench.tune("status", "--json").stdout)
    assert status["done"] == len(bench.ran) <= 12
    assert all("mode" in record["point"] for name, record in bench.ends().items() if name not in before)
    fewer = bench.run("--param", "batch=8,32", *RATE, "--trials", "12", args=("--batch", "{batch}"))
    assert "not taken over, because their points are no longer in the space: " in fewer.stdout, fewer.stdout


def test_an_edited_program_keeps_what_its_search_has_measured(bench):
    """What failed is run again, and so are the rounds: the claim is about the program as it is."""
    program = bench.folder / "program.py"
    text = "import os, sys\nn = int(sys.argv[1])\nopen('ran', 'a').write(f'{os.environ[\"BIREME_TRIAL\"]} {n}\\n')\n"
    program.write_text(text + "assert n != 3, 'three'\nprint('rate:', 10 + n)\n")
    words = ("--param", "n=1,2,3,4", *RATE, "--trials", "16", "program.py", "{n}")
    assert "AssertionError: three" in bench.tune(*words).stdout
    ends = bench.ends()
    searched = [name for name, end in ends.items() if end["phase"] != "confirm" and end["point"]["n"] != 3]
    (bench.folder / "ran").unlink()
    program.write_text(text + "print('rate:', 10 + n)\n")
    again = bench.tune(*words)
    kept = f"now with a changed program.py: {len(searched)} of its {len(ends)} trials are still valid"
    assert kept in again.stdout and "not taken over, because program.py changed: " in again.stdout
    ran = [line.split() for line in (bench.folder / "ran").read_text().splitlines()]
    assert ["3" for _, n in ran if n == "3"], "what failed was run again"
    ends = bench.ends()
    assert {ends[name]["phase"] for name, n in ran if n in ("1", "2", "4")} == {"confirm"}
    assert "What failed" not in again.stdout
    assert len(re.findall(r"^best(?: so far)?: n=4 ", again.stdout, re.MULTILINE)) == 1


def test_what_timed_out_runs_again_when_it_may_take_longer(bench):
    program = bench.folder / "program.py"
    program.write_text(
        "import os, sys, time\nn = int(sys.argv[1])\n"
        "time.sleep(60 if n == 2 and not os.path.exists('go') else 0)\nprint('rate:', 10 + n)\n"
    )
    words = (*("--param", "n=1,2", *RATE, "--trials", "6", "--grace", "0.5"), "program.py", "{n}")
    assert "timed out" in bench.tune("--experiment_limit", "6", *words).stdout
    (bench.folder / "go").touch()
    (late,) = (name for name, end in bench.ends().items() if end["ending"]["cause"] == "timed out")
    assert "not taken over" not in bench.tune("--experiment_limit", "6", *words).stdout
    again = bench.tune("--experiment_limit", "60", *words).stdout
    assert f"not taken over, because --experiment_limit is longer: {late}\n" in again
    assert "best" in again and "timed out" not in again.partition("resuming")[2]


def test_another_limit_judges_again_what_was_measured(bench):
    words = (*BATCHES, *RATE, "--trials", "3")
    bench.run(*words, "--limit", "rate: {} < 1000000", args=("--batch", "{batch}"))
    before = len(bench.ran)
    done = bench.run(*words, "--limit", "rate: {} < 1", args=("--batch", "{batch}"), code=1)
    assert (
        "now with other limits: 3 of its 3 trials are still valid" in done.stdout
        and "over limit: rate is " in done.stdout
    )
    assert len(bench.ran) == before


def test_a_study_in_which_nothing_worked_gives_way(bench):
    words = ("--trials", "2", *BATCHES, *RATE, "./tool", "{batch}")
    tool = bench.folder / "tool"
    for text, code in (("exit 1", 1), ("echo rate: 1", 0)):
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)
        done = bench.tune(*words, code=code)
    assert "now with a changed ./tool: 0 of its 2 trials are still valid" in done.stdout
    assert "; 2 trials of 2 configurations.\n" in done.stdout
    status = bench.tune("status").stdout
    assert "2 trials done: 2 measured" in status and "(the default)" in status


def test_files_that_are_not_of_a_study_are_kept(bench):
    (bench.folder / "mine").mkdir()
    (bench.folder / "mine" / "summary.txt").write_text("mine")
    done = bench.run("--results_dir", "mine", *BATCHES, *RATE, args=("--batch", "{batch}"), code=2)
    assert (
        "mine/summary.txt exists, but does not belong to a study\n  choose another folder: --results_dir DIR"
        in done.stderr
    )
    assert [path.name for path in (bench.folder / "mine").iterdir()] == ["summary.txt"]


def test_memory_of_a_program_that_ends_at_once(bench):
    """Too soon for a look: the kernel says at its end what it needed."""
    program = ("dd", "if=/dev/zero", "of=/dev/null", "bs={n}M", "count=1")
    words = ("--param", "n=80,100", "--minimize", "peak_memory", "--trials", "1", *program)
    assert "peak_memory" in bench.tune(*words).stdout
    (record,) = bench.ends().values()
    assert 80 << 20 <= record["figures"]["peak_memory"] < 100 << 20


def test_halving_stops_what_is_behind_at_a_step(bench):
    """Six hang after their fifth loss, and only the pruner ends them; what it knows, the journal keeps."""
    (bench.folder / "losses.py").write_text("""
import sys, time
x = int(sys.argv[1])
for step in range(8):
    print(f"loss: {x + 1 / (step + 1)}", flush=True)
    if x > 3 and step == 4:
        time.sleep(600)
""")
    (bench.folder / "tune.toml").write_text("""
command = "losses.py {x}"
minimize = "loss: {}"
search = "gridsearch"
pruner = "halving"
confirm = "off"
parameters.x = "3,1,2,4,5,6,7,8,9"
""")
    done = bench.tune("--trials", "7", "tune.toml")
    bench.tune("tune.toml")
    ends = {end["point"]["x"]: end for end in bench.ends().values()}
    assert {x for x, end in ends.items() if end["ending"]["cause"] == "pruned"} == {4, 5, 6, 7, 8, 9}, done.stdout
    assert ends[1]["passed"] == {"1": 2.0, "4": 1.25} and ends[9]["passed"]["1"] == 10.0
    assert ends[9]["ending"]["reason"] in [
        f"not among the best {n} of {m} after {k}"
        for n, m, k in ((2, 10, "1 reading"), (1, 6, "4 readings"), (2, 10, "4 readings"))
    ], ends[9]["ending"]
    assert "about 2.73 x the default" in bench.tune("status").stdout


def test_a_study_file_says_the_same(bench):
    """Options on the command line take precedence."""
    assert "bireme tune tune.toml" in bench.tune("--init").stdout
    file = bench.folder / "tune.toml"
    bench.tune("--init", code=2)  # an edited file is kept
    file.write_text(f"""
command = {json.dumps([str(TUNABLE), "--log", "ran", "--batch", "{batch}"])}
maximize = "rate: {{}}"
trials = 4
[parameters]
batch = "8,16,32"
threads = {{ values = "1,2", env = "THREADS" }}
""")
    bench.tune("tune.toml")
    assert len(bench.ran) == 4
    done = bench.tune("--trials", "60", "--confirm", "off", "tune.toml")
    assert "best so far: batch=32 threads=2" in done.stdout and len(bench.ran) >= 6
    bench.tune("--minimize", "time", "--trials", "1", "--results_dir", "other", "tune.toml")
    assert [goal["name"] for goal in bench.records(bench.folder / "other/journal")[0]["study"]["goals"]] == ["time"]
    file.write_text(file.read_text().replace("maximize", "maximise"))
    said = bench.tune("tune.toml", code=2).stderr
    assert "tune.toml:3" in said and "maximize" in said
    assert "write it into tune.toml" in bench.tune("--param", "x=1,2", "tune.toml", code=2).stderr
    file.write_text(file.read_text().replace("maximise", "maximize") + '[launch]\nnum_gpus = "many"\n')
    said = bench.tune("tune.toml", code=2).stderr
    assert "tune.toml:9: --num_gpus: 'many' is not a whole number" in said
