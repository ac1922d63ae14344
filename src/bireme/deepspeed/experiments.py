"""One experiment of DeepSpeed's scheduler: reads its file, makes its command, and judges its end.

Its folder contains ``outcome.json`` (``bireme run --report``), which is removed first before a start and written last:
a folder with an outcome holds a complete run.
"""

from __future__ import annotations

import copy
import os
import re
from argparse import Namespace

from bireme import drafts, isolated
from bireme.cli.parser import Parsed
from bireme.cli.tune_words import NOT_SHARED, with_accelerator, words_of
from bireme.deepspeed.arguments import parsed_again
from bireme.errors import BadInputError
from bireme.tune.deepspeed.command import experiment_args, fits_argument
from bireme.tune.deepspeed.config import SECTION, read_document
from bireme.tune.deepspeed.files import StudyFiles, facts_of_deepspeed
from bireme.tune.deepspeed.results import read_metrics, read_model_info
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, LaunchRequest, read_report, tail
from bireme.tune.execution.launch import Launch, ResourcePool
from bireme.tune.execution.slot_scheduler import Shape, why_impossible
from bireme.tune.study.trial_result import TrialResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from bireme.resources.pool import Pool
    from bireme.tune.execution.slot_scheduler import SlotReservation

_ONE_NODE_BY_HAND = ("no_ssh", "node_rank")


def read_experiment(path: str, results_dir: str, pool: Pool, taken: Collection[str] = ()) -> dict[str, Any]:
    """Read an experiment's file; add its results folder, and to its configuration the file for its figures.

    Args:
        results_dir: where it gets a folder.
        taken: the names of other experiments.

    Raises:
        ValueError: the file is malformed or not an experiment, its name is taken, or it needs more slots than there
        are.
    """
    document = read_document(path)
    exp: dict[str, Any] = copy.deepcopy(document.data)
    for key, kind in (("name", str), ("ds_config", dict), ("num_gpus", int), ("num_nodes", int)):
        if not isinstance(exp.get(key), kind):
            what = f"missing or not of type {kind.__name__}: {key!r}"
            raise BadInputError(what, hint="every experiment needs it", where=document.where(key))
    if exp["name"] in taken:
        hint = "it becomes the name of a folder: give each experiment its own"
        raise BadInputError(f"duplicate experiment name: {exp['name']}", hint=hint, where=document.where("name"))
    if reason := why_impossible(pool, Shape(exp["num_nodes"], exp["num_gpus"])):
        raise BadInputError(f"experiment {exp['name']} can never run: {reason}", where=document.where("num_gpus"))
    files = StudyFiles.at(results_dir, "")
    files.result(exp["name"])  # it becomes the name of a folder, if it can
    exp["result_dir"] = os.path.join(os.path.expanduser(results_dir), exp["name"])
    if isinstance(exp["ds_config"].get(SECTION), dict):
        exp["ds_config"][SECTION]["metric_path"] = files.result(exp["name"], "metrics.json")
    return exp


def launch_of(args: Namespace, pool: Pool, hostfile: str | None = None) -> tuple[Launch, dict[str, Any]]:
    """What all experiments have in common, and all options, from the launcher's command line.

    Args:
        pool: the hosts, used if there is no hostfile.
        hostfile: the experiment's own hostfile; None: that of the command line.
    """
    own = {"hostfile": hostfile} if hostfile and os.path.isfile(hostfile) else {}
    options = with_accelerator(parsed_again(Namespace(**{**vars(args), **own})).options)
    if options["hostfile"] is None and not options["hosts"]:
        declared = {host: 1 + max(map(int, slots)) for host, slots in pool.items() if slots}
        options["hosts"] = ",".join(f"{host}:{slots}" for host, slots in declared.items())
    launch = Launch(
        pool=ResourcePool(pool),
        words=words_of(Parsed(options, ()), without=(*NOT_SHARED, *_ONE_NODE_BY_HAND)),
        script=args.user_script,
        port=options["master_port"],
        grace=options["grace"],
        heartbeat=options["heartbeat"],
        log_dir=options["log_dir"],
        rank_log_dir=options["enable_each_rank_log"],
    )
    return launch, options


