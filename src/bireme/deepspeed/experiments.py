"""One experiment of the reference's scheduler: its file, its command, its files, and what its end means."""

from __future__ import annotations

import copy
import os

from bireme.cli.options import Parsed
from bireme.cli.tune import NOT_SHARED, words_of
from bireme.deepspeed.arguments import parsed_again
from bireme.errors import BadInputError
from bireme.tune.deepspeed.command import experiment_args
from bireme.tune.deepspeed.config import SECTION
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.reading import read_document
from bireme.tune.deepspeed.results import read_metrics, read_model_info
from bireme.tune.diagnosis import diagnose
from bireme.tune.experiment import End, Order, read_report, tail
from bireme.tune.launching import Ground, Launch, executable
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.tune.ending import Ending
    from bireme.tune.slots import Reservation

_OUTPUT = ("stdout.log", "stderr.log")


class Command(Value):
    """What all experiments have in common: the launch, and the script's arguments."""

    launch: Launch
    args: tuple[str, ...]


def read_experiment(path: str, results_dir: str) -> dict[str, Any]:
    """An experiment's file, with its folder of results.

    Raises:
        ValueError: it is none, or broken.
    """
    document = read_document(path)
    exp: dict[str, Any] = copy.deepcopy(document.data)
    for key, kind in (("name", str), ("ds_config", dict), ("num_gpus", int), ("num_nodes", int)):
        if not isinstance(exp.get(key), kind):
            raise BadInputError(
                f"an experiment needs {key!r}", mend=f"of type {kind.__name__}", where=document.where(key)
            )
    exp["result_dir"] = os.path.join(results_dir, exp["name"])
    return exp


def command_of(args: Namespace, pool: Mapping[str, tuple[str, ...]]) -> Command:
    """What the launcher's command line says of every experiment.

    Where there is no hostfile, the hosts are those that the manager was given.
    """
    options = parsed_again(args).options
    if options["hostfile"] is None and not options["hosts"]:
        options["hosts"] = ",".join(f"{host}:{1 + max(map(int, slots))}" for host, slots in pool.items())
    words = words_of(Parsed(options, ()), without=NOT_SHARED)
    launch = Launch(Ground(dict(pool)), words, args.user_script, grace=options["grace"], heartbeat=options["heartbeat"])
    return Command(launch, tuple(args.user_args))


class Experiments:
    """The executor's client: knows what each experiment is.

    Args:
        command: what they have in common.
        results_dir, exps_dir: the folders.
        mappings: ``arg_mappings``.
        on_end: called with each experiment that has ended for good.
    """

    def __init__(
        self,
        command: Command,
        results_dir: str,
        exps_dir: str,
        mappings: Mapping[str, str],
        on_end: Callable[[dict[str, Any], Ending], object] = lambda exp, ending: None,
    ) -> None:
        self._launch, self._args = command.launch, command.args
        self._files = StudyFiles.at(results_dir, exps_dir)
        self._mappings, self._on_end = mappings, on_end
        self._exps: dict[str, dict[str, Any]] = {}

    def add(self, exp: dict[str, Any]) -> None:
        """Make an experiment known."""
        self._exps[exp["name"]] = exp

    # -- before --------------------------------------------------------------------------------------

    def order(self, name: str, reservation: Reservation, place: int) -> Order:
        """As `executor.Client.order`; writes the files of the contract."""
        exp = self._exps[name]
        ds_config = self._ds_config(exp)
        report = self._files.result(name, "outcome.json")
        words = self._launch.command(
            name,
            reservation,
            place,
            options=("--report", report),
            args=experiment_args(self._args, ds_config, self._mappings),
        )
        facts = {key: value for key, value in exp.items() if key not in ("name", "ds_config", "results")}
        self._files.write_start(name, ds_config, ("bireme", "run", *words), **facts, slots=reservation.include())
        stdout, stderr = (self._files.result(name, file) for file in _OUTPUT)
        command = (*executable(), "run", *words)
        return Order(command, dict(os.environ), os.getcwd(), stdout, stderr, report, self._launch.grace)

    def _ds_config(self, exp: Mapping[str, Any]) -> dict[str, Any]:
        """The experiment's configuration, a new one, with the place for its figures in it."""
        ds_config: dict[str, Any] = copy.deepcopy(exp["ds_config"])
        if isinstance(ds_config.get(SECTION), dict):
            ds_config[SECTION]["metric_path"] = self._files.result(exp["name"], "metrics.json")
            if _is_profile(exp):
                ds_config[SECTION]["model_info_path"] = self._files.result(exp["name"], "model_info.json")
        return ds_config

    def started(self, name: str, reservation: Reservation) -> None:
        """As `executor.Client.started`."""

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> Ending:
        """As `executor.Client.judge`."""
        exp = self._exps[name]
        figures, reason = self._read(exp)
        return diagnose(end, figures, reason, tail(self._files.result(name, "stderr.log")))

    def settling(self, reservation: Reservation, end: End) -> float:
        """As `executor.Client.settling`."""
        return 0.0 if end.report is not None else self._launch.settling(reservation)

    def ended(self, name: str, ending: Ending, *, again: bool) -> None:
        """As `executor.Client.ended`."""
        if not again:
            self._on_end(self._exps[name], ending)

    def earlier(self, exp: dict[str, Any]) -> Ending | None:
        """How this experiment ended in an earlier process; None: it did not, or says nothing of its configuration."""
        written = read_report(self._files.result(exp["name"], "exp.json"))
        report = read_report(self._files.result(exp["name"], "outcome.json"))
        if report is None or written is None or written.get("ds_config") != self._ds_config(exp):
            return None
        code, seconds = report.get("exit_code"), report.get("seconds")
        if not isinstance(code, int) or not isinstance(seconds, (int, float)):
            return None
        self.add(exp)
        ending = self.judge(exp["name"], End(code, report, 0.0, float(seconds), False))
        return ending if ending.counts else None

    def figures(self, exp: Mapping[str, Any]) -> dict[str, float]:
        """What the engine has measured; empty: nothing."""
        return read_metrics(self._files.result(exp["name"], "metrics.json")).values

    def _read(self, exp: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """(figures, why there are none). Where none are asked for, there is nothing to miss."""
        if _is_profile(exp):
            info = read_model_info(self._files.result(exp["name"], "model_info.json"))
            return {"num_params": float(info.params or 0)}, info.reason
        if not isinstance(exp["ds_config"].get(SECTION), dict):
            return {}, ""
        metrics = read_metrics(self._files.result(exp["name"], "metrics.json"))
        return metrics.values, metrics.reason


def _is_profile(exp: Mapping[str, Any]) -> bool:
    section = exp["ds_config"].get(SECTION)
    info = section.get("model_info") if isinstance(section, dict) else None
    return isinstance(info, dict) and info.get("profile") is True
