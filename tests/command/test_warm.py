"""``--preload``: a rank that is forked from a template behaves like one that was executed, and dies like one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bireme.warm.identity import identity
from tests.command.test_death import (  # noqa: F401  (the same tests, on the stage of this file)
    test_all_three_killed,
    test_command_is_killed_when_all_has_ended_but_its_output,
    test_guardian_killed,
    test_rank_fails,
    test_second_interrupt_does_not_wait,
    test_signal_to_command,
    test_signal_to_command_with_hidden_grandchildren,
    test_two_of_three_killed,
    test_what_a_daemon_has_started_for_a_rank_is_found_by_its_mark,
    test_what_ranks_leave_behind_is_ended,
    test_who_failed_first_is_known_although_nobody_looked,
)
from tests.conftest import Stage, clean_environ, guards_of, wait_for
from tests.kit import needs
from tests.unit.agent.test_sent_agent import others

PYTHONS = others(8)


class WarmStage(Stage):
    """Its jobs have their ranks forked from a template."""

    modules = "ctypes,subprocess"

    def start_argv(self, argv: list[str], **kwargs: object) -> subprocess.Popen[bytes]:
        if self.modules and argv[1:4] == ["-m", "bireme", "run"]:
            argv = [*argv[:4], "--preload", self.modules, *argv[4:]]
        return super().start_argv(argv, **kwargs)


@pytest.fixture
def stage():
    stage = WarmStage()
    yield stage
    stage.end()


@pytest.fixture
def cold_stage():
    stage = Stage()
    yield stage
    stage.end()


STATE = """
import numpy, ctypes
import gc, inspect, os, resource, signal, sys, threading, traceback
main = sys.modules["__main__"]
def show(name, value):
    print(name, value)
show("main", sorted(vars(main)))
show("file", (__file__, __name__, __spec__, __package__, type(__loader__).__name__, __loader__.path))
show("argv", (sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.warnoptions, sys.dont_write_bytecode))
show("imported", sorted(sys.modules))
show("finders", (sys.meta_path, sys.path_hooks, sorted(sys.path_importer_cache)))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    show("stream", (stream, stream.fileno(), stream.isatty(), stream.seekable(), stream.line_buffering,
        stream.write_through, type(stream.buffer).__name__, stream.errors, stream.newlines, stream.buffer.name,
        stream is getattr(sys, f"__{stream.name[1:-1]}__")))
