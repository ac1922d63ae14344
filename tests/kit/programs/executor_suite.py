"""Tests of executors that others have written, with `bireme.Executor` in the place of theirs.

    executor_suite.py CPYTHON         those that the interpreter brings (`test.test_concurrent_futures`)
    executor_suite.py PATH            mpi4py's demo/futures/test_futures.py

The last line on stdout is JSON: how many tests ran, and the names of those that failed or were skipped.
"""

import contextlib
import functools
import importlib
import json
import os
import sys
import unittest

import bireme

MPI4PYS = [f"ProcessPool{part}Test" for part in ("Init", "Bootup", "Shutdown", "Executor", "Pickle", "Submit")]
HERE = os.path.abspath(__file__)


class Ranks(bireme.Executor):
    """The executor, by the arguments of theirs; what they have and it has not is an error."""

    def __init__(self, max_workers=2, mp_context=None):
        super().__init__(num_gpus=max_workers, accelerator="cpu", log_level="error", output="raw")

    @property
    def num_workers(self):
        """As mpi4py calls it."""
        return self.world_size

    def bootup(self, wait=True):
        """Of mpi4py, where workers begin late; ranks have begun."""
        return self


def of_cpython():
    """Test classes, each of a mixin of theirs."""
    package = importlib.import_module("test.test_concurrent_futures")
    names = {
        "util": ("BaseTestCase", "ExecutorMixin"),
        "executor": ("ExecutorTest",),
        "test_wait": ("WaitTests",),
        "test_as_completed": ("AsCompletedTests",),
        "test_shutdown": ("ExecutorShutdownTest",),
        "test_deadlock": ("ExecutorDeadlockTest",),
    }
    found = {}
    for part, classes in names.items():
        module = importlib.import_module(f"{package.__name__}.{part}") if hasattr(package, "__path__") else package
        # what tests start as programs, and the error of a worker that has died
        module.assert_python_ok = functools.partial(python_ok, getattr(module, "assert_python_ok", None))
        module.BrokenProcessPool = bireme.JobError
        found |= {name: getattr(module, name) for name in classes if hasattr(module, name)}
    bases = (found.pop("ExecutorMixin"), found.pop("BaseTestCase"))
    theirs = {"executor_type": Ranks, "worker_count": 3, "get_context": lambda self: None}
    return [type(name, (mixin, *bases), theirs) for name, mixin in found.items()]


def python_ok(run, *words):
    """Run a program that names the executor where theirs would be found."""
    *words, text = words
    places = [os.path.dirname(HERE), os.path.dirname(os.path.dirname(bireme.__file__))]
    place = f"import sys; sys.path[:0] = {places}; from executor_suite import Ranks"
    return run(*words, text.replace("from concurrent.futures import Ranks", place), __isolated=False)


def of_mpi4py(path):
    """Their classes, with the executor replaced in all of them.

    Without those on `wait` and `as_completed`, which are also CPython's: here a first call, in which the rank imports
    mpi4py, has half a second.
    """
    sys.path.insert(0, os.path.dirname(path))
    import test_futures

    test_futures.futures.MPIPoolExecutor = Ranks
    found = []
    for name, cls in vars(test_futures).items():
        if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and name in MPI4PYS:
            cls.executor_type = Ranks
            found.append(cls)
    return found


def main():
    classes = of_cpython() if sys.argv[1] == "CPYTHON" else of_mpi4py(os.path.abspath(sys.argv[1]))
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    with contextlib.redirect_stdout(sys.stderr):
        result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(load, classes)))
    failed = sorted({test.id().partition(".")[2] for test, _ in result.failures + result.errors})
    skipped = sorted(test.id().partition(".")[2] for test, _ in result.skipped)
    print(json.dumps({"run": result.testsRun, "failed": failed, "skipped": skipped}))


if __name__ == "__main__":
    main()
