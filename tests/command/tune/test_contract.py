"""What DeepSpeed's autotuner does and ``bireme tune`` must do too, and defects that it must not have."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import sys
from collections import Counter

import pytest

from tests.command.tune.conftest import CONFIG, CONTRACT, NAMES, ONE, Desk
from tests.conftest import ROOT, clean_environ, read_lines
from tests.kit import needs

TRAINS = ROOT / "benchmarks/programs/tuned.py"
ONCE = (*ONE, "--confidence", "0")
"""No configuration runs again."""


def best(desk: Desk) -> dict:
    return json.loads((desk.results / "ds_config_optimal.json").read_text())


def optimal(desk: Desk) -> list[str]:
    return shlex.split((desk.results / "cmd_optimal.txt").read_text())


def real_job(desk: Desk, code: int = 0):
    """Run the command at the end of the study."""
    return desk.tune(*optimal(desk)[1:], command=(), code=code)


def ran(desk: Desk) -> Counter[str]:
    """STAGE/MICRO of every experiment that has started, and how often."""
    return Counter((desk.folder / "ran").read_text().split())


# -- DeepSpeed's defects ---------------------------------------------------------------------------


def test_it_goes_on_after_an_experiments_error(desk):
    """DeepSpeed hangs (issue 4100)."""
    done = desk.run("--fail", "0/4", options=ONE)
    assert re.search(r"z0_gas2_tmbspg4: failed: rank 0 on \S+: ValueError: no luck with stage 0", done.stdout)
    assert best(desk)["train_micro_batch_size_per_gpu"] == 8


def test_the_reason_in_the_table_is_the_exception(desk):
    """DeepSpeed's is "(" (issues 7269, 4759)."""
    desk.run("--fail", "0/4", options=ONE)
    assert "ValueError: no luck with stage 0" in (desk.results / "summary.txt").read_text()


def test_one_machine_needs_neither_pdsh_nor_ssh(desk):
    """DeepSpeed needs both, to localhost (issue 5709)."""
    desk.run(options=("--hosts", "localhost:2", *ONE), env=clean_environ(PATH="/nonexistent"))
    assert len(list(desk.results.glob("z*/metrics.json"))) == 2


@pytest.mark.parametrize("kind", ["gridsearch", "random", pytest.param("model_based", marks=pytest.mark.slow)])
@pytest.mark.parametrize("micro", [[4, 8], "auto"])
def test_all_out_of_memory_is_an_end_like_others(desk, kind, micro):
    """DeepSpeed crashes (issue 3475)."""
    stages = {"stage": [0, 1] if micro == "auto" else 0}
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": micro, "zero_optimization": stages}, tuner_type=kind)
    done = desk.run("--do", "*/1=oom", "--ran", "ran", options=ONE, code=1)
    assert "out of memory" in done.stdout and "It ended: no configuration fits in memory." in done.stdout
    assert done.stderr == "" and not (desk.results / "cmd_optimal.txt").exists()
    assert max(ran(desk).values()) <= 2, "the profiling run has the smallest micro-batch, too"


def test_latency_is_minimized(desk):
    desk.configure(CONFIG, metric="latency")
    done = desk.run(options=ONE)
    assert best(desk)["train_micro_batch_size_per_gpu"] == 8 and best(desk)["zero_optimization"]["stage"] == 0
    assert "z0_gas1_tmbspg8: 1.25 ms, the best so far" in done.stdout


@pytest.mark.parametrize("metric", ["flops", "forward"])
def test_other_metrics(desk, metric):
    desk.configure({**CONFIG, "zero_optimization": {"stage": 0}}, metric=metric)
    desk.run(options=ONE)
    expected = 8 if metric == "flops" else 4  # the times are equal: the first of equals
    assert best(desk)["train_micro_batch_size_per_gpu"] == expected


def test_fast_false_tries_the_default_choices(desk):
    """DeepSpeed raises KeyError."""
    desk.configure(
        {**CONFIG, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}},
        fast=False,
        tuner_num_trials=5,
        tuner_early_stopping=None,
    )
    desk.run("--ran", "ran", options=ONCE)
    assert ran(desk) == {"1/4": 5}
    sizes = {
        json.loads(path.read_text())["zero_optimization"]["reduce_bucket_size"]
        for path in desk.results.glob("z1*/ds_config.json")
    }
    assert len(sizes) > 1


@pytest.mark.parametrize("stream", ["out", "err"])
def test_the_word_error_is_no_failure(desk, stream):
    done = desk.run("--do", "*/*=error", "--say", "Error: (no error)", options=ONE)
    assert done.returncode == 0 and len(list(desk.results.glob("z*/metrics.json"))) == 2
    assert "Error: (no error)" in (desk.results / NAMES[0] / "stderr.log").read_text()