class Experiments:
    """The executor's client for experiments of DeepSpeed's scheduler.

    Args:
        args: the launcher's command line.
        mappings: ``arg_mappings``.
        on_end: called with each experiment that has ended and is not retried.
        port: added to the port of the command line, together with the number among the running experiments.

    Attributes:
        lingering: seconds until the experiment that ended last has certainly left nothing.
    """

    def __init__(
        self,
        args: Namespace,
        pool: Pool,
        files: StudyFiles,
        mappings: Mapping[str, str],
        on_end: Callable[[dict[str, Any], TrialResult], object],
        port: int,
    ) -> None:
        self._args, self._pool, self._files, self._mappings = args, pool, files, mappings
        self._on_end, self._port = on_end, port
        self.lingering = 0.0
        self._exps: dict[str, dict[str, Any]] = {}

    def add(self, exp: dict[str, Any]) -> None:
        """Add an experiment."""
        self._exps[exp["name"]] = exp

    # -- before --------------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for an experiment, and write its files.

        Args:
            place: a low number that no other running experiment has, another one at each attempt.
        """
        exp = self._exps[name]
        (launch, _), identity, report = self._launch(exp), self._identity(exp), self._files.result(name, "outcome.json")
        limit, args = identity["experiment_limit"], identity["user_args"]
        limit = () if limit is None else ("--time_limit", f"{limit:g}")
        argv = launch.command(name, reservation, place + self._port, options=("--report", report, *limit), args=args)
        # The command that is written runs the real job after tuning, which must not overwrite the report.
        words = launch.command(name, reservation, place + self._port, options=(), args=args)
        for file in (report, *self._figures(exp)):
            drafts.remove(file)
        facts = {key: value for key, value in exp.items() if key not in ("name", "results")}
        facts.update(identity, **self._facts_of_deepspeed(exp, words, identity), slots=reservation.include())
        self._files.write_start(name, facts.pop("ds_config"), ("bireme", "run", *words), **facts)
        return LaunchRequest(
            argv=isolated.command("bireme", "run", *argv),
            env=dict(os.environ),
            cwd=os.getcwd(),
            stdout=self._files.result(name, "stdout.log"),
            stderr=self._files.result(name, "stderr.log"),
            report=report,
            grace=launch.grace,
        )

    def _facts_of_deepspeed(
        self, exp: Mapping[str, Any], words: Sequence[str], identity: Mapping[str, Any]
    ) -> dict[str, object]:
        """The other keys of ``exp.json`` that DeepSpeed's scheduler writes."""
        launcher_args = words[: len(words) - len(identity["user_args"]) - 1]
        return {
            "hostfile": exp.get("hostfile") or getattr(self._args, "hostfile", None),
            **facts_of_deepspeed(self._files, exp["name"], identity["ds_config"], launcher_args),
            "result_dir": exp["result_dir"],
        }

    def _launch(self, exp: Mapping[str, Any]) -> tuple[Launch, dict[str, Any]]:
        return launch_of(self._args, self._pool, exp.get("hostfile"))

    def _identity(self, exp: Mapping[str, Any]) -> dict[str, Any]:
        """What identifies a run, as JSON reads it back."""
        ds_config: dict[str, Any] = copy.deepcopy(exp["ds_config"])
        metrics, info = self._figures(exp)
        if isinstance(ds_config.get(SECTION), dict):
            ds_config[SECTION]["metric_path"] = metrics
        if _is_profile(exp):
            ds_config[SECTION]["model_info_path"] = info
        launch, options = self._launch(exp)
        by_file = options["config_as"] == "file" or not fits_argument(ds_config)
        path = self._files.result(exp["name"], "ds_config.json") if by_file else ""
        return {
            "ds_config": ds_config,
            "num_nodes": exp["num_nodes"],
            "num_gpus": exp["num_gpus"],
            "user_script": launch.script,
            "user_args": list(experiment_args(self._args.user_args, ds_config, self._mappings, path=path)),
            "experiment_limit": options["experiment_limit"],
        }

    def _figures(self, exp: Mapping[str, Any]) -> tuple[str, str]:
        """The files that DeepSpeed writes: (its figures, what it found about the model)."""
        section = exp["ds_config"].get(SECTION)
        given = section if isinstance(section, dict) else {}
        return (
            os.path.abspath(given.get("metric_path") or self._files.result(exp["name"], "metrics.json")),
            os.path.abspath(given.get("model_info_path") or self._files.result(exp["name"], "model_info.json")),
        )

    def started(self, name: str, reservation: SlotReservation) -> None:
        """Do nothing: no watcher shows the start."""

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        figures, reason = self._read(self._exps[name])
        return diagnose(end, figures, reason, tail(self._files.result(name, "stderr.log")))

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until a run has certainly left nothing on other nodes."""
        launch, _ = launch_of(self._args, self._pool)
        self.lingering = launch.settling(reservation, end.report)
        return self.lingering

    def ended(self, name: str, result: TrialResult, *, again: bool) -> None:
        """Report an experiment that is not retried.

        Args:
            again: whether it was queued for another attempt.
        """
        if not again:
            self._on_end(self._exps[name], result)

    def earlier(self, exp: dict[str, Any]) -> TrialResult | None:
        """The result of this experiment from an earlier process; None if it is to be run.

        An experiment without figures is run again, as in DeepSpeed: they may have been deleted.
        """
        identity = self._identity(exp)
        written = read_report(self._files.result(exp["name"], "exp.json")) or {}
        report = read_report(self._files.result(exp["name"], "outcome.json"))
        if report is None and "slots" not in written:
            return self._of_deepspeed(exp, identity, written)
        report = report or {}
        code, seconds = report.get("exit_code"), report.get("seconds")
        if not isinstance(code, int) or not isinstance(seconds, (int, float)):
            return None
        if any(written.get(key) != value for key, value in identity.items()):
            return None
        self.add(exp)
        result = self.judge(exp["name"], End(exit_code=code, report=report, seconds=float(seconds), stopped=False))
        return result if result.counts and result.cause != "no metric" else None

    def _of_deepspeed(
        self, exp: Mapping[str, Any], identity: Mapping[str, Any], written: Mapping[str, object]
    ) -> TrialResult | None:
        """The result in a folder that DeepSpeed's own scheduler made; None if the experiment is to be run.

        By DeepSpeed's rule: it is run again if Ctrl+C interrupted it, or if it left neither an error nor a figure.
        """
        ours, theirs = (_without_section(each.get("ds_config")) for each in (identity, written))
        alike = all(written.get(key) == exp[key] for key in ("num_nodes", "num_gpus")) and ours == theirs
        if not alike or not os.path.exists(self._files.result(exp["name"], "stderr.log")):
            return None
        stderr = tail(self._files.result(exp["name"], "stderr.log"))
        if "KeyboardInterrupt" in stderr:
            return None
        if any(self._read(exp)[0].values()):
            return TrialResult(cause="ok")
        error = re.search(r"[Ee]rror:? *(.*)|ERROR:? *(.*)", stderr)
        return error and TrialResult(cause="failed", reason=(error[1] or error[2] or "").strip() or "error")

    def figures(self, exp: Mapping[str, Any]) -> dict[str, float]:
        """The figures that DeepSpeed measured; empty if none."""
        return read_metrics(self._figures(exp)[0]).values

    def _read(self, exp: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """(figures, why they are missing). Without an ``autotuning`` section none are expected."""
        if _is_profile(exp):
            info = read_model_info(self._figures(exp)[1])
            return {"num_params": float(info.params or 0)}, info.reason
        if not isinstance(exp["ds_config"].get(SECTION), dict):
            return {}, ""
        metrics = read_metrics(self._figures(exp)[0])
        return metrics.values, metrics.reason


def error_of(result: TrialResult) -> str | None:
    """What DeepSpeed calls an error: why there is no figure; None if there is no error."""
    if result.cause == "ok":
        return None
    if not result.reason or result.reason.startswith(f"{result.cause}:"):
        return result.reason or result.cause
    return f"{result.cause}: {result.reason}"


def _without_section(ds_config: object) -> object:
    """A configuration without its ``autotuning`` section, in which the paths of the figures differ."""
    return {key: value for key, value in ds_config.items() if key != SECTION} if isinstance(ds_config, dict) else None


def _is_profile(exp: Mapping[str, Any]) -> bool:
    section = exp["ds_config"].get(SECTION)
    info = section.get("model_info") if isinstance(section, dict) else None
    return isinstance(info, dict) and info.get("profile") is True
