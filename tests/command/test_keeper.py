"""Templates that outlive jobs: one job after the other forks its ranks from them; whatever dies, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.process import keeper
from tests.command.conftest import state_of
from tests.conftest import PROGRAMS, Stage, bireme, clean_environ, own_children, read_lines, wait_for

LOOK = """
import mine, os, sys
print(mine.value, os.getppid(), "mine" in before, os.environ.get("BIREME_TEMPLATES"), *sys.argv[1:])
"""
WAIT = "import os, time; os.write(1, b'ready %d\\n' % os.getpid()); time.sleep(600)"


class Place:
    """A keeper below this process, and the jobs beside it."""

    def __init__(self, folder: Path) -> None:
        self.keeper = keeper.Keeper()
        self.stage = Stage()
        self.folder = folder
        self.write("one")
        (folder / "look.py").write_text("import sys; before = set(sys.modules)" + LOOK)
        (folder / "wait.py").write_text(WAIT)

    def write(self, value: str) -> None:
        (self.folder / "mine.py").write_text(f"import os; value = {value!r} + os.environ.get('MINE', '')")

    def argv(self, script: str, *args: str) -> list[str]:
        return bireme("run", "-q", "--num_gpus", "2", "--output", "raw", "--preload", "mine", script, *args)

    def environ(self, **more: str) -> dict[str, str]:
        return clean_environ(BIREME_TEMPLATES=self.keeper.name, **more)

    def look(self, *args: str, **more: str) -> tuple[str, int]:
        """What the module of two warm ranks has, and the pid of their parent."""
        done = self.stage.run_argv(self.argv("look.py", *args), cwd=self.folder, env=self.environ(**more), code=0)
        (line,) = {*done.stdout.splitlines()}
        value, parent, warm, place, *rest = line.split()
        assert (warm, place, rest) == ("True", "None", list(args)), done.stderr
        return value, int(parent)

    def below(self, name: str) -> list[int]:
        """The processes of this name below the keeper's watcher."""
        found, waiting = [], [self.keeper.handle.pid]
        while waiting:
            pid = waiting.pop()
            try:
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n":
                    found.append(pid)
            except OSError:
                pass
        return found


@pytest.fixture
def place() -> Iterator[Place]:
    before = Stage()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        yield place
        place.keeper.close()
        place.stage.end()
        before.end()


def test_jobs_share_a_template(place: Place) -> None:
    value, first = place.look("a", BIREME_X="1")
    (template,) = place.below("bireme-warm")
    assert [value, place.look("b", "--c", RANK="9")] == ["one", ("one", first)]
    assert place.below("bireme-warm") == [template] and place.below("bireme-keeper") == [first]


def test_never_a_wrong_rank(place: Place) -> None:
    """Another value of any variable, or a file that has changed, makes another template."""
    assert place.look()[0] == "one"
    assert place.look(MINE="2")[0] == "one2"
    assert place.look()[0] == "one"
    place.write("another")
    assert place.look()[0] == "another"
    assert len(place.below("bireme-warm")) == 1


def test_the_template_is_killed_between_two_jobs(place: Place) -> None:
    place.look()
    (template,) = place.below("bireme-warm")
    os.kill(template, signal.SIGKILL)
    assert place.look()[0] == "one" and place.below("bireme-warm") != [template]


