"""``bireme.run`` and ``bireme.plan`` in a user's program, whose state is afterwards as it was before."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bireme
from bireme.job import JobSpec, Program
from tests.conftest import clean_environ, run_python

BEGIN = """
import ctypes, json, os, signal, sys, threading
import bireme
from bireme.job import JobSpec, Program

def state():
    flag = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(flag), 0, 0, 0)
    me = os.getpid()
    return {
        "handlers": [str(signal.getsignal(s)) for s in range(1, 32) if s not in (9, 19)],
        "wakeup": signal.set_wakeup_fd(-1),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "fds": sorted(os.listdir("/proc/self/fd")),
        "subreaper": flag.value,
        "children": open(f"/proc/{me}/task/{me}/children").read().split(),
        "threads": threading.active_count(),
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
    }
"""


def embed(text, **kwargs):
    """Run a program that uses the interface."""
    return run_python(BEGIN + text, **kwargs)


def spec(script, *args, **more):
    return f"JobSpec(Program({str(script)!r}, {args!r}), log_level='error', **{more!r})"


def test_outcome_of_a_job_that_ends_well(script):
    job = spec(script("print('hello')"), num_gpus=2)
    done = embed(f"o = bireme.run({job})\nprint(o.exit_code, o.cause, [e.code for e in o.ends], o.first, o.hosts)")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines[0] == "0 ok [0, 0] None ()"
    assert [line.split("] ")[1] for line in lines[1:]] == ["hello", "hello"]
    assert done.stderr == ""


def test_outcome_of_a_job_that_fails(script):
    program = script("import os, time\nif os.environ['RANK'] == '1': raise ValueError('boom')\ntime.sleep(1000)\n")
    job = spec(program, num_gpus=2, output="none")
    done = embed(
        f"o = bireme.run({job})\nf = o.first\nstopped = [e.stopped for e in o.ends]\n"
        "print(json.dumps([o.exit_code, o.cause, f.rank, f.code, f.by_signal, f.detail, stopped]))\n"
    )
    assert done.returncode == 0, done.stderr
    code, cause, rank, rank_code, by_signal, detail, stopped = json.loads(done.stdout)
    assert (code, cause, rank, rank_code, by_signal) == (1, "rank failed", 1, 1, False)
    assert detail.startswith("Traceback") and detail.endswith("ValueError: boom")
    assert stopped == [True, False]
    assert done.stderr == ""  # to say it is the caller's business


def test_the_program_is_as_before(script):
    good, bad = script("pass", "good.py"), script("raise SystemExit(3)", "bad.py")
    done = embed(
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "before = state()\n"
        f"assert bireme.run({spec(good, num_gpus=2)}).exit_code == 0\n"
        "once = state()\n"
        f"assert bireme.run({spec(bad, num_gpus=2)}).exit_code == 3\n"
        f"try: bireme.run({spec(good, include='nowhere')})\n"
        "except bireme.BadInputError: pass\n"
        "print(json.dumps([before, once, state()]))\n"
    )
    assert done.returncode == 0, done.stderr
    before, *after = json.loads(done.stdout.splitlines()[-1])
    for now in after:
        for name in before:
            assert now[name] == before[name], name


def test_a_subreaper_stays_one(script):
    done = embed(
        f"ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nbireme.run({spec(script('pass'))})\nprint(state()['subreaper'])\n"
    )
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed(script, tmp_path, closed):
    """No file of ours takes its number while the job runs; afterwards it is closed as before."""
    link = "os.symlink(os.readlink('/proc/self/fd/0'), 'stdin')"
    says = script(f"import os\n{link}\nos.write(1, b'out')\nos.write(2, b'err')\n")
    program = f"before = state()\no = bireme.run({spec(says)})\nos._exit(o.exit_code or state() != before)"
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", BEGIN + program]
    done = subprocess.run(
        words, env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (b"" if closed == ">&-" else b"out") and done.stderr == (b"" if closed == "2>&-" else b"err")
    assert os.readlink(tmp_path / "stdin") == "/dev/null"


def test_children_of_the_program_are_not_touched(script):
    """Neither at a failure nor when the guardian itself is killed."""
    kills = script("import os\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(1000)\n")
    done = embed(
        "import subprocess\n"
        "mine = subprocess.Popen(['sleep', '1000'])\n"
        f"outcome = bireme.run({spec(kills)})\n"
        "print(outcome.exit_code, outcome.cause, mine.poll())\n"
        "mine.kill(); print(mine.wait())\n"
    )
    assert done.stdout == "75 agent lost None\n-9\n", done.stderr


def test_environment_that_is_given(script):
    program = script("import os\nprint(os.environ.get('MINE'), os.environ.get('HOME'), os.environ['RANK'])\n")
    done = embed(f"bireme.run({spec(program)}, {{'MINE': 'x', 'PATH': os.environ['PATH']}})")
    assert done.stdout == "x None 0\n", done.stderr


def test_ctrl_c_is_raised_when_nothing_is_left(script):
    program = script("import os, time\nos.kill(int(os.environ['EMBEDDING']), 2)\ntime.sleep(1000)\n")
    job = spec(program, output="none")
    done = embed(
        "before = state()\n"
        f"try: bireme.run({job}, {{**os.environ, 'EMBEDDING': str(os.getpid())}})\n"
        "except KeyboardInterrupt: print('raised', state() == before)\n"
    )
    assert done.stdout == "raised True\n", done.stderr
    assert done.returncode == 0


def test_another_signal_is_an_outcome(script):
    program = script("import os, time\nos.kill(int(os.environ['EMBEDDING']), 15)\ntime.sleep(1000)\n")
    job = spec(program, output="none")
    done = embed(
        f"o = bireme.run({job}, {{**os.environ, 'EMBEDDING': str(os.getpid())}})\nprint(o.exit_code, o.cause)\n"
    )
    assert done.stdout == "143 signal\n", done.stderr


def test_events_are_told_as_they_happen(script):
    """An error in the function is the caller's own: it is shown, and the job goes on."""
    done = run_python(
        "import os, sys, bireme\n"
        "from bireme.job import JobSpec, Program\n"
        "def hear(event):\n"
        "    os.write(1, f\"{event['event']} {event.get('rank', '')}\\n\".encode())\n"  # in one piece
        "    if event['event'] == 'up': raise KeyError('mine')\n"
        "spec = JobSpec(Program(sys.argv[1]), num_gpus=1, accelerator='cpu')\n"
        "print('code', bireme.run(spec, on_event=hear).exit_code)\n"
        "print('code', bireme.run(spec).exit_code)",
        script("import os; os.write(1, b'mine\\n')"),  # in one piece, too
    )
    told = [line for line in done.stdout.splitlines() if "mine" not in line]
    assert told[0] == "planned " and told[-3:] == ["finished ", "code 0", "code 0"]
    assert sorted(told[1:-3]) == ["down 0", "first output 0", "up 0"]
    assert done.stderr.count("on_event: KeyError: 'mine'") == 1


