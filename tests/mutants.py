"""Mutation testing: changes the program in many small ways, one at a time, and checks whether a test fails.

`make mutants ARGS='--count 330 --list mutants.txt'`. Cosmic Ray makes the changes; which of them are tried is drawn by
a seed: first a place, then one of the changes possible there. The tests run in copies of the repository, so nothing is
changed here, and by the interpreter of `.venv`. Each mutant is given the tests of its module (`TESTS`), the quick ones
first; what they do not kill is listed as a survivor, which a new test kills, or which is explained.

A mutant that makes the tests take too long counts as killed: they pass without it in a fraction of that time.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/bireme"

# What a small change of a module is found by: words for pytest, those of the quick tests and those of the others. The
# longest beginning of a file's name counts.
FAST = ("-m", "not slow")
DEATH = "tests/run/test_death.py"
ROGUES = tuple(
    f"tests/run/test_rogue_agents.py::test_{name}"
    for name in (
        "a_violation_loses_the_node[over early]",
        "a_violation_loses_the_node[a hello of no slots]",
        "a_violation_loses_the_node[the end of another's rank]",
        "it_cannot_put_the_blame_on_another",
        "output_without_credit",
        "an_end_that_is_not_told_is_no_success",
        "an_elastic_job_goes_on_without_it",
    )
)
NODES = (
    "tests/cluster/test_world.py::test_golden_table[ssh-all]",
    "tests/cluster/test_scenes.py::test_rank_fails[ssh-exit3]",
)
LOSSES = (
    *NODES,
    *(
        f"tests/cluster/test_scenes.py::test_{name}"
        for name in ("node_is_lost[ssh-cut]", "command_is_signalled[ssh-SIGINT]")
    ),
    "tests/cluster/test_unfit.py::test_every_bad_host_with_the_words_of_ssh",
    "tests/cluster/test_losses.py::test_agent_is_signalled[ssh-SIGTERM]",
    "tests/cluster/test_losses.py::test_engine_is_killed[openmpi]",
)
LOCAL = (
    "tests/run/test_signals.py",
    "tests/run/test_stdin.py",
    "tests/run/test_terminal.py",
    "tests/run/test_output.py",
)
ELASTIC = (
    "tests/elastic",
    "tests/run/test_elastic.py",
    "tests/run/test_control_socket.py",
    "tests/run/test_deferred_signals.py",
)
LISTENER = "tests/run/test_agent_listener.py"
TESTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "process/": ((*FAST, DEATH, "tests/process"), (*FAST, *LOCAL, "tests/run/test_kernel_holds.py", *ROGUES)),
    "process/activation": (("tests/cluster/test_passing.py", "-k", "activation and ssh"), ()),
    "process/cgroup": (("tests/run/test_cgroup.py",), ()),
    "process/oom": (("tests/process/test_oom.py", "tests/run/test_out_of_memory.py"), ()),
    "process/pid_file": (("tests/run/test_pid_file.py",), ()),
    "process/helper": ((*FAST, "tests/resources/test_devices.py"), ("tests/run/test_torch.py",)),
    "process/open_files": (("tests/run/test_programs.py",), ("tests/backends/test_long_lists.py",)),
    "process/stop_ladder": (("tests/process/test_stop_ladder.py",), (*FAST, DEATH)),
    "control/": (("tests/control",), (*ROGUES, LISTENER)),
    "control/silence": (("tests/control/test_silence.py",), ()),
    "cluster/": (("tests/control/test_agent_handle.py", "tests/control/test_agent_protocol.py", *ROGUES), LOSSES),
    "cluster/agent_listener": ((LISTENER,), NODES),
    "cluster/agent_connector": ((LISTENER,), NODES),
    "cluster/certificate": (("tests/run/test_certificate.py",), ()),
    "cluster/native_ranks": (("tests/cluster/test_native.py",), ()),
    "cluster/node_selection": ((*FAST, "tests/cli/test_dry_run.py"), ("tests/cluster/test_world.py", "-k", "ssh")),
    "cluster/peer_clock": (("tests/run/test_clock.py",), ()),
    "launch/": ((*FAST, "tests/cli/test_dry_run.py", "tests/run/test_programs.py"), (*NODES, "tests/run/test_api.py")),
    "launch/restart": (("tests/elastic/test_budget.py", "tests/run/test_restarts.py"), ()),
    "agent/": ((*FAST, DEATH, *LOCAL), ("tests/run/test_programs.py", *ROGUES)),
    "agent/__main__": (ROGUES, LOSSES),
    "agent/connect": ((LISTENER,), LOSSES),
    "agent/node": ((*FAST, DEATH), (*FAST, *LOCAL)),
    "agent/preflight": (ROGUES, ("tests/cluster/test_unfit.py", "-k", "ssh")),
    "agent/native_rank": (("tests/cluster/test_native.py",), ()),
    "agent/remote": (ROGUES, LOSSES),
    "elastic/": (ELASTIC, ("tests/cluster/test_elastic.py", "-k", "go_and_come or drained or too_few or grows")),
}

EQUAL = ("Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot")
"""Changes that do nothing where constants are compared, which is where we use these operators."""
OPERATORS = {
    name: operator()
    for name in sorted(plugins.operator_names())
    if not (operator := plugins.get_operator(name)).arguments() and not name.endswith(EQUAL)
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place of one file."""

    file: str
    line: int
    operator: str
    code: str

    def change(self, original: str) -> str:
        """The line before and after."""
        lines = difflib.unified_diff(original.splitlines(), self.code.splitlines(), lineterm="", n=0)
        return " ".join(
            line[0] + line[1:].strip() for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")
        )