class Memory:
    """What a keeper that starts now reads about the memory of the machine and of its control group."""

    def __init__(self, folder: Path) -> None:
        (folder / "self").mkdir()
        (folder / "self/cgroup").write_text("0::/\n")
        (folder / "memory.max").write_text("1000\n")
        (folder / "memory.events").touch()
        self.folder = folder
        self.leave(50, 50)

    def leave(self, machine: int, group: int) -> None:
        """Let so many per cent be available; three quarters of what the group uses are files."""
        (self.folder / "meminfo").write_text(f"MemTotal: 1000 kB\nMemAvailable: {10 * machine} kB\n")
        (self.folder / "memory.stat").write_text(f"anon 1\ninactive_file {3 * (1000 - 10 * group)}\n")
        (self.folder / "memory.current").write_text(f"{4 * (1000 - 10 * group)}\n")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(keeper, "_PROC", str(tmp_path))
    monkeypatch.setattr(keeper, "_GROUPS", str(tmp_path))
    return Memory(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("short", [(4, 50), (50, 4)], ids=["machine", "group"])
def test_a_template_that_waits_ends_when_memory_is_short(memory: Memory, place: Place, short: tuple[int, int]) -> None:
    place.look()
    (template,) = place.below("bireme-warm")
    time.sleep(6)  # the keeper looks every 5 seconds
    assert place.below("bireme-warm") == [template]
    memory.leave(*short)
    wait_for(lambda: not place.below("bireme-warm"))
    memory.leave(50, 50)
    assert place.look()[0] == "one" and place.below("bireme-warm") != [template]


@pytest.mark.parametrize("whom", ["job", "keeper", "rank"])
def test_something_is_killed(place: Place, whom: str) -> None:
    """The ranks end, and the next job runs, with this keeper or without."""
    process = place.stage.start_argv(place.argv("wait.py"), cwd=place.folder, env=place.environ())
    ranks = [int(line.split()[1]) for line in read_lines(process, 2, "ready")]
    (guard,) = place.below("bireme-keeper")
    os.kill({"job": process.pid, "keeper": guard, "rank": ranks[0]}[whom], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == {"job": -9, "keeper": 75, "rank": 137}[whom], err
    for rank in ranks:
        wait_for(lambda rank=rank: state_of(rank) in ("", "Z"), "the ranks to end")
    assert place.look()[0] == "one"


def test_a_job_is_stopped(place: Place) -> None:
    process = place.stage.start_argv(place.argv("wait.py"), cwd=place.folder, env=place.environ())
    read_lines(process, 2, "ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert place.look()[0] == "one"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_a_job_ends_while_the_template_imports(place: Place, signum: signal.Signals) -> None:
    """Its ranks are not started any more, and nobody holds their streams, for which the job would wait."""
    (place.folder / "mine.py").write_text("import time; open('importing', 'w').close(); time.sleep(600)")
    process = place.stage.start_argv(place.argv("look.py"), cwd=place.folder, env=place.environ())
    wait_for((place.folder / "importing").exists, "the import")
    (guard,) = place.below("bireme-keeper")
    process.send_signal(signum)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (143 if signum == signal.SIGTERM else -9) and not out
    place.write("two")
    assert place.look(X="1") == ("two", guard)


TRIAL = """
import sys
warm = "ctypes" in sys.modules
import os, time
if sys.argv[2:]:
    print("ready", flush=True)
    time.sleep(600)
print("from", warm, os.getppid(), open(f"/proc/{os.getppid()}/comm").read())
print("rate:", sys.argv[1])
"""
STUDY = (
    "tune",
    "--preload",
    "ctypes",
    "--accelerator",
    "cpu",
    "--num_gpus",
    "1",
    "--param",
    "x=1,2,3",
    "--trials",
    "5",
)


def test_trials_of_a_study_share_a_template(stage: Stage, script, tmp_path: Path) -> None:
    script(TRIAL, "trial.py")
    words = (*STUDY, "--maximize", "rate: {}", "trial.py", "{x}")
    stage.run(*words, cwd=tmp_path, code=0)
    texts = [path.read_text() for path in tmp_path.glob("tuning/trials/*/stdout.log")]
    assert len(texts) >= 3
    (line,) = {line.partition("from ")[2] for text in texts for line in text.splitlines() if "from " in line}
    assert line.startswith("True ") and line.endswith(" bireme-keeper")
    assert not stage.left()


def test_the_tuner_is_killed(stage: Stage, script, tmp_path: Path) -> None:
    script(TRIAL, "trial.py")
    words = (*STUDY, "--maximize", "rate: {}", "trial.py", "{x}", "wait")
    process = stage.start(*words, cwd=tmp_path)
    log = tmp_path / "tuning/trials/trial-1/stdout.log"
    wait_for(lambda: log.exists() and "ready" in log.read_text(), "the trial")
    process.kill()
    process.communicate()
    assert not stage.left(within=60)


KEPT = """
import sys; warm = "mine" in sys.modules
import os, resource
print("from", warm, os.getppid(), os.environ.get("MINE"), resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
while os.path.exists("hold"):
    pass
"""


class Kept:
    """Jobs in one directory, with --keep or without."""

    def __init__(self, stage: Stage, script, folder: Path) -> None:
        (folder / "mine.py").write_text("with open('imports', 'a') as file: print('once', file=file)")
        self.stage, self.folder, self.path = stage, folder, script(KEPT)
        self.words = ("run", "-q", "--accelerator", "cpu", "--num_gpus", "1", "--output", "raw", "--preload", "mine")

    def parent(self, *words: str, **kwargs: object) -> int:
        """The parent of the job's warm rank."""
        kwargs = {"cwd": self.folder, **kwargs}
        done = self.stage.run(*self.words, *words, self.path, code=0, **kwargs)
        assert done.stdout.startswith("from True "), done
        return int(done.stdout.split()[2])

    def listed(self, pid: int) -> list[tuple[object, ...]]:
        """What `bireme ps` says of a keeper."""
        said = self.stage.run("ps", "--json", code=0).stdout
        jobs = json.loads(said) if said else ()
        return [(job["command"], job["state"], job["ranks"]) for job in jobs if job["id"] == pid]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def kept(script, tmp_path: Path) -> Iterator[Kept]:
    stage = Stage()
    yield Kept(stage, script, tmp_path)
    for name in Path("/proc/net/unix").read_text().split():  # what a test has left
        if name.startswith("@bireme-job-") and parent_of(pid := int(name.split("-")[3])) in own_children():
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not stage.left())
    stage.end()


def test_a_template_is_kept_for_the_next_job(kept: Kept) -> None:
    """In the same directory, whether it keeps one too, and from the same surroundings; until it is stopped."""
    first = kept.parent("--keep")
    assert kept.parent() == first == kept.parent("--keep", env=clean_environ(BIREME_X="1"))
    assert kept.listed(first) == [("--preload mine", "waiting", 0)]
    (kept.folder / "other").mkdir()
    (kept.folder / "other/mine.py").write_text("")
    assert kept.parent(cwd=kept.folder / "other") != first
    assert kept.parent(preexec_fn=lambda: os.umask(0o27)) != first
    assert (kept.folder / "imports").read_text() == "once\nonce\n"
    kept.stage.run("stop", str(first), code=0)
    assert not kept.listed(first) and kept.parent() != first


def test_a_kept_template_answers_while_a_job_runs(kept: Kept) -> None:
    """Another job has a template of its own then. Who stops the keeper does not stop the job."""
    first = kept.parent("--keep")
    (kept.folder / "hold").touch()
    process = kept.stage.start(*kept.words, kept.path, cwd=kept.folder)
    (line,) = read_lines(process, 1, "from True")
    assert int(line.split()[2]) == first
    assert kept.listed(first) == [("--preload mine", "running", 0)]
    other = kept.stage.start(*kept.words, kept.path, cwd=kept.folder)
    (line,) = read_lines(other, 1, "from True")
    assert int(line.split()[2]) != first
    stop = kept.stage.start("stop", str(first))
    wait_for(lambda: "stopping" in os.read(stop.stdout.fileno(), 99).decode())
    (kept.folder / "hold").unlink()
    assert process.wait(60) == 0 and other.wait(60) == 0 and stop.wait(60) == 0
    assert not kept.stage.left(within=10)


def test_a_kept_template_ends_when_no_job_comes(kept: Kept) -> None:
    """Each job begins its time anew; while one runs, it does not pass."""
    start = "from bireme.process import keeper; print(keeper.lasting(start=True, lasts=1.5))"
    name = kept.stage.run_argv([sys.executable, "-c", start], cwd=kept.folder, code=0).stdout
    first = int(name.split("-")[3])
    (kept.folder / "hold").touch()
    job = kept.stage.start(*kept.words, kept.path, cwd=kept.folder)
    read_lines(job, 1, f"from True {first} ")
    before = time.monotonic()
    wait_for(lambda: time.monotonic() - before > 2, "more than its time")
    (kept.folder / "hold").unlink()
    assert job.wait(60) == 0 and kept.parent() == first
    wait_for(lambda: not kept.stage.left(), "its end")
    assert kept.parent() != first


@pytest.mark.parametrize("whom", ["keeper", "watcher"])
def test_a_keeper_that_outlives_its_job_is_killed(kept: Kept, whom: str) -> None:
    first = kept.parent("--keep")
    os.kill(first if whom == "keeper" else parent_of(first), signal.SIGKILL)
    assert not kept.stage.left(within=10)
    assert kept.parent() != first


AGAIN = """
import sys; warm = "mine" in sys.modules
import os
print("from", warm, os.getppid(), flush=True)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "2")
"""


@pytest.mark.parametrize("way", ["--restarts", pytest.param("--elastic_training", marks=pytest.mark.slow)])
def test_attempts_share_a_template(stage: Stage, script, tmp_path: Path, way: str) -> None:
    (tmp_path / "mine.py").write_text("with open('imports', 'a') as file: print('once', file=file)")
    words = (way, "2") if way == "--restarts" else (way,)
    words = (*words, "--accelerator", "cpu", "--num_gpus", "1", "--preload", "mine")
    done = stage.run("run", *words, script(AGAIN), cwd=tmp_path, code=0)
    said = [line.partition("from ")[2] for line in done.stdout.splitlines()]
    assert len(said) == 3 and {*said} == {said[0]} and said[0].startswith("True "), done.stderr
    assert (tmp_path / "imports").read_text() == "once\n"


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["command", "keeper", "watcher keeper", "command keeper", "command watcher"])
def test_nothing_is_left_of_attempts(stage: Stage, tmp_path: Path, whom: str) -> None:
    """Not even a grandchild that only the process tree knows, whichever of the three is killed, or two at once."""
    words = ("--restarts", "1", "--preload", "ctypes", "--grace", "1", "--num_gpus", "2")
    process = stage.start("run", *words, PROGRAMS / "scene.py", "grandchild", tmp_path / "go")
    read_lines(process, 2, "ready")
    (watcher,) = (pid for pid in children(process.pid) if name_of(pid) == "bireme-watch")
    (keeper,) = children(watcher)
    assert name_of(keeper) == "bireme-keeper"
    for each in whom.split():
        os.kill({"command": process.pid, "watcher": watcher, "keeper": keeper}[each], signal.SIGKILL)
    if "command" not in whom:
        (tmp_path / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if "command" in whom else 3), err
    assert not stage.left(within=30)


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.slow
def test_many_in_a_row_need_no_more(place: Place) -> None:
    def used() -> list[tuple[int, int]]:
        pids = [*place.below("bireme-warm"), *place.below("bireme-keeper")]
        sizes = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in pids]
        return [(int(size), len(os.listdir(f"/proc/{pid}/fd"))) for pid, size in zip(pids, sizes, strict=True)]

    for _ in range(10):
        place.look()
    before = used()
    for _ in range(40):
        place.look()
    for (pages, files), (pages_after, files_after) in zip(before, used(), strict=True):
        assert files_after == files and pages_after - pages < 256