def test_another_thread_is_refused(script):
    done = embed(
        "before = state()\n"
        "def run():\n"
        f"    try: bireme.run({spec(script('pass'))})\n"
        "    except bireme.BadInputError as error: print(error)\n"
        "thread = threading.Thread(target=run); thread.start(); thread.join()\n"
        "assert state()['fds'] == before['fds']\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bireme.run() works only in the main thread") and done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("job", "error", "says"),
    [
        ("train.py", TypeError, "expected bireme.JobSpec(bireme.Program(…), …), not 'train.py'"),
        (JobSpec("train.py"), TypeError, "program: expected Program, not 'train.py'"),
        (JobSpec(Program(Path("x"))), TypeError, "program: expected words of type str, not PosixPath('x')"),
        (JobSpec(Program("x", ("--lr", 0.1))), TypeError, "program: expected words of type str, not 0.1"),
        (JobSpec(Program("x"), num_gpus="two"), TypeError, "num_gpus: expected int | None, not 'two'"),
        (JobSpec(Program("x"), exports="A=1"), TypeError, "exports: expected tuple[str, ...], not 'A=1'"),
        (JobSpec(Program("x"), exports=(1,)), TypeError, "exports: expected tuple[str, ...], not (1,)"),
        (JobSpec(Program("x"), num_gpus=True), TypeError, "num_gpus: expected int | None, not True"),
        (JobSpec(Program("x", kind="py")), bireme.BadInputError, "kind: 'py' is not one of script, module, exec"),
        (JobSpec(Program("x"), output="all"), bireme.BadInputError, "output: 'all' is not one of auto, prefix"),
    ],
)
def test_values_of_other_types(job, error, says):
    for use in (bireme.run, bireme.plan):
        with pytest.raises(error, match=re.escape(says)):
            use(job)


