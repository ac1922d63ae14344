"""Real processes under the executor: order, slots, retries, stopping, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from bireme.loop import Loop
from bireme.tune.execution.executor import Executor
from bireme.tune.execution.retries import ATTEMPTS
from bireme.tune.execution.slot_scheduler import Scheduler, Shape, Task
from tests.unit.tune.execution.toys import Client

POOL = {"a": ("0", "1"), "b": ("0", "1")}
ONE = Shape(1, 1)
LOST = "import json, sys; json.dump({'hosts': ['%s']}, open('%s.report', 'w')); sys.exit(75)"


class Bench:
    """An executor with its loop, ended when nothing is left to run."""

    def __init__(self, folder, programs, pool=None, **more):
        self.loop = Loop()
        self.client = Client(folder, programs, self.maybe_stop)
        self.executor = Executor(self.loop, Scheduler(pool or POOL), self.client, **more)

    def maybe_stop(self):
        if self.executor.idle and (self.executor.stopping or not self.executor.waiting):
            self.loop.stop()

    def run(self, *jobs):
        for job in jobs:
            self.executor.submit(job)
        self.executor.start_ready()
        self.loop.run()
        return self.client


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(programs, **more):
        made.append(Bench(tmp_path, programs, **more))
        return made[-1]

    yield make
    for each in made:
        each.loop.close()


def test_as_many_as_there_are_slots_run_side_by_side_and_the_rest_after_them(bench):
    names = [f"e{number}" for number in range(6)]
    client = bench(dict.fromkeys(names, "import time; time.sleep(0.2)")).run(*(Task(name, ONE) for name in names))
    assert client.names("started") == names
    first_end = next(number for number, (what, *_) in enumerate(client.told) if what == "ended")
    assert first_end == 4, "four slots, four experiments before the first end"
    assert sorted(client.names("ended")) == names
    on = {name: where for what, name, where in client.told if what == "started"}
    assert {on[name] for name in names[:4]} == {"a:0", "a:1", "b:0", "b:1"}


def test_the_next_starts_in_the_turn_in_which_one_has_ended(bench):
    client = bench({"e0": "pass", "e1": "pass"}, pool={"a": ("0",)}).run(Task("e0", ONE), Task("e1", ONE))
    assert [what for what, *_ in client.told] == ["started", "ended", "started", "ended"]


def test_running_experiments_have_places_of_their_own(bench):
    sleep = "import time; time.sleep(0.3)"
    client = bench({"e0": sleep, "e1": sleep, "e2": "pass"}, pool={"a": ("0", "1")}).run(
        Task("e0", ONE), Task("e1", ONE), Task("e2", ONE)
    )
    assert sorted(client.places["e0"] + client.places["e1"]) == [0, 1]
    assert client.places["e2"][0] in (0, 1), "a place that was given back is given out again"


def test_what_the_infrastructure_failed_runs_again_elsewhere(bench):
    first_time = textwrap.dedent("""
        import json, os, sys
        host = "{slots}".partition(":")[0]
        open("tries", "a").write(host)
        if host == "a":
            json.dump({"hosts": ["a"]}, open("e0.report", "w")); sys.exit(75)
    """)
    stand = bench({"e0": first_time})
    client = stand.run(Task("e0", ONE))
    assert [(what, where) for what, _, where in client.told] == [
        ("started", "a:0"), ("again", "infrastructure"), ("started", "b:0"), ("ended", "ok")
    ]  # fmt: skip


def test_a_host_that_failed_rests_and_comes_back(bench):
    once = "import json, os, sys\nif not os.path.exists('{n}'):\n    open('{n}', 'w')\n    " + LOST % ("a", "e0")
    client = bench({"e0": once.replace("{n}", "mark")}, pool={"a": ("0",)}, back_off=0.05).run(Task("e0", ONE))
    assert [what for what, *_ in client.told] == ["started", "again", "started", "ended"]


def test_what_always_fails_by_the_infrastructure_is_given_up(bench):
    client = bench({"e0": LOST % ("a", "e0")}, pool={"a": ("0",)}, back_off=0.01).run(Task("e0", ONE))
    assert len(client.names("started")) == ATTEMPTS
    assert client.told[-1] == ("ended", "e0", "infrastructure")


def test_what_was_to_be_retried_is_withdrawn_when_it_is_stopped(bench):
    stand = bench({"e0": LOST % ("a", "e0"), "e1": "pass"}, pool={"a": ("0",)}, back_off=600.0)
    stand.client.when_ended = stand.loop.stop
    stand.run(Task("e0", ONE))
    stand.executor.submit(Task("e1", ONE))
    assert stand.client.told[-1] == ("again", "e0", "infrastructure")
    assert 599 < stand.executor.rest("e0") <= 600 and stand.executor.rest("e1") > 0
    assert stand.executor.waiting and stand.executor.ahead
    assert stand.executor.withdraw() == ("e1",)
    assert stand.executor.waiting and not stand.executor.ahead
    stand.executor.stop()
    assert stand.executor.withdraw() == ("e0",)
    assert stand.executor.idle and not stand.executor.waiting


def test_experiments_that_are_lost_with_their_host_are_one_failure(bench):
    """Four at once do not make it rest for eight times as long."""
    names = [f"e{number}" for number in range(4)]
    once = "import os, sys\nif not os.path.exists('{n}'):\n    open('{n}', 'w')\n    " + LOST
    programs = {name: once.replace("{n}", f"{name}.mark") % ("a", name) for name in names}
    stand = bench(programs, pool={"a": ("0", "1", "2", "3")}, back_off=30.0)
    rests = []
    stand.client.when_ended = lambda: (
        rests.append(max(map(stand.executor.rest, names))), len(rests) == 4 and stand.loop.stop()
    )  # fmt: skip
    client = stand.run(*(Task(name, ONE) for name in names))
    assert len(client.names("again")) == 4 and all(0 < rest <= 30 for rest in rests)
    stand.executor.stop()
    assert sorted(stand.executor.withdraw()) == names


def test_a_host_on_which_something_ran_to_its_end_is_forgiven(bench):
    """Its next failure is its first."""
    once = "import os, sys\nif not os.path.exists('{n}'):\n    open('{n}', 'w')\n    " + LOST
    programs = {name: once.replace("{n}", f"{name}.mark") % ("a", name) for name in ("e0", "e1", "e2")}
    stand = bench(programs, pool={"a": ("0",)}, back_off=0.5)
    rests = []
    stand.client.when_ended = lambda: (rests.append(max(map(stand.executor.rest, programs))), stand.maybe_stop())
    for name in programs:
        stand.run(Task(name, ONE))
    assert stand.client.names("ended") == list(programs)
    assert len(rests) == 6 and all(rest <= 0.5 for rest in rests)


def test_a_low_limit_of_open_files_is_raised_and_no_experiment_sees_it(tmp_path):
    """Each takes two descriptors as long as it runs; twenty are started before the first can end."""
    program = textwrap.dedent(f"""
        import resource, sys; sys.path.insert(0, {os.getcwd()!r})
        from pathlib import Path
        from tests.unit.tune.execution.test_executor import Bench, Task, ONE
        low = (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, low)
        names = [f"e{{n}}" for n in range(20)]
        tell = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
        bench = Bench(Path({str(tmp_path)!r}), dict.fromkeys(names, tell), pool={{"a": tuple(names)}})
        client = bench.run(*(Task(name, ONE) for name in names))
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 104
        bench.executor.close()
        ended = [(what, cause) for what, _, cause in client.told if what != "started"]
        print(ended == [("ended", "ok")] * 20, raised, resource.getrlimit(resource.RLIMIT_NOFILE) == low, low)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("True True True "), done.stdout + done.stderr
    assert (tmp_path / "e19.out").read_text() == done.stdout[len("True True True ") :]


