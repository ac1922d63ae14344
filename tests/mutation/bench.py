"""Where a mutant is tried."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.mutation import recorder
from tests.mutation.changes import ROOT, SOURCE, Mutant
from tests.mutation.choice import SIMULATIONS


class Bench:
    """A copy of the repository in which one mutant at a time is tried.

    It has an environment of its own, since our own processes are started isolated, and would otherwise import the
    package that is installed, and not the mutant.
    """

    def __init__(self, folder: str, python: str) -> None:
        self.folder = Path(folder)
        self.second = int(time.time())
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in files.decode().rstrip("\0").split("\0"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)
        for path in ROOT.glob(".venv-*"):
            (self.folder / path.name).symlink_to(path.resolve())
        venv = self.folder / ".venv"
        subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
        self.python = str(venv / "bin/python")
        code = "import site; print(site.getsitepackages()[0])"
        packages, ours = (
            subprocess.run([one, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
            for one in (python, self.python)
        )
        listed = [line for path in sorted(Path(packages).glob("*.pth")) for line in path.read_text().splitlines()]
        own = [line for line in listed if Path(line).is_dir() and not (Path(line) / "bireme").exists()]
        (Path(ours) / "bench.pth").write_text("\n".join([str(self.folder / "src"), packages, *own]) + "\n")
        for script in Path(python).parent.iterdir():
            text = script.read_bytes()
            if text.startswith(f"#!{python}\n".encode()):
                (venv / "bin" / script.name).write_bytes(text.replace(python.encode(), self.python.encode(), 1))
                (venv / "bin" / script.name).chmod(0o755)

    def run(self, words: list[str], limit: float) -> tuple[int | None, str]:
        """The exit status, nothing if it took too long; and the output."""
        # A mutant may leave anything running: it ends with its namespace.
        words = [
            "unshare",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            '"$@"; exit $?',
            "sh",
            *words,
        ]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            text = process.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, text

    def pytest(self, tests: list[str], limit: float, *words: str) -> tuple[int | None, str]:
        argv = [
            self.python,
            "-m",
            "pytest",
            "-p",
            "tests.mutation.recorder",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=line",
        ]
        return self.run([*argv, *words, *tests], limit)

    def record(self, tests: list[str], numbers: dict[str, int]) -> None:
        """Note what some tests reach."""
        folder = self.folder / ".reach"
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o777)
            (folder / "numbers").write_text(json.dumps(numbers))
            (folder / "tests").touch()
            with open(self.folder / SOURCE / "__init__.py", "a") as file:
                file.write(recorder.RECORDER)
        if tests[0] not in SIMULATIONS:
            recorder.begin(-1, folder)
            _, text = self.pytest(tests, 900)
            print(tests[0].partition("::")[0], text.splitlines()[-1:], flush=True)
            return
        recorder.begin(numbers[tests[0]], folder)
        status, _ = self.run([self.python, *tests[0].split()[1:]], 900)
        with open(folder / "tests", "a") as file:
            file.write(f"{numbers[tests[0]]} 2.0 {'failed' if status else ''}\n")

    def write(self, path: Path, code: str) -> None:
        """Another second each time: by that and the size Python knows compiled code that is out of date."""
        path.write_text(code, encoding="utf-8")
        self.second += 1
        os.utime(path, (self.second, self.second))

    def judge(self, mutant: Mutant, tests: list[str], seconds: dict[str, float]) -> str:
        """What killed it, or "survived". A test must fail twice to count, since a busy machine makes some fail."""
        path = self.folder / mutant.file
        original = path.read_text(encoding="utf-8")
        self.write(path, mutant.code)
        try:
            for command in [test for test in tests if test in SIMULATIONS]:
                status, _ = self.run([self.python, *command.split()[1:]], 3 * seconds[command] + 10)
                if status != 0:
                    return f"killed: {command}" if status is not None else f"too long: {command}"
            tests = [test for test in tests if test not in SIMULATIONS]
            while tests:
                status, text = self.pytest(tests, 3 * sum(map(seconds.__getitem__, tests)) + 10, "-x")
                if status == 0:
                    break
                if status is None:
                    return "too long"
                failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", text, flags=re.MULTILINE)
                if not failed or failed[0] not in tests:
                    return f"killed: pytest ended with {status}: {(failed or ['?'])[0]}"
                if self.pytest(failed[:1], 3 * seconds[failed[0]] + 10)[0] != 0:
                    return f"killed: {failed[0]}"
                tests = tests[tests.index(failed[0]) + 1 :]
            return "survived"
        finally:
            self.write(path, original)