show("files", sorted((fd, os.get_inheritable(int(fd))) for fd in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{fd}")))
show("signals", [(s, str(signal.getsignal(s))) for s in signal.valid_signals()])
show("mask", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
show("limits", [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT")])
show("session", os.getsid(0) == os.getpid() == os.getpgid(0))
show("process", (os.nice(0), os.umask(0o22), os.getcwd(), os.sched_getaffinity(0)))
show("threads", (threading.active_count(), threading.current_thread() is threading.main_thread(),
    threading.main_thread().native_id == os.getpid(), len(os.listdir("/proc/self/task"))))
show("hooks", (sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile(), sys.getrecursionlimit()))
show("collector", (gc.isenabled(), gc.get_threshold()))
for name in ("cmdline", "environ", "comm"):
    show(name, open(f"/proc/self/{name}", "rb").read().split(b"\\0"))
show("environ", list(os.environ.items()))
show("stack", (inspect.stack()[0].frame.f_back, len(inspect.stack())))
show("source", inspect.getsource(show))
for line in open("/proc/self/maps"):
    if "openblas" in line:
        library = ctypes.CDLL(line.split()[-1])
        show("blas", [getattr(library, f"{p}openblas_get_num_threads{s}")() for p in ("", "scipy_") for s in ("", "64_")
            if hasattr(library, f"{p}openblas_get_num_threads{s}")])
        break
parent = open(f"/proc/{os.getppid()}/comm").read()
show("parent", parent)
traceback.print_stack()
"""

PIECES = {
    "state": STATE,
    "returns": "import sys; print('out'); print('err', file=sys.stderr)",
    "exit code": "import sys; sys.exit(7)",
    "exit text": "import sys; sys.exit('a reason')",
    "exit none": "import sys; sys.exit()",
    "exit object": "import sys; sys.exit([1, 2])",
    "exit large": "import sys; sys.exit(259)",
    "SystemExit": "raise SystemExit(True)",
    "os._exit": "import os; os._exit(9)",
    "raises": "import json\ndef inner():\n    json.loads('{')\ndef outer():\n    inner()\nouter()\n",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n",
    "group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "syntax": "x = = 1\n",
    "encoding": "# coding: latin-1\nprint('\xe4')\n",
    "interrupted": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handler": "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *a: sys.exit(5))\n"
    "os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(9)",
    "broken pipe": "import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "excepthook": "import sys; sys.excepthook = lambda *a: print('mine', a[0], a[2].tb_frame.f_code); 1 / 0",
    "last": "import sys, atexit; atexit.register(lambda: print(sys.last_type, sys.last_traceback.tb_frame)); 1 / 0",
    "atexit": "import atexit; atexit.register(print, 'first'); atexit.register(print, 'second'); print('done')",
    "daemon": "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start(); print(1)",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()",
    "thread dies": "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    "unraisable": "class A:\n    def __del__(self): 1 / 0\nA()\n",
    "warning": "import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('hm')",
    "stdin": "import sys; print(sys.stdin.read()); print(input())",
    "argparse": "import argparse; p = argparse.ArgumentParser(); p.add_argument('n', type=int); p.parse_args()",
    "pdb": "import pdb; pdb.set_trace(); x = 1\nprint(x)\n",
    "print_stack": "import traceback\ndef f(): traceback.print_stack()\nf()\n",
    "faulthandler": "import faulthandler, sys; faulthandler.dump_traceback(sys.stderr); faulthandler.enable()",
    "pickle": "import pickle\nclass A:\n    pass\nprint(pickle.dumps(A()), type(pickle.loads(pickle.dumps(A()))))\n",
    "child": "import os, subprocess, sys\n"
    "print(subprocess.run([sys.executable, '-c', 'import sys, os; print(sys.path, os.environ.get(\"PYTHONPATH\"))'],"
    " capture_output=True, text=True))\n",
    "fork": "import os\npid = os.fork()\nif not pid: print('child', __name__); raise SystemExit(3)\n"
    "print(os.waitpid(pid, 0)[1])\n",
    "daemonic": "import os\nif os.fork():\n    os._exit(0)\nos.setsid()\n",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0); return 3\nprint(asyncio.run(f()))",
    "lost": "import nothing_of_this_name",
    "runpy": "import runpy; print(runpy.run_path(__file__ + '.txt')['x'])",
}
WORKERS = """
import multiprocessing as mp, os, sys
class Thing:
    def __init__(self, x): self.x = x
def work(x): return Thing(x * 2), __name__, sys.argv
if __name__ == "__main__":
    with mp.get_context("{method}").Pool(2) as pool:
        for thing, name, argv in pool.map(work, [1, 2]): print(thing.x, name, argv)
    with mp.get_context("{method}").Manager() as manager: print(manager.list([1]))
"""
PIECES.update({method: WORKERS.replace("{method}", method) for method in ("fork", "spawn", "forkserver")})

_CHANGES = (
    (re.compile(r"\(?pid \d+\)?|0x[0-9a-f]+|\b\d+\.\d+ s\b|\d+(\.\d+)? [MG]i?B"), "…"),
    (re.compile(r"BIREME_JOB', '\w+|BIREME_JOB=\w+|RUN_ID', '\w+|RUN_ID=\w+|bireme-[\w-]+/|MASTER_PORT\W+\d+"), "…"),
    (re.compile(r"bireme: port \d+ is taken: using \d+\n"), ""),
    (re.compile(r"29\d\d\d|Thread-\d+|process \d+"), "…"),
)


def behaviour(stage: Stage, *words: str | Path, **kwargs: object) -> tuple[int, str, str]:
    done = stage.run("run", *words, timeout=240, **kwargs)
    texts = []
    for text in (done.stdout, done.stderr):
        for pattern, instead in _CHANGES:
            text = pattern.sub(instead, text)
        texts.append(text)
    return done.returncode, texts[0], texts[1]


def compare(stage: WarmStage, cold_stage: Stage, *words: str | Path, modules: str, **kwargs: object) -> str:
    """Run the same cold and warm; both must be the same. Returns the output."""
    stage.modules = modules
    cold = behaviour(cold_stage, *words, **kwargs)
    warm = behaviour(stage, *words, **kwargs)
    assert warm == cold
    return warm[1] + warm[2]


@pytest.mark.parametrize("name", PIECES)
def test_a_forked_rank_behaves_like_an_executed_one(stage, cold_stage, script, tmp_path, name):
    path = script(PIECES[name], "program.py")
    (tmp_path / "program.py.txt").write_text("x = __name__")
    env = clean_environ(PYTHONFAULTHANDLER="", TERM="dumb")
    words = ("--num_gpus", "1", "--output", "raw", path, "one", "--two")
    said = compare(stage, cold_stage, *words, modules="numpy,ctypes", env=env, cwd=tmp_path)
    assert "without a template" not in said


LARGE = {
    "ddp": """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.full((4, 8), float(dist.get_rank() + step))).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, loss.item(), torch.get_num_threads(), torch.get_num_interop_threads())
dist.destroy_process_group()
""",
    "deepspeed": """
import deepspeed, torch
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it is compiled, which PyTorch cannot below "a folder"
torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 0}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(3):
    loss = engine(torch.ones(2, 8)).pow(2).mean()
    engine.backward(loss); engine.step()
    print("loss", step, loss.item())
""",
    "processes": """
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(i * i)
def work(i, shared):
    shared[i] += i + 1
    raise ValueError(f"worker {i}")
@torch.compile(backend="aot_eager")
def f(x): return (x.sin() + x).sum()
if __name__ == "__main__":
    for method in ("fork", "forkserver"):
        torch.manual_seed(3)
        loader = DataLoader(Squares(), 2, shuffle=True, num_workers=1, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
    shared = torch.zeros(2).share_memory_()
    try: mp.spawn(work, (shared,), nprocs=1)
    except Exception as error: print(type(error), str(error).splitlines()[-1], shared)
    print(f(torch.ones(4)))
""",
}
RANKS = {"ddp": 2, "deepspeed": 2, "processes": 1}


@pytest.mark.slow
@pytest.mark.torch
@needs.modules("torch", "deepspeed")
@pytest.mark.parametrize("name", LARGE)
def test_training_is_the_same(stage, cold_stage, script, tmp_path, name):
    path = script(LARGE[name])
    texts = []
    for each, modules in ((cold_stage, ""), (stage, "torch,deepspeed" if name == "deepspeed" else "torch")):
        each.modules, folder = modules, tmp_path / (modules or "cold")
        words = ("--num_gpus", str(RANKS[name]), "--accelerator", "cpu", "--log_dir", folder)
        done = each.run("run", *words, path, timeout=600, cwd=tmp_path, code=0)
        assert "without a template" not in done.stderr
        texts.append([_plain(path.read_text()) for path in sorted(folder.rglob("*")) if path.is_file()])
    assert len(texts[0]) == RANKS[name] and texts[0] == texts[1]


def _plain(text: str) -> list[str]:
    """The lines, without times and addresses."""
    text = re.sub(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+\]?|29\d{3}|\d+\.\d+ (seconds|s)|0x\w+|pid \d+", "…", text)
    return text.splitlines()


def test_the_module_of_a_rank(stage, cold_stage, tmp_path):
    (tmp_path / "part.py").write_text("import sys; print(sys.argv, sys.path[0], __name__, __spec__.name); sys.exit(4)")
    words = ("--num_gpus", "1", "--output", "raw", "-m", "part", "--option")
    assert "['" in compare(stage, cold_stage, *words, modules="json", cwd=tmp_path)


WARM = "import os, random, sys; print('warm' if 'ctypes' in sys.modules else 'cold', os.environ['RANK'])\n"


@pytest.mark.parametrize("version", PYTHONS)
def test_any_python_of_the_ranks(stage, script, version):
    """Those that the template does not support start their ranks as ever."""
    path = script("from __future__ import print_function\n" + WARM)
    words = ("--num_gpus", "2", "--output", "raw", "--python", PYTHONS[version])
    stage.modules = "ctypes"
    done = stage.run("run", *words, path, code=0)
    assert sorted(done.stdout.split()) == ["0", "1", "warm", "warm"]
    assert "sitecustomize" not in done.stderr and "without a template" not in done.stderr


@pytest.mark.parametrize("where", [(), ("--hosts", "localhost:2", "--force_multi")], ids=["here", "agent"])
def test_ranks_have_their_own_variables_streams_and_seeds(stage, script, where):
    path = script(
        WARM + "import numpy, multiprocessing as mp\n"
        "print('seed', random.random(), numpy.random.random(), mp.current_process().authkey.hex())\n"
    )
    stage.modules = "ctypes,numpy,random"
    done = stage.run("run", *(where or ("--num_gpus", "2")), "--output", "prefix", path, code=0)
    lines = done.stdout.splitlines()
    assert sorted(line.split(":")[1] for line in lines if "warm" in line) == ["0] warm 0", "1] warm 1"]
    drawn = [line.split("seed ")[1].split() for line in lines if "seed" in line]
    assert all(one != other for one, other in zip(*drawn, strict=True))


UNSAFE = {
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "2 threads",
    ),
    "socket": ("import socket; kept = socket.socket()", "the process has opened socket:"),
    "file": ("kept = open(__file__)", "the process has opened /"),
    "process": ("import subprocess; kept = subprocess.Popen(['sleep', '9'])", "the imports have started a process"),
    "shared": ("import mmap; kept = mmap.mmap(-1, 4096)", "it shares memory"),
    "timer": ("import signal; signal.setitimer(signal.ITIMER_REAL, 900)", "a timer"),
    "trace": ("import sys; sys.settrace(lambda *_: None)", "coverage"),
    "rank": ("import os; kept = os.environ.get('LOCAL_RANK')", "mine reads LOCAL_RANK while it is imported"),
    "error": ("import nothing_of_this_name", "importing mine failed: ModuleNotFoundError"),
    "exit": ("import os; os._exit(3)", "the template has ended"),
    "fork": ("import os; os.register_at_fork(after_in_child=lambda: os._exit(9))", "failed its test"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_cannot_be_forked_starts_cold_and_says_why(stage, script, tmp_path, name):
    body, reason = UNSAFE[name]
    (tmp_path / "mine.py").write_text(f"import sys\nif 'bireme' in open('/proc/self/comm').read():\n    {body}\n")
    stage.modules = "ctypes,mine"
    done = stage.run("run", "--num_gpus", "2", "--output", "raw", script(WARM), cwd=tmp_path, code=0)
    assert sorted(done.stdout.split()) == ["0", "1", "cold", "cold"]
    (said,) = [line for line in done.stderr.splitlines() if "--preload" in line]
    assert "start without a template: " in said and reason in said


def test_a_profiler_sees_all_imports(stage, script, tmp_path):
    stage.modules = "ctypes"
    words = ("--num_gpus", "1", "--output", "raw", "-m", "cProfile", "-o", tmp_path / "profile")
    done = stage.run("run", *words, script("import sys; print('ctypes' in sys.modules)"), code=0)
    assert done.stdout == "False\n" and "without a template: cProfile is to see" in done.stderr


def test_auto_finds_the_large_modules_of_the_script(stage, script):
    stage.modules = "auto"
    text = "import sys; print('numpy' in sys.modules)\nif True:\n    import numpy.linalg as la\ndef f(): import torch\n"
    done = stage.run("run", "--num_gpus", "1", "--output", "raw", script(text), code=0)
    assert done.stdout == "True\n" and "template" not in done.stderr
    done = stage.run("run", "--num_gpus", "1", "--output", "raw", script("print('none')"), code=0)
    assert done.stdout == "none\n" and "imports none of the modules that `auto` knows" in done.stderr


def test_each_identity_has_its_own_template(stage, script):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    path = script(WARM + "print('cores', os.sched_getaffinity(0))")
    stage.modules = "ctypes"
    done = stage.run("run", "--num_gpus", "2", "--bind_core_list", cores, path, code=0)
    assert done.stdout.count("warm") == 2 and len({line for line in done.stdout.split("\n") if "cores" in line}) == 2


def test_identity() -> None:
    env = {"PATH": "/bin", "OMP_NUM_THREADS": "2", "RANK": "0", "MASTER_PORT": "1", "BIREME_JOB": "a/0"}
    argv = ("python", "-u", "train.py", "--local_rank=0", "--lr=1")

    def of(argv=argv, cwd="/", cores=(), **more):
        return identity(argv, {**env, **more}, cwd, cores)

    assert of(RANK="1", MASTER_PORT="2", BIREME_JOB="b/0", TORCHELASTIC_RUN_ID="x") == of()
    assert of(argv=(*argv[:3], "--local_rank=1")) == of()
    others = [of(OMP_NUM_THREADS="1"), of(CUDA_VISIBLE_DEVICES="0"), of(DS_ACCELERATOR="cpu"), of(LD_PRELOAD="x.so")]
    others += [of(PYTHONHASHSEED="0"), of(MINE="1"), of(argv=("python3", *argv[1:])), of(cwd="/tmp"), of(cores=(1,))]
    others += [of(argv=("python", "-u", "-m", "train"))]
    assert len({of(), *others}) == 1 + len(others)


def slow_template(stage: WarmStage, tmp_path: Path, script, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """A job whose template is importing, and the template's pid."""
    (tmp_path / "slow.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(600)\n")
    stage.modules = "slow"
    process = stage.start(
        "run", "--num_gpus", "2", "--grace", "60", "--output", "raw", *words, script(WARM), cwd=tmp_path
    )
    wait_for((tmp_path / "importing").exists, "the import")
    below = Path("/proc/{0}/task/{0}/children".format(guards_of(process.pid)["guardian"])).read_text().split()
    (template,) = (int(pid) for pid in below)
    assert Path(f"/proc/{template}/comm").read_text() == "bireme-warm\n"
    return process, template


def test_the_template_is_killed_while_it_imports(stage, script, tmp_path):
    process, template = slow_template(stage, tmp_path, script)
    os.kill(template, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and sorted(out.split()) == [b"0", b"1", b"cold", b"cold"]
    assert b"without a template: the template has ended" in err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_the_command_is_signalled_while_the_template_imports(stage, script, tmp_path, signum):
    process, _ = slow_template(stage, tmp_path, script)
    begin = time.monotonic()
    process.send_signal(signum)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (-9 if signum == signal.SIGKILL else 128 + signum) and not out
    assert time.monotonic() - begin < 50, "it has waited for the grace time"
    assert not stage.left(within=30 if signum == signal.SIGKILL else 0)


@pytest.mark.parametrize("which", ["guardian", "watcher"])
def test_a_guard_is_killed_while_the_template_imports(stage, script, tmp_path, which):
    process, _ = slow_template(stage, tmp_path, script)
    os.kill(guards_of(process.pid)[which], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 75 and not stage.left()
