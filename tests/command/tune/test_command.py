"""``bireme tune`` as a user types it, on a script that obeys DeepSpeed's contract."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.command.tune.conftest import CONFIG, CONTRACT, NAMES, ONE, Desk
from tests.conftest import TIMES, bireme, clean_environ
from tests.kit.waiting import wait_for

STAGES = {**CONFIG, "zero_optimization": {"stage": [0, 1]}}


# -- a whole study -------------------------------------------------------------------------------------


def test_a_study_from_its_beginning_to_the_real_job(desk, monkeypatch):
    desk.configure(STAGES)
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("DLWS_JOB_ID", "job-7")
    done = desk.run(options=("--num_gpus", "2"))
    names = [*NAMES, "z1_gas1_tmbspg8", "z1_gas2_tmbspg4"]
    lines = done.stdout.splitlines()
    assert lines[0] == "z0_gas2_tmbspg4 starts on localhost:0,1"
    assert any(line.startswith("z0_gas1_tmbspg8: 800 samples/s, the best so far, ") for line in lines)
    assert sorted(path.parent.name for path in desk.results.glob("*/metrics.json")) == names
    assert sorted(path.stem for path in (desk.folder / "autotuning_exps").iterdir()) == names
    for name in names:
        files = {path.name for path in (desk.results / name).iterdir()}
        assert {"cmd.txt", "ds_config.json", "exp.json", "metrics.json", "stdout.log", "stderr.log"} <= files
    exps = [json.loads((desk.results / name / "exp.json").read_text()) for name in names]
    assert sorted(exp["exp_id"] for exp in exps) == [0, 1, 2, 3]
    assert [exp["result_dir"] for exp in exps] == [str(desk.results / name) for name in names]
    for exp in exps:
        assert (exp["user"], exp["job_id"], exp["master_port"]) == ("ada", "job-7", None)
        assert exp["launcher_args"][:2] == ["--num_gpus", "2"] and str(CONTRACT) not in exp["launcher_args"]
        assert (exp["num_nodes"], exp["num_gpus"], exp["slots"]) == (1, 2, "localhost:0,1")
        assert json.loads(base64.urlsafe_b64decode(exp["ds_config_base64"])) == exp["ds_config"]
    best = json.loads((desk.results / "ds_config_optimal.json").read_text())
    assert "autotuning" not in best and best["optimizer"] == CONFIG["optimizer"]
    assert (best["train_micro_batch_size_per_gpu"], best["zero_optimization"]["stage"]) == (8, 0)
    assert best["train_batch_size"] == 16 == 8 * best["gradient_accumulation_steps"] * 2
    assert (desk.results / "summary.txt").read_text() in done.stdout


def test_the_command_at_the_end_runs_the_real_job(desk):
    """DeepSpeed hands back the profiling configuration, with which the job ends after six steps."""
    desk.run("--batch", "17", options=("--num_gpus", "2"))
    command = shlex.split((desk.results / "cmd_optimal.txt").read_text())
    assert command[:2] == ["bireme", "run"] and "--autotuning" not in command
    done = desk.tune(*command[1:], command=())
    assert done.stdout.count("real job 0 8") == 2 and done.stdout.count("batch 17 ") == 2


def test_autotuning_run_ends_as_the_real_job_does(desk):
    done = desk.run(command=("run", "--autotuning", "run"))
    assert done.stdout.count("real job 0 8") == 1
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}})
    failing = desk.program("failing.py", ('print("real job"', 'sys.exit(7) or print("real job"'))
    desk.run(command=("run", "--autotuning", "run"), program=failing, code=7)


def test_several_at_once_each_with_its_own_configuration(desk):
    desk.configure(
        {**CONFIG, "autotuning": {"enabled": True, "arg_mappings": {"train_micro_batch_size_per_gpu": "--batch"}}}
    )
    done = desk.run("--batch=1", "--nap", "0.4", options=("--hosts", "localhost:2", "--num_gpus", "1"))
    starts = [line for line in done.stdout.splitlines() if " starts on " in line]
    assert {line.rpartition(" ")[2] for line in starts} == {f"localhost:{slot}" for slot in range(2)}
    first_end = next(place for place, line in enumerate(done.stdout.splitlines()) if "samples/s" in line)
    assert first_end == 2, "both start before the first ends"
    for path in desk.results.glob("z*/stdout.log"):
        micro = re.search(r"tmbspg(\d+)", path.parent.name)[1]
        text = path.read_text()
        assert f"batch {micro} " in text and f'"train_micro_batch_size_per_gpu": {micro},' in text


def test_slots_that_are_named_are_used(desk):
    done = desk.run(options=("--hosts", "localhost:4", "--include", "localhost:2,3", "--num_gpus", "1"))
    assert {line.rpartition(" ")[2] for line in done.stdout.splitlines() if " starts on " in line} == {
        "localhost:2", "localhost:3"
    }  # fmt: skip
    assert "--include localhost:2" in (desk.results / "cmd_optimal.txt").read_text(), "as wide as the experiments"


def test_a_hugging_face_script(desk):
    desk.run(flag="--deepspeed")
    command = shlex.split((desk.results / "z0_gas1_tmbspg8" / "cmd.txt").read_text())
    assert command[command.index("--deepspeed") + 1].startswith("eyJ")
    optimal = shlex.split((desk.results / "cmd_optimal.txt").read_text())
    assert optimal[optimal.index("--deepspeed") + 1] == str(desk.results / "ds_config_optimal.json")


def test_a_configuration_as_a_file(desk):
    desk.run(options=(*ONE, "--config_as", "file"))
    command = shlex.split((desk.results / "z0_gas1_tmbspg8" / "cmd.txt").read_text())
    assert command[-1] == str(desk.results / "z0_gas1_tmbspg8" / "ds_config.json")


def test_a_configuration_too_long_for_an_argument_is_passed_as_a_file(desk):
    desk.configure({**CONFIG, "compression_training": {"note": "x" * 100_000}})
    desk.run()
    command = shlex.split((desk.results / "z0_gas1_tmbspg8" / "cmd.txt").read_text())
    assert command[-1] == str(desk.results / "z0_gas1_tmbspg8" / "ds_config.json")


def test_the_flags_of_the_launch_carry_over(desk):
    options = (*ONE, "--hosts", "localhost:2", "--grace", "3.25", "--no_local_rank", "--export", "A=b c")
    desk.run(options=(*options, "--master_port", "31417", "--log_dir", "logs", "--wrap", "env X=1"))
    words = [shlex.split(path.read_text()) for path in desk.results.glob("z*/cmd.txt")]
    for command in words:
        assert {"--grace=3.25", "--no_local_rank", "--export=A=b c", "--hosts=localhost:2", "--wrap=env X=1"} <= set(
            command
        )
    assert {command[command.index("--master_port") + 1] for command in words} == {"31417", "31418"}
    assert sorted(path.name for path in (desk.folder / "logs").iterdir()) == NAMES
    optimal = shlex.split((desk.results / "cmd_optimal.txt").read_text())
    assert {"--master_port=31417", "--log_dir=logs", "--grace=3.25"} <= set(optimal)


# -- secrets -------------------------------------------------------------------------------------------


def test_what_is_secret_in_the_command_is_neither_printed_nor_written_where_others_can_read_it(desk):
    options = ("--num_gpus", "2", "--export=PLAIN=hunter2", "--export", "TOKEN=hunter2")
    before = os.umask(0o022)
    try:
        done = desk.run("--hf_token", "hunter2", options=options)
    finally:
        os.umask(before)
    assert "hunter2" not in done.stdout + done.stderr
    assert "--export=PLAIN=" in done.stdout and "including the values hidden here" in done.stdout
    files = [path for path in desk.folder.rglob("*") if path.is_file()]
    holders = {path.name: path.stat().st_mode & 0o777 for path in files if "hunter2" in path.read_text()}
    assert holders.keys() == {"journal", "cmd.txt", "cmd_optimal.txt", "exp.json"}
    assert set(holders.values()) == {0o600}
    modes = {path.name: path.stat().st_mode & 0o777 for path in files if path.suffix in (".lock", ".owner", ".log")}
    assert modes.keys() == {"experiments.lock", "journal.owner", "stdout.log", "stderr.log"}
    assert set(modes.values()) == {0o600}
    (desk.results / "summary.txt").unlink()
    (desk.results / "journal").chmod(0o644)  # as an earlier version made it
    desk.run("--hf_token", "hunter2", options=options)
    assert (desk.results / "journal").stat().st_mode & 0o777 == 0o600


def test_links_that_were_laid_in_the_folder_are_not_followed(desk, tmp_path):
    """Not when it is tried whether one can write there, not for the name of the lock's owner, not for a log."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    desk.results.mkdir()
    (desk.results / "journal.owner").symlink_to(precious)
    (desk.results / NAMES[0]).mkdir()
    (desk.results / NAMES[0] / "stdout.log").symlink_to(precious)
    tune = ["tune", *desk.words()]
    shell = 'for folder in autotuning_results autotuning_exps; do mkdir -p $folder; ln -s "$0" $folder/.bireme-$$; done'
    words = ["sh", "-c", f'{shell}; exec "$@"', str(precious), *bireme(*tune)]
    done = subprocess.run(words, cwd=desk.folder, env=clean_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert precious.read_text() == "mine"


# -- ends ----------------------------------------------------------------------------------------------


def test_every_end_has_its_cause(desk):
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": [1, 2, 4, 8, 16], "zero_optimization": {"stage": 0}})
    ends = (
        "if micro == 1 and rank == 0: raise ValueError('of its own')\n"
        "if micro == 2: sys.exit(0)\n"
        "if micro == 4: time.sleep(600)\n"
        "if micro == 8: print('error: a word only', file=sys.stderr)\n"
        "if micro == 16: raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')\n"
    )
    script = desk.program("ends.py", ("speed = 100.0", f"{ends}speed = 100.0"))
    done = desk.run(options=("--num_gpus", "2", "--experiment_limit", "15", "--grace", "1"), program=script)
    assert re.search(r"tmbspg1: failed: rank 0 on \S+: ValueError: of its own", done.stdout)
    assert "tmbspg2: no metric: " in done.stdout
    assert "tmbspg4: timed out: stopped after the time limit of 15 s" in done.stdout
    assert "tmbspg8: 800 samples/s, the best so far" in done.stdout
    assert re.search(r"tmbspg16: out of memory: rank \d on \S+: RuntimeError: CUDA out of memory", done.stdout)


def test_when_nothing_works_it_says_so(desk):
    done = desk.run("--fail", "all", code=1)
    assert "no configuration worked" in done.stdout
    assert not (desk.results / "cmd_optimal.txt").exists()


# -- interrupted, killed, taken up ---------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_keeps_what_it_has_and_goes_on(desk, signum):
    words, log = ("--until", "go", "--say", "up"), desk.results / NAMES[1] / "stderr.log"
    process = desk.start(*words)
    wait_for(log.exists)
    while "up" not in log.read_text():
        time.sleep(0.005)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, err
    assert b"interrupted: the same command resumes the search" in out
    assert desk.stage.left() == {}
    assert ("KeyboardInterrupt" in log.read_text()) == (signum == signal.SIGINT), "the ranks get Ctrl+C as such"
    (desk.folder / "go").touch()
    assert "measured" in desk.run(*words).stdout


def test_a_second_tuner_is_refused(desk):
    first = desk.start("--until", "go")
    wait_for((desk.results / NAMES[1] / "stdout.log").exists)
    second = desk.run("--until", "go", code=2)
    assert f"another tuner is using this folder: pid {first.pid} on " in second.stderr
    (desk.folder / "go").touch()
    first.communicate(timeout=60)
    assert first.returncode == 0


def test_a_finished_study_is_kept_beside_when_the_command_is_typed_again(desk):
    desk.run()
    old = {name: (desk.results / name).read_bytes() for name in ("summary.txt", f"{NAMES[0]}/exp.json")}
    stamp = (desk.results / NAMES[0] / "metrics.json").stat().st_mtime_ns
    (desk.results / "mine.txt").write_text("not yours")
    (desk.results / "summary.txt.4194305.0123456789ab.tmp").touch()  # of a process that there cannot be
    second = desk.run()
    kept = desk.folder / "autotuning_results.1"
    assert re.search(rf"results of the earlier study of \S+ \S+ are now in {kept}\n", second.stdout)
    assert old == {name: (kept / name).read_bytes() for name in old}
    assert f" --deepspeed_config {kept}/ds_config_optimal.json" in (kept / "cmd_optimal.txt").read_text()
    assert (desk.folder / "autotuning_exps.1" / f"{NAMES[0]}.json").exists()
    desk.run()
    assert (desk.folder / "autotuning_results.2" / "summary.txt").exists()
    assert not (desk.results / "summary.txt.4194305.0123456789ab.tmp").exists()
    assert (desk.results / "cmd_optimal.txt").stat().st_mode & 0o777 == 0o600
    assert (desk.results / NAMES[0] / "metrics.json").stat().st_mtime_ns > stamp
    assert (desk.results / "mine.txt").exists()


def test_without_overwrite_results_are_kept_and_another_study_is_refused(desk):
    desk.configure(CONFIG, overwrite=False)
    first = desk.run()
    stamp = (desk.results / NAMES[0] / "metrics.json").stat().st_mtime_ns
    second = desk.run()
    assert (desk.results / NAMES[0] / "metrics.json").stat().st_mtime_ns == stamp
    assert " starts on " not in second.stdout and "resuming the study: 2 of its" in second.stdout
    assert re.findall(r"^\| z.*ok *\|$", first.stdout, re.M) == re.findall(r"^\| z.*ok *\|$", second.stdout, re.M)
    desk.configure({**CONFIG, "gradient_clipping": 1.0}, overwrite=False)
    assert "holds a study with other configuration: 2 of its trials have ended" in desk.run(code=2).stderr


def test_an_unfinished_study_is_not_lost_and_what_timed_out_may_take_longer(desk):
    first = desk.start("--until", "go", options=(*ONE, "--experiment_limit", "6"))
    wait_for((desk.results / NAMES[0] / "stdout.log").exists)  # the other has timed out
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    journal = (desk.results / "journal").read_bytes()
    desk.configure({**CONFIG, "gradient_clipping": 1.0}, overwrite=True)
    refused = desk.run("--until", "go", code=2).stderr
    assert "holds a study with other configuration: 1 of its trials has ended" in refused
    assert "set autotuning.results_dir to another folder, or remove this one" in refused
    assert len(refused.splitlines()) == 2
    assert (desk.results / "journal").read_bytes() == journal
    desk.configure(CONFIG)
    (desk.folder / "go").touch()
    done = desk.run("--until", "go", options=(*ONE, "--experiment_limit", "60"))
    assert f"not taken over, because --experiment_limit is longer: {NAMES[1]}\n" in done.stdout
    assert len(re.findall(r"^\| z\d_gas.*\| ok *\|$", done.stdout, re.M)) == 2


def test_what_failed_is_run_again_when_the_script_was_mended(desk):
    desk.configure({**STAGES, "train_micro_batch_size_per_gpu": 8}, overwrite=False)
    script = desk.program("train.py", ("speed = ", "if stage: misspelt\nspeed = "))
    first = desk.run(program=script).stdout
    assert len(re.findall(r"^\| z1.*\| failed *\|$", first, re.M)) == 1
    second = desk.run(program=script).stdout
    assert "1 of them failed and are not run again" in second and " starts on " not in second
    script.write_text(CONTRACT.read_text())
    third = desk.run(program=script).stdout
    assert f"not taken over, because {script} changed: z1_" in third
    assert len(re.findall(r" starts on ", third)) == 1
    assert len(re.findall(r"^\| z\d_gas.*\| ok *\|$", third, re.M)) == 2


def test_a_torn_tail_is_cut_and_said_and_damage_is_refused(desk):
    desk.configure(CONFIG, overwrite=False)
    desk.run()
    journal = desk.results / "journal"
    with journal.open("ab") as file:
        file.write(b'0123456789abcdef {"en')
    assert "cut off an incomplete record of 21 bytes at the end of " in desk.run().stdout
    lines = journal.read_bytes().split(b"\n")
    lines[2] = b"x" + lines[2][1:]
    journal.write_bytes(b"\n".join(lines))
    assert re.search(r"journal:3: the journal is damaged", desk.run(code=2).stderr)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_a_few_times_it_ends_as_if_undisturbed(desk, tmp_path_factory):
    """Nothing that has ended runs again, nothing interrupted counts, nothing is left, and the result is the same."""
    config = {**CONFIG, "train_micro_batch_size_per_gpu": [1, 2, 4, 8], "zero_optimization": {"stage": [0, 1]}}
    options = ("--hosts", "localhost:2", "--num_gpus", "1", "--grace", "1")
    other = Desk(tmp_path_factory.mktemp("undisturbed"), desk.stage)
    other.configure(config)
    other.run("--nap", "0.3", options=options)
    desk.configure(config)
    chance, finished = random.Random(11), {}
    kills = 0
    while kills < TIMES:
        command = bireme("tune", *desk.words("--nap", "0.3", options=options))
        process = subprocess.Popen(command, cwd=desk.folder, env=clean_environ(), stdout=subprocess.DEVNULL)
        try:
            process.wait(chance.uniform(0.1, 0.9))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0
            finished = {}  # at its end: the next begins anew
            continue
        if is_over(desk):  # killed at its last words
            finished = {}
            continue
        now = {str(path): path.stat().st_mtime_ns for path in ended(desk)}
        assert finished.items() <= now.items(), "what has ended was run again, or lost"
        finished = now
    desk.run("--nap", "0.3", options=options)
    assert desk.stage.left(within=30) == {}
    assert desk.summary() == other.summary()
    optimal = [(each.results / "ds_config_optimal.json").read_text() for each in (desk, other)]
    assert optimal[0] == optimal[1]


def is_over(desk: Desk) -> bool:
    journal = desk.results / "journal"
    return journal.exists() and b'{"over":' in journal.read_bytes().rpartition(b'{"study":')[2]


def ended(desk: Desk) -> list[Path]:
    """The figures of the experiments whose end the journal has."""
    try:
        lines = (desk.results / "journal").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    names: list[str] = []
    for line in lines:
        record = json.loads(line.partition(b" ")[2])
        if "study" in record:
            names = []
        if "end" in record:
            names.append(record["end"])
    assert len(names) == len(set(names))
    return [desk.results / name / "metrics.json" for name in names]


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (None, (), "cannot be read: No such file"),
        ("", (), "ds.json: is empty"),
        ('{"a": 1,\n "b": }', (), "ds.json:2:"),
        ('{"a": 1,\n "a": 2}', (), "'a'"),
        ('{"zero_optimization": {"stage": [7]}}', (), "unknown ZeRO stage: 7"),
        ('{"train_micro_batch_size_per_gpu": []}', (), "an empty list"),
        ('{"train_batch_size": 3, "train_micro_batch_size_per_gpu": [2]}', (), "no batch size is possible"),
        (
            '{"autotuning": {"min_train_batch_size": 100000}}',
            (),
            "no batch size is possible: micro-batch 1024 on 2 ranks",
        ),
        ('{"autotuning": {"tuner": "x"}}', (), "unknown key in autotuning: 'tuner'"),
        ('{"autotuning": {"metric": "speed"}}', (), "must be one of throughput"),
        ('{"autotuning": {"mp_size": 3}}', (), "are not divisible by mp_size 3"),
        ("{}", ("--hosts", "localhost:4"), "no trial can run: 5 slots on one node requested"),
    ],
)
def test_bad_input_is_told_in_two_lines_and_nothing_is_begun(desk, text, words, said):
    (desk.folder / "ds.json").unlink()
    if text is not None:
        (desk.folder / "ds.json").write_text(text)
    options = ("--num_gpus", 5 if words else 2, *words)
    done = desk.run(options=options, code=2)
    assert said in done.stderr and done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert sorted(os.listdir(desk.folder)) == (["ds.json"] if text is not None else [])