def test_signatures_and_names_are_there_to_be_looked_up():
    assert {name for name in dir(bireme) if name[0] != "_"} == set(bireme.__all__) - {"__version__"}
    signature = inspect.signature(bireme.JobSpec)
    assert list(signature.parameters)[:2] == ["program", "include"]
    assert signature.parameters["num_gpus"].default is None
    assert signature.parameters["program"].default is inspect.Parameter.empty
    assert str(inspect.signature(bireme.Program)) == (
        "(target: 'str', args: 'tuple[str, ...]' = (), kind: 'ProgramKind' = 'script')"
    )
    assert "on_restart" in inspect.signature(bireme.run).parameters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_gpu": 2}, "JobSpec() got an unexpected keyword argument 'num_gpu'. Did you mean 'num_gpus'?"),
        ({"qwertz": 2}, "JobSpec() got an unexpected keyword argument 'qwertz'"),
        ({"program": Program("x")}, "JobSpec() got multiple values for argument 'program'"),
    ],
    ids=["near", "far", "twice"],
)
def test_wrong_keywords(arguments, message):
    with pytest.raises(TypeError) as raised:
        JobSpec(Program("x.py"), **arguments)
    assert str(raised.value) == message
    with pytest.raises(TypeError, match="missing a required argument: 'program'"):
        JobSpec()


WRONG = {
    "accelerator": "abacus",
    "master_addr": "",
    "master_port": -1,
    "local_rank_arg": "x",
    "rank_log_dir": "",
    "bind_core_list": "a",
    "venv_script": "/no",
    "python": "/no",
    "grace": -1,
    "time_limit": 0,
    "output": "x",
    "wrap": ("no-such-program",),
    "log_level": "x",
    "hostfile": "/no/such/file",
    "num_nodes": 0,
    "launcher": "x",
    "ssh_port": 70000,
    "node_rank": -5,
    "log_dir": "",
    "ship_limit": -1,
    "heartbeat": 0,
    "restarts": -1,
    "restart_window": 0,
    "min_nodes": 0,
    "max_nodes": 0,
    "elastic_timeout": -1,
    "elastic_interval": -1,
    "rendezvous": "x",
}
"""A wrong value of each field whose value can be wrong although it has the right type."""


@pytest.mark.parametrize("field", JobSpec._fields)
def test_a_value_of_another_type(field):
    value = (3,) if JobSpec.__annotations__[field].startswith("tuple[str") else object()
    with pytest.raises((TypeError, bireme.BadInputError), match=f"^{field}: "):
        bireme.plan(JobSpec(**{"program": Program("x.py"), field: value}))


def test_errors_name_fields_and_not_options(script):
    for more, words in (
        ({"num_gpus": 0}, "num_gpus must be at least 1"),
        *(({name: value}, name) for name, value in WRONG.items()),
        ({"include": "localhost:99"}, "include: "),
        ({"bind_cores": True, "num_gpus": 4000}, "bind_cores: "),
    ):
        with pytest.raises(bireme.BadInputError) as raised:
            bireme.plan(JobSpec(Program(str(script("pass"))), **more))
        assert str(raised.value).startswith(words), str(raised.value)
        assert "--" not in str(raised.value)
        assert words in repr(raised.value), "which has no hint"


def test_importing_costs_nothing_heavy():
    heavy = {"argparse", "asyncio", "dataclasses", "logging", "typing", "subprocess", "socket", "inspect", "torch"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys, bireme.cli.run, bireme.api; print({heavy!r} & set(sys.modules))"],
        capture_output=True,
        text=True,
        env=clean_environ(PYTHONPATH=str(Path(bireme.__file__).parents[1])),
    )
    assert done.stdout == "set()\n", done.stderr


# -- plan ----------------------------------------------------------------------------------------


def test_plan_starts_nothing(script, tmp_path):
    program = script(f"open({str(tmp_path / 'ran')!r}, 'w')")
    plan = bireme.plan(JobSpec(Program(str(program), ("a",)), num_gpus=3))
    assert plan.world_size == 3
    assert [worker.argv[-2:] for worker in plan.nodes[0].workers] == [(str(program), "a")] * 3
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"num_gpus": 0},
        {"include": "localhost:99"},
        {"include": "localhost", "exclude": "localhost"},
        {"master_port": 0xFFFFF},
    ],
)
def test_bad_input_is_raised(script, more):
    with pytest.raises(bireme.BadInputError):
        bireme.plan(JobSpec(Program(str(script("pass"))), **more))
    assert issubclass(bireme.BadInputError, ValueError)


grammar = st.text("localhost:@,0123456789[]- .*#\0\n\ud800ü", max_size=25)


@settings(max_examples=60, deadline=None)
@given(grammar | st.text(max_size=25), st.booleans())
def test_any_filter_is_accepted_or_refused(text, excludes):
    filters = {"exclude": text} if excludes else {"include": text}
    try:
        plan = bireme.plan(JobSpec(Program("sh", kind="exec"), accelerator="cpu", **filters))
    except bireme.BadInputError as error:
        assert 1 <= len(str(error).splitlines()) <= 2
        return
    assert plan.world_size >= 1
