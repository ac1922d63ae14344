"""One experiment of DeepSpeed's scheduler: its file, its command, its files, and what its end means.

How it has ended stands in its folder, as ``outcome.json`` (``bireme run --report``): written last, and before a start
the first to be removed. So a folder with an outcome holds a whole run.
"""

from __future__ import annotations

import copy
import os
from argparse import Namespace

from bireme import isolated
from bireme.cli.options import Parsed
from bireme.cli.tune import NOT_SHARED, with_accelerator, words_of
from bireme.deepspeed.arguments import parsed_again
from bireme.errors import BadInputError
from bireme.tune.deepspeed.config import SECTION
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.reading import read_document
from bireme.tune.deepspeed.results import read_metrics, read_model_info
from bireme.tune.deepspeed.trial_command import experiment_args
from bireme.tune.diagnosis import diagnose
from bireme.tune.experiment import End, Order, read_report, tail
from bireme.tune.launching import Ground, Launch
from bireme.tune.slots import Shape, why_impossible
from bireme.tune.trial_result import TrialResult
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from bireme.resources.pool import Pool
    from bireme.tune.slots import SlotReservation

_ONE_NODE_BY_HAND = ("no_ssh", "node_rank")


class Command(Value):
    """How an experiment is launched: what the launcher's command line says of each, and the script's arguments.

    ``limit``: seconds that it may take; None: any. ``by_file``: the script gets its configuration as a path.
    """

    launch: Launch
    args: tuple[str, ...]
    limit: float | None
    by_file: bool


def read_experiment(path: str, results_dir: str, pool: Pool, taken: Collection[str] = ()) -> dict[str, Any]:
    """An experiment's file, with its folder of results, and the file for its figures in its configuration.

    Args:
        path: the file.
        results_dir: where it gets a folder.
        pool: the slots that there are.
        taken: the names of others.

    Raises:
        ValueError: it is none, is broken, has the name of another, or asks for more than there will ever be.
    """
    document = read_document(path)
    exp: dict[str, Any] = copy.deepcopy(document.data)
    for key, kind in (("name", str), ("ds_config", dict), ("num_gpus", int), ("num_nodes", int)):
        if not isinstance(exp.get(key), kind):
            raise BadInputError(
                f"an experiment needs {key!r}", hint=f"of type {kind.__name__}", where=document.where(key)
            )
    if exp["name"] in taken:
        raise BadInputError(
            f"there is an experiment {exp['name']} already",
            hint="the name is that of its folder: give each its own",
            where=document.where("name"),
        )
    if reason := why_impossible(pool, Shape(exp["num_nodes"], exp["num_gpus"])):
        raise BadInputError(f"experiment {exp['name']} can never run: {reason}", where=document.where("num_gpus"))
    files = StudyFiles.at(results_dir, "")
    files.result(exp["name"])  # it becomes the name of a folder, if it can
    exp["result_dir"] = os.path.join(os.path.expanduser(results_dir), exp["name"])
    if isinstance(exp["ds_config"].get(SECTION), dict):
        exp["ds_config"][SECTION]["metric_path"] = files.result(exp["name"], "metrics.json")
    return exp


def command_of(args: Namespace, pool: Pool, hostfile: str | None = None) -> Command:
    """What the launcher's command line says of an experiment.

    Args:
        args: the command line.
        pool: the hosts, for where there is no hostfile.
        hostfile: the experiment's own.
    """
    own = {"hostfile": hostfile} if hostfile and os.path.isfile(hostfile) else {}
    options = with_accelerator(parsed_again(Namespace(**{**vars(args), **own})).options)
    if options["hostfile"] is None and not options["hosts"]:
        declared = {host: 1 + max(map(int, slots)) for host, slots in pool.items() if slots}
        options["hosts"] = ",".join(f"{host}:{slots}" for host, slots in declared.items())
    launch = Launch(
        Ground(pool),
        words_of(Parsed(options, ()), without=(*NOT_SHARED, *_ONE_NODE_BY_HAND)),
        args.user_script,
        options["master_port"],
        options["grace"],
        options["heartbeat"],
        options["log_dir"],
        options["enable_each_rank_log"],
    )
    return Command(launch, tuple(args.user_args), options["experiment_limit"], options["config_as"] == "file")