def test_no_configuration_is_named(desk):
    assert "no DeepSpeed configuration in the script's arguments" in desk.tune(CONTRACT, code=2).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "bireme: nothing to tune\n  type: bireme tune --param "),
        (("stauts",), "bireme: no such program or command: stauts\n  did you mean: bireme tune status\n"),
        (("--dry_run", str(CONTRACT)), "bireme: bireme tune cannot be used with --dry_run\n  see a single job: "),
        (("--json", "--param", "a=1,2", "--minimize", "time", str(CONTRACT), "{a}"), "bireme tune status --json"),
    ],
)
def test_what_is_typed_first_and_wrong(desk, words, said):
    done = desk.tune(*words, code=2)
    assert said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_no_such_script(desk):
    assert "absent.py" in desk.run(program="absent.py", code=2).stderr


def test_results_that_cannot_be_written(desk):
    (desk.folder / "file").write_text("")
    desk.configure(CONFIG, results_dir="file/results")
    done = desk.run(code=2)
    assert "results_dir: " in done.stderr and "cannot be written to: Not a directory" in done.stderr


def test_an_experiment_needs_time(desk):
    assert "--experiment_limit" in desk.run(options=("--experiment_limit", "0", "--num_gpus", "1"), code=2).stderr


@pytest.mark.parametrize("option", ["--no_ssh", "--dry_run", "--native_ranks"])
def test_options_of_one_job(desk, option):
    done = desk.run(options=(option, "--num_gpus", "1"), code=2)
    assert option in done.stderr