class Bare(ast.NodeTransformer):
    """Leaves annotations out, which are never evaluated."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """What only type checkers see."""
        return None if "TYPE_CHECKING" in ast.dump(node.test) else self.generic_visit(node)


def meaning(code: str) -> str:
    """What of a module has an effect."""
    return ast.dump(Bare().visit(ast.parse(code)))


@dataclass(frozen=True)
class Place:
    """Where Cosmic Ray can change a file, and how: by which occurrence of which operator."""

    file: str
    line: int
    ways: tuple[tuple[str, int], ...]

    def mutant(self, chance: random.Random) -> Mutant | None:
        """One change, or nothing if it has no effect."""
        name, occurrence = chance.choice(self.ways)
        code = (ROOT / self.file).read_text(encoding="utf-8")
        try:
            changed = mutate_code(code, OPERATORS[name], occurrence)
            if changed is None or meaning(changed) == meaning(code):
                return None
        except (SyntaxError, AttributeError):  # the second: an exception with a dot in its name
            return None
        return Mutant(self.file, self.line, name.removeprefix("core/"), changed)


def places(file: str) -> list[Place]:
    """Every place of a file at which something can be changed."""
    tree = get_ast((ROOT / file).read_text(encoding="utf-8"))
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    nodes = list(ast_nodes(tree))
    for name, operator in OPERATORS.items():
        begins = (begin for node in nodes for begin, _ in operator.mutation_positions(node))
        for occurrence, begin in enumerate(begins):
            found.setdefault(begin, []).append((name, occurrence))
    return [Place(file, line, tuple(ways)) for (line, _), ways in sorted(found.items())]


def tests_of(file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The quick tests and the slow ones of a source file."""
    name = file.removeprefix(f"{SOURCE}/")
    return TESTS[max((begin for begin in TESTS if name.startswith(begin)), key=len)]


class Bench:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, folder: str, python: str) -> None:
        self.folder, self.python = Path(folder), python
        self.second = int(time.time())
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in files.decode().rstrip("\0").split("\0"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)

    def passes(self, tests: tuple[str, ...], limit: float) -> tuple[str, float]:
        """Run tests until one fails: "passed", the name of the one that failed, or "too long"; and the seconds."""
        # A mutant may leave anything running: it ends with its namespace.
        words = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh"]
        words += [self.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]
        environ = {**os.environ, "PYTHONPATH": str(self.folder / "src")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        begin = time.monotonic()
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            text = process.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "too long", limit
        took = time.monotonic() - begin
        if process.returncode == 0:
            return "passed", took
        failed = [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failed[0] if failed else f"pytest ended with {process.returncode}", took

    def write(self, path: Path, code: str) -> None:
        """Another second each time: by that and the size Python knows compiled code that is out of date."""
        path.write_text(code, encoding="utf-8")
        self.second += 1
        os.utime(path, (self.second, self.second))

    def judge(self, mutant: Mutant, limits: dict[tuple[str, ...], float]) -> str:
        """What killed it, or "survived"."""
        path = self.folder / mutant.file
        original = path.read_text(encoding="utf-8")
        self.write(path, mutant.code)
        try:
            for tests in filter(None, tests_of(mutant.file)):
                if not limits[tests]:
                    return "survived: some of its tests fail without it"
                how, _ = self.passes(tests, limits[tests])
                if how != "passed":
                    return f"killed: {how.partition(' - ')[0]}"
            return "survived"
        finally:
            self.write(path, original)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["process", "control", "cluster", "launch", "agent", "elastic"])
    parser.add_argument("--count", type=int, default=330, help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="chooses them (%(default)s)")
    parser.add_argument("--benches", type=int, default=2, help="how many at a time (%(default)s)")
    parser.add_argument("--list", default="mutants.txt", help="the list, to which is added (%(default)s)")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"), help="runs the tests (%(default)s)")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    files = sorted(
        str(path.relative_to(ROOT))
        for word in args.paths
        for path in ([ROOT / SOURCE / word] if word.endswith(".py") else (ROOT / SOURCE / word).rglob("*.py"))
    )
    everywhere = [place for file in files for place in places(file)]
    chance.shuffle(everywhere)
    drawn = list(islice(filter(None, (place.mutant(chance) for place in everywhere)), args.count))
    print(f"{len(drawn)} mutants of {len(everywhere)} places in {len(files)} files", flush=True)
    os.nice(10)
    limits: dict[tuple[str, ...], float] = {}
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in drawn:
        waiting.put(mutant)
    lock = threading.Lock()
    counts = {"killed": 0, "survived": 0}

    def work(bench: Bench) -> None:
        while not waiting.empty():
            mutant = waiting.get()
            for tests in filter(None, tests_of(mutant.file)):
                if tests not in limits:
                    how, took = bench.passes(tests, 600)
                    if how != "passed":
                        how, took = bench.passes(tests, 600)
                    limits[tests] = 5 * took + 20 if how == "passed" else 0
                    if how != "passed":
                        print(f"left out, since it fails without a mutant: {how}", flush=True)
            state = bench.judge(mutant, limits)
            original = (ROOT / mutant.file).read_text(encoding="utf-8")
            with lock, open(args.list, "a") as file:
                file.write(f"{mutant.file}:{mutant.line}\t{mutant.operator}\t{state}\t{mutant.change(original)}\n")
                counts[state.partition(":")[0]] += 1
                print(f"{counts['killed']} killed, {counts['survived']} survived", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        os.chmod(folder, 0o755)  # some tests become another user
        threads = []
        for number in range(args.benches):
            bench = Bench(f"{folder}/{number}", args.python)
            threads.append(threading.Thread(target=work, args=(bench,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