def test_slots_of_what_may_linger_are_not_given_before_it_has_settled(bench):
    stand = bench({"e0": "pass", "e1": "pass"}, pool={"a": ("0",)})
    stand.client.settle = 0.3
    stand.executor.submit(Task("e0", ONE))
    stand.executor.submit(Task("e1", ONE))
    stand.executor.start_ready()
    began = []
    stand.client.when_ended = lambda: (began.append(time.monotonic()), stand.maybe_stop())
    stand.loop.run()
    assert stand.client.names("started") == ["e0", "e1"]
    assert began[1] - began[0] >= 0.3


@pytest.mark.parametrize(
    ("signum", "passed"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGTERM")]
)
def test_stop_ends_all_in_order_and_starts_no_more(bench, signum, passed):
    patient = textwrap.dedent("""
        import signal, sys, time
        def end(signum, frame):
            print(signal.Signals(signum).name)
            sys.exit(0)
        for signum in (1, 2, 15):
            signal.signal(signum, end)
        open("up", "w")
        while True: time.sleep(0.05)  # not longer: a signal that comes just before a sleep begins is heard after it
    """)
    stand = bench({"e0": patient, "e1": "pass"}, pool={"a": ("0",)})

    def stop_when_up():
        if (stand.client.folder / "up").exists():
            stand.executor.stop(signum)
        else:
            stand.loop.after(0.01, stop_when_up)

    stand.loop.after(0.01, stop_when_up)
    client = stand.run(Task("e0", ONE), Task("e1", ONE))
    assert client.told == [("started", "e0", "a:0"), ("ended", "e0", "stopped")]
    assert (client.folder / "e0.out").read_text() == f"{passed}\n"


def test_nothing_of_an_experiment_is_left_when_its_slots_are_given_again(bench, tmp_path):
    """A grandchild in a session of its own, which ignores SIGTERM, is gone before the next experiment starts."""
    child = textwrap.dedent("""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        open("pid", "w").write(str(os.getpid()))
        time.sleep(60)
    """)
    leaves = f"import subprocess, sys, os, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
    leaves += "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)"
    looks = "import os; os.path.exists('/proc/' + open('pid').read()) and open('there', 'w')"
    client = bench({"e0": leaves, "e1": looks}, pool={"a": ("0",)}).run(Task("e0", ONE), Task("e1", ONE))
    assert client.names("ended") == ["e0", "e1"]
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_tuner_that_dies_takes_its_experiments_with_it(tmp_path, stage, signum):
    """No bireme command yet: the executor in a process of its own."""
    program = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {os.getcwd()!r})
        from pathlib import Path
        from bireme.loop import Loop
        from bireme.tune.execution.executor import Executor
        from bireme.tune.execution.slot_scheduler import Scheduler, Task
        from bireme.tune.execution.slot_scheduler import Shape
        from tests.unit.tune.execution.toys import Client
        loop = Loop()
        client = Client(Path({str(tmp_path)!r}), {{"e0": "import time; print('up', flush=True); time.sleep(600)"}})
        executor = Executor(loop, Scheduler({{"a": ("0",)}}), client)
        executor.submit(Task("e0", Shape(1, 1)))
        executor.start_ready()
        print("started", flush=True)
        loop.run()
    """)
    tuner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    stage.started.append(tuner)
    assert tuner.stdout.readline() == b"started\n"
    while not (tmp_path / "e0.out").read_text():
        time.sleep(0.01)
    tuner.send_signal(signum)
    tuner.wait()
    assert stage.left(within=30) == {}


def test_what_cannot_win_any_more_is_ended_while_it_runs(bench, tmp_path):
    """It is asked again and again, with its seconds; the others are not ended."""
    sleeps = "import time; open('slow.began', 'w').close(); time.sleep(600)"
    made = bench({"slow": sleeps, "fine": "import time; time.sleep(0.3)"})
    made.client.end_reason = {
        "slow": lambda seconds: f"slow after {seconds:.1f} s" if (tmp_path / "slow.began").exists() else "",
        "fine": lambda _: "",
    }
    client = made.run(Task("slow", ONE), Task("fine", ONE))
    assert client.ends["slow"].end_reason.startswith("slow after ") and client.ends["slow"].exit_code == 143
    assert client.ends["fine"].end_reason == "" and client.ends["fine"].exit_code == 0