# -- engines that do not end by themselves -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("measures", [True, False])
def test_a_run_that_does_not_end_is_ended(desk, measures):
    """DeepSpeed's pipeline engine goes on after the steps that are measured."""
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": [4], "zero_optimization": {"stage": 0}})
    script = desk.folder / "pipeline.py"
    script.write_text(
        "import base64, json, os, sys, time\n"
        "config = json.loads(base64.urlsafe_b64decode(sys.argv[-1]))\n"
        f"if {measures} and os.environ['RANK'] == '0':\n"
        "    json.dump({'throughput': 77.0}, open(config['autotuning']['metric_path'], 'w'))\n"
        "for step in range(1, 100000):\n"
        "    time.sleep(0.1)\n"
        f"    if not {measures} and os.environ['RANK'] == '0':\n"
        "        print(f'steps: {step} loss: 0.1 iter time (s): 0.1', flush=True)\n"
    )
    done = desk.run(options=("--num_gpus", "2", "--grace", "1"), program=script)
    (speed,) = re.findall(r"tmbspg4: (\S+) samples/s, the best so far", done.stdout)
    assert float(speed) == 77 if measures else 20 < float(speed) < 160, "8 samples in a step of 0.1 s or more"
    assert desk.stage.left() == {}


# -- the winner by the clock -------------------------------------------------------------------------