def test_names_that_begin_alike_do_not_meet(desk):
    """DeepSpeed ends ``…tmbspg16`` with ``…tmbspg1``."""
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": [16, 1], "zero_optimization": {"stage": 0}})
    script = desk.program("waits.py", ("while args.until and", "while args.until and micro != 1 and"))
    words = ("--until", "go", "--do", "0/1=die")
    process = desk.start(*words, options=("--hosts", "localhost:2", *ONE), program=script)
    read_lines(process, 1, "z0_gas16_tmbspg1: failed: rank 0")
    (desk.folder / "go").touch()
    out, err = process.communicate(timeout=60)
    assert b"z0_gas1_tmbspg16: 1600 samples/s, the best so far" in out, err


# -- what is tried -------------------------------------------------------------------------------------


def test_micro_batches_are_found_and_no_wall_is_run_into_twice(desk):
    desk.configure({"zero_optimization": {"stage": [0, 1]}, "autotuning": {"enabled": True}})
    done = desk.run("--do", "0/23=oom", "--do", "1/37=oom", "--ran", "ran", options=ONCE)
    assert "profile_model_info" in done.stdout
    assert json.loads((desk.results / "profile_model_info" / "model_info.json").read_text())["num_params"] == 1000
    counted = ran(desk)
    counted["1/1"] -= 1  # the profiling run
    assert max(counted.values()) == 1, counted
    beyond = [each for each in counted if each.startswith("0/") and int(each[2:]) >= 23]
    assert 1 <= len(beyond) <= 3, beyond
    assert best(desk)["zero_optimization"]["stage"] == 0
    assert best(desk)["train_micro_batch_size_per_gpu"] in (20, 21, 22)


@pytest.mark.parametrize("kind", ["random", pytest.param("model_based", marks=pytest.mark.slow)])
def test_searches_with_bounds(desk, kind):
    config = {**CONFIG, "train_micro_batch_size_per_gpu": [1, 2, 4, 8, 16, 32], "zero_optimization": {"stage": "all"}}
    desk.configure(config, tuner_type=kind, tuner_num_trials=4)
    desk.run("--ran", "ran", options=ONCE)
    assert 0 < sum(ran(desk).values()) <= 4 and max(ran(desk).values()) == 1


def test_no_zero_section_is_stage_0_alone(desk):
    desk.configure({"train_micro_batch_size_per_gpu": [1, 2], "autotuning": {"enabled": True}})
    desk.run("--ran", "ran", options=ONE)
    assert sorted(ran(desk)) == ["0/1", "0/2"]


# -- the command ---------------------------------------------------------------------------------------


def test_values_behind_flags_of_a_hugging_face_script(desk):
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "autotuning": {
            "enabled": True,
            "max_train_micro_batch_size_per_gpu": 4,
            "arg_mappings": {"train_micro_batch_size_per_gpu": " --batch ", "gradient_accumulation_steps ": "--gas"},
        },
    }
    desk.configure(config)
    desk.run("--batch=2", "--gas", "1", "--do", "0/9=oom", options=ONE, flag="--deepspeed")
    for path in desk.results.glob("z*/cmd.txt"):
        words = shlex.split(path.read_text())
        config = json.loads(base64.urlsafe_b64decode(words[words.index("--deepspeed") + 1]))
        assert f"--batch={config['train_micro_batch_size_per_gpu']}" in words
        assert words[words.index("--gas") + 1] == str(config["gradient_accumulation_steps"])
    assert "--batch=4" in optimal(desk)
    done = real_job(desk)
    assert "real job 0 4" in done.stdout and "batch 4 " in done.stdout


def test_a_module(desk):
    (desk.folder / "package").mkdir()
    (desk.folder / "package" / "train.py").write_text(CONTRACT.read_text())
    desk.run(options=(*ONE, "--module"), program="package.train")
    assert optimal(desk)[:5] == ["bireme", "run", "--module", *ONE]
    assert "real job 0 8" in real_job(desk).stdout


def test_a_program_that_is_not_pythons(desk):
    program = desk.folder / "train.sh"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(CONTRACT)])} "$@"\n')
    program.chmod(0o755)
    desk.run(options=(*ONE, "--no_python"), program="./train.sh")
    assert "real job 0 8" in real_job(desk).stdout


