"""The peak memory of trials, measured from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.tune.metrics.memory_use import MemoryUse, check
from bireme.tune.metrics.metric import parse
from tests.unit.resources.test_devices import nvml as nvml  # a fixture

MIB = 1 << 20

Start = Callable[[str, str], "subprocess.Popen[str]"]

HOLD = "import os, sys; memory = bytearray(b'x') * ({} << 20); {}; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code as a rank of a trial of this tuner, or of TUNER/TRIAL, and waits for its first word."""
    started = []

    def rank(trial: str, code: str) -> subprocess.Popen[str]:
        tuner, _, name = trial.rpartition("/")
        environ = {**os.environ, "BIREME_TRIAL": name, "BIREME_TUNER": tuner or "me", "RANK": "0"}
        command = (sys.executable, "-S", "-c", code)
        process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield rank
    for process in started:
        process.communicate()


def test_memory_of_the_host(start: Start) -> None:
    use = MemoryUse(["peak_memory"], "me")
    trials = ("one", "freed", "shared", "absent")
    for trial in trials:
        use.begin(trial, [])
    start("another/one", HOLD.format(200, "pass"))  # of another study on this machine
    start("one", HOLD.format(60, "pass"))
    start("one", HOLD.format(30, "pass"))
    start("freed", HOLD.format(80, "memory = None"))
    # the child shares the memory of its parent, which counts once
    start("shared", HOLD.format(60, "os.fork() or (sys.stdin.read(), os._exit(0))"))
    use.look()
    found = {trial: use.end(trial).get("peak_memory", 0.0) / MIB for trial in trials}
    assert 90 < found["one"] < 120
    assert 80 < found["freed"] < 100
    assert 60 < found["shared"] < 80
    assert MemoryUse(["peak_memory"]).end("absent") == {} and found["absent"] == 0


def test_what_no_look_saw_is_in_the_report() -> None:
    use = MemoryUse(["peak_memory"], "me")
    for trial in ("unseen", "grew", "other"):
        use.begin(trial, [])
    use._trials["grew"].host = use._trials["other"].host = 60 * MIB
    ends = [{"peak_memory": 90 * MIB}, {"peak_memory": 10 * MIB}]
    assert use.end("unseen", {"ends": ends}) == {"peak_memory": 100 * MIB}
    assert use.end("grew", {"ends": ends}) == {"peak_memory": 90 * MIB}
    assert use.end("other", {"ends": [{"peak_memory": 10 * MIB}]}) == {"peak_memory": 60 * MIB}


USING = """
import sys, time
from bireme.tune.metrics.memory_use import MemoryUse
use = MemoryUse(["peak_gpu_memory"], "me")
use.begin("t", sys.argv[1].split(","))
print("begun", flush=True)
rank = sys.stdin.readline().strip()
for lines in sys.argv[3:]:
    open(sys.argv[2], "w").write(lines.replace("RANK", rank))
    use._due = 0.0
    use.look()
print(use.end("t"))
"""


@pytest.mark.parametrize(
    ("slots", "looks", "peaks"),
    [
        ("0,1", ["0 RANK 500\n1 1 900\n"], {"peak_gpu_memory": 500.0}),  # not the memory of a stranger
        ("0", ["0 0 100\n1 0 3000\n", "0 0 700\n1 0 9000\n", "0 0 300\n"], {"peak_gpu_memory": 600.0}),
        ("GPU-1", ["", "0 0 700\n1 0 900\n"], {"peak_gpu_memory": 900.0}),
        ("7", ["0 0 700\n"], {}),
    ],
)
def test_memory_of_gpus(
    nvml: Path, start: Start, tmp_path: Path, slots: str, looks: list[str], peaks: dict[str, float]
) -> None:
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(nvml),
        "FAKE_NVML": "plain,plain",
        "FAKE_NVML_USE": str(tmp_path / "use"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = (sys.executable, "-c", USING, slots, str(tmp_path / "use"), *looks)
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as using:
        assert using.stdin is not None and using.stdout is not None and using.stdout.readline() == "begun\n"
        rank = start("t", HOLD.format(1, "pass"))
        using.stdin.write(f"{rank.pid}\n")
        using.stdin.flush()
        assert using.stdout.read().strip() == repr(peaks)


def test_what_cannot_be_measured_is_refused_before_anything_starts() -> None:
    host = parse([("minimize", "time")], ["peak_memory < 3GiB"])
    check(host, local=True)
    check(parse([("minimize", "time")]), local=False)
    with pytest.raises(BadInputError, match="peak_memory is measured only where all slots are on this machine"):
        check(host, local=False)
    if not os.path.exists("/dev/nvidiactl"):
        with pytest.raises(BadInputError, match="peak_gpu_memory cannot be measured: no NVIDIA driver answers"):
            check(parse([("minimize", "peak_gpu_memory")]), local=True)