def test_a_study_that_is_killed_in_its_paired_rounds_goes_on_there(desk):
    """The files of the contract are those of the search; nothing that has ended runs again."""
    desk.configure({**STAGES, "train_micro_batch_size_per_gpu": [8]})
    steps = ("--steps", "6", "--step", "0.05")  # long enough for the clock of a busy machine
    process = desk.start(*steps)
    next(line for line in process.stdout if b"@" in line and b" starts" not in line)
    process.kill()
    process.communicate()
    done = desk.run(*steps)
    ends = list(desk.ends())
    names = ["z0_gas1_tmbspg8", "z1_gas1_tmbspg8"]
    assert ends[:2] == names
    assert sorted(path.parent.name for path in desk.results.glob("*/metrics.json")) == names
    assert sorted(path.stem for path in (desk.folder / "autotuning_exps").iterdir()) == names
    assert {path.parent.name for path in desk.results.glob("confirmation/*/metrics.json")} >= set(ends[2:])
    assert re.search(r"^best: z[01]_gas1_tmbspg8  .* by the clock, ", done.stdout, re.MULTILINE)


def test_the_rounds_can_be_switched_off(desk):
    desk.configure({**STAGES, "train_micro_batch_size_per_gpu": [8]})
    done = desk.run("--steps", "6", options=(*ONE, "--confidence", "0"))
    assert "@" not in done.stdout and ", from 1 run\n" in done.stdout
    done = desk.run(options=(*ONE, "--effect", "much"), code=2)
    assert done.stderr == "bireme: --effect: 'much' is not a percentage from 0.1 to 100\n"