class Experiments:
    """The executor's client: knows what each experiment is.

    Args:
        args: the launcher's command line.
        pool: the hosts.
        files: the folders.
        mappings: ``arg_mappings``.
        on_end: called with each experiment that has ended for good.
        port: is added to the port of the command line, beside the place among those that run.

    Attributes:
        lingering: seconds until nothing can be left of the one that has ended last.
    """

    def __init__(
        self,
        args: Namespace,
        pool: Pool,
        files: StudyFiles,
        mappings: Mapping[str, str],
        on_end: Callable[[dict[str, Any], TrialResult], object] = lambda exp, ending: None,
        port: int = 0,
    ) -> None:
        self._args, self._pool, self._files, self._mappings = args, pool, files, mappings
        self._on_end, self._port = on_end, port
        self.lingering = 0.0
        self._exps: dict[str, dict[str, Any]] = {}

    def add(self, exp: dict[str, Any]) -> None:
        """Make an experiment known."""
        self._exps[exp["name"]] = exp

    # -- before --------------------------------------------------------------------------------------

    def order(self, name: str, reservation: SlotReservation, place: int) -> Order:
        """As `executor.Client.order`; writes the files of the contract."""
        exp = self._exps[name]
        command, identity, report = self._command(exp), self._identity(exp), self._files.result(name, "outcome.json")
        limit = () if command.limit is None else ("--time_limit", f"{command.limit:g}")
        words = command.launch.command(
            name,
            reservation,
            place + self._port,
            options=("--report", report, *limit),
            args=identity["user_args"],
        )
        for file in (report, *self._figures(exp)):
            _remove(file)
        facts = {key: value for key, value in exp.items() if key not in ("name", "results")}
        facts.update(identity, slots=reservation.include())
        self._files.write_start(name, facts.pop("ds_config"), ("bireme", "run", *words), **facts)
        stdout, stderr = (self._files.result(name, file) for file in ("stdout.log", "stderr.log"))
        argv = isolated.command("bireme", "run", *words)
        return Order(argv, dict(os.environ), os.getcwd(), stdout, stderr, report, command.launch.grace)

    def _command(self, exp: Mapping[str, Any]) -> Command:
        return command_of(self._args, self._pool, exp.get("hostfile"))

    def _identity(self, exp: Mapping[str, Any]) -> dict[str, Any]:
        """What makes two runs the same; as JSON gives it back."""
        ds_config: dict[str, Any] = copy.deepcopy(exp["ds_config"])
        metrics, info = self._figures(exp)
        if isinstance(ds_config.get(SECTION), dict):
            ds_config[SECTION]["metric_path"] = metrics
        if _is_profile(exp):
            ds_config[SECTION]["model_info_path"] = info
        command = self._command(exp)
        path = self._files.result(exp["name"], "ds_config.json") if command.by_file else ""
        return {
            "ds_config": ds_config,
            "num_nodes": exp["num_nodes"],
            "num_gpus": exp["num_gpus"],
            "user_script": command.launch.script,
            "user_args": list(experiment_args(command.args, ds_config, self._mappings, path=path)),
            "experiment_limit": command.limit,
        }

    def _figures(self, exp: Mapping[str, Any]) -> tuple[str, str]:
        """Where the engine writes: its figures, and what it found out about the model."""
        section = exp["ds_config"].get(SECTION)
        given = section if isinstance(section, dict) else {}
        return (
            os.path.abspath(given.get("metric_path") or self._files.result(exp["name"], "metrics.json")),
            os.path.abspath(given.get("model_info_path") or self._files.result(exp["name"], "model_info.json")),
        )

    def started(self, name: str, reservation: SlotReservation) -> None:
        """As `executor.Client.started`."""

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """As `executor.Client.judge`."""
        figures, reason = self._read(self._exps[name])
        return diagnose(end, figures, reason, tail(self._files.result(name, "stderr.log")))

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """As `executor.Client.settling`."""
        launch = command_of(self._args, self._pool).launch
        self.lingering = launch.settling(reservation, end.report)
        return self.lingering

    def ended(self, name: str, ending: TrialResult, *, again: bool) -> None:
        """As `executor.Client.ended`."""
        if not again:
            self._on_end(self._exps[name], ending)

    def earlier(self, exp: dict[str, Any]) -> TrialResult | None:
        """How this experiment ended in an earlier process; None: it is to be run.

        Where it has measured nothing it is run again, as in DeepSpeed: its figures may have been taken away.
        """
        identity = self._identity(exp)
        written = read_report(self._files.result(exp["name"], "exp.json")) or {}
        report = read_report(self._files.result(exp["name"], "outcome.json")) or {}
        code, seconds = report.get("exit_code"), report.get("seconds")
        if not isinstance(code, int) or not isinstance(seconds, (int, float)):
            return None
        if any(written.get(key) != value for key, value in identity.items()):
            return None
        self.add(exp)
        ending = self.judge(exp["name"], End(code, report, 0.0, float(seconds), False))
        return ending if ending.counts and ending.cause != "no metric" else None

    def figures(self, exp: Mapping[str, Any]) -> dict[str, float]:
        """What the engine has measured; empty: nothing."""
        return read_metrics(self._figures(exp)[0]).values

    def _read(self, exp: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """(figures, why there are none). Where none are asked for, there is nothing to miss."""
        if _is_profile(exp):
            info = read_model_info(self._figures(exp)[1])
            return {"num_params": float(info.params or 0)}, info.reason
        if not isinstance(exp["ds_config"].get(SECTION), dict):
            return {}, ""
        metrics = read_metrics(self._figures(exp)[0])
        return metrics.values, metrics.reason


def _is_profile(exp: Mapping[str, Any]) -> bool:
    section = exp["ds_config"].get(SECTION)
    info = section.get("model_info") if isinstance(section, dict) else None
    return isinstance(info, dict) and info.get("profile") is True


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