def test_arguments_arrive_as_they_are(desk):
    strange = ["", "a b", "'", '"', "$HOME", ";", "*", "-4C", "\n", "ü", '{"a": [1]}', "--", "--deepspeed_config", "x"]
    script = desk.folder / "says.py"
    script.write_text('import json, sys\nprint("ARGS", json.dumps(sys.argv[3:]))\n' + CONTRACT.read_text())
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}})
    desk.run(*strange, program="says.py")
    (log,) = desk.results.glob("z*/stdout.log")
    assert f"ARGS {json.dumps(strange)}" in log.read_text()
    assert f"ARGS {json.dumps(strange)}" in real_job(desk).stdout


def test_the_real_job_is_stopped_by_ctrl_c(desk):
    """It takes the tuner's place, with its signals as any job's."""
    script = desk.folder / "real.py"
    script.write_text(CONTRACT.read_text() + "\nif not section:\n    time.sleep(600)\n")
    words = ["run", "--autotuning", "run", *ONE, str(script), "--deepspeed_config", "ds.json"]
    process = desk.stage.start(*words, cwd=desk.folder)
    read_lines(process, 1, "real job 0 8")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130 and desk.stage.left() == {}


def test_nothing_that_works_is_no_real_job(desk):
    done = desk.run("--fail", "all", command=("run", "--autotuning", "run"), options=ONE, code=1)
    assert "real job" not in done.stdout


def test_a_signal_that_is_ignored_stays_so(desk):
    """As under nohup."""
    process = desk.stage.start(
        *("tune", *desk.words("--until", "go", options=ONE)),
        cwd=desk.folder,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    read_lines(process, 1, "starts on")
    process.send_signal(signal.SIGHUP)
    (desk.folder / "go").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err


def test_from_python_in_another_folder(desk):
    """Paths are those of the working directory, and the results lie there."""
    (desk.folder / "deep").mkdir()
    (desk.folder / "ds.json").rename(desk.folder / "deep" / "ds.json")
    desk.tune(*ONE, os.path.relpath(CONTRACT, desk.folder), "--deepspeed_config", "deep/ds.json")
    assert sorted(path.name for path in desk.folder.iterdir()) == ["autotuning_exps", "autotuning_results", "deep"]


def test_the_pace_by_the_clock_stands_beside_the_engines_own(desk):
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}})
    desk.run("--steps", "6", options=ONE)
    rows = re.findall(
        r"^\| z0\S+ +\| 1 +\| +[\d.]+ samples/s \| +([\d.]+)", (desk.results / "summary.txt").read_text(), re.M
    )
    assert len(rows) == 1 and float(rows[0]) > 0


def test_the_time_limit_is_that_of_the_real_job(desk):
    desk.configure({**CONFIG, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}})
    desk.run("--nap", "2", options=(*ONE, "--time_limit", "0.2"))
    assert "--time_limit=0.2" in optimal(desk)
    real_job(desk, code=124)


# -- the engine itself ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
@needs.modules("torch", "deepspeed")
def test_deepspeeds_engine(desk):
    """An unmodified script, profiled and measured."""
    config = {
        "train_micro_batch_size_per_gpu": [24],
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        # nearly all steps of the script: on a busy machine the lines of a few of them are read at the same moment
        "autotuning": {"enabled": True, "model_info": {"profile": True}, "end_profile_step": 28},
    }
    desk.configure(config)
    # one rank, and one choice: what costs the time here is DeepSpeed's import
    env = clean_environ(OMP_NUM_THREADS="1")
    desk.run(options=("--accelerator", "cpu", *ONE), program=TRAINS, env=env)
    info = json.loads((desk.results / "profile_model_info" / "model_info.json").read_text())
    assert info["num_params"] == 2 * (512 * 1024) + 1024 * 1024 + 1024 + 1024 + 512
    figures = json.loads((desk.results / "z1_gas1_tmbspg24" / "metrics.json").read_text())
    assert {"fwd", "bwd", "step", "latency", "throughput", "FLOPS_per_gpu"} <= figures.keys()
    head, *rows = re.findall(
        r"^\| (?:configuration|z1_gas1_tmbspg24) .*", (desk.results / "summary.txt").read_text(), re.M
    )
    (row,) = [dict(zip(map(str.strip, head.split("|")), row.split("|"), strict=True)) for row in rows]
    engine, clock, end = row["throughput"].split(), row["by the clock"].split(), row["end"].split()
    assert end == ["ok"] and engine[1] == "samples/s"
    assert float(engine[0]) == pytest.approx(figures["throughput"], rel=0.01)
    assert float(clock[0]) > 0, "our own clock stands beside the engine's"
