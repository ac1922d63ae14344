"""The options of ``bireme tune`` that describe a study of any program: what varies, what is measured, when it ends."""

from __future__ import annotations

from bireme.options.option import Option

_TUNE = ("tune",)

STUDY_OPTIONS: tuple[Option, ...] = (
    Option(
        names=("--param",),
        help="what varies: batch=8..512:log2, lr=1e-4..1e-1:log, mode=fast,safe. Its value stands for {NAME} in the "
        "arguments; --param --batch=8,16 appends the flag",
        kind="list",
        metavar="NAME=VALUES",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--env",),
        help="an environment variable that varies: OMP_NUM_THREADS=1,2,4",
        kind="list",
        metavar="NAME=VALUES",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--in",),
        help="a key of a JSON, YAML, TOML or HJSON file that varies: config.yaml:training.batch=8,16",
        kind="list",
        metavar="FILE:KEY=VALUES",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--when",),
        help="a parameter counts only under a condition: 'offload only if stage >= 2'",
        kind="list",
        metavar="CONDITION",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--constraint",),
        help="only such points are tried: 'batch * accum == 256'",
        kind="list",
        metavar="EXPRESSION",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--default",),
        help="what the program does today, the baseline: batch=32 (default: the first value of each)",
        kind="list",
        metavar="NAME=VALUE",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--maximize", "--maximise"),
        help="the figure that should be large: a pattern of the output ('samples/s: {}'), a key of a JSON file "
        "(result.json:speed), or a figure of bireme.report",
        kind="list",
        metavar="FIGURE",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--minimize", "--minimise"),
        help="the figure that should be small; time is that of the program by the clock",
        kind="list",
        metavar="FIGURE",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--limit",),
        help="what a good configuration keeps to: 'p99: {} < 200', 'peak_memory < 20GiB'",
        kind="list",
        metavar="LIMIT",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--budget",),
        help="time for the whole study: 90s, 30m, 1h30m (default: until nothing better is expected); for a DeepSpeed "
        "configuration it bounds only the rounds after the search",
        kind="word",
        metavar="TIME",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--trials",),
        help="run the program this many times at most (a DeepSpeed configuration says that itself)",
        kind="count",
        metavar="N",
        least=1,
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--confidence",),
        help="how sure the answer must be, in percent (default: 95)",
        kind="word",
        metavar="PERCENT",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--effect",),
        help="the smallest difference that matters, in percent (default: 2)",
        kind="word",
        metavar="PERCENT",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--search",),
        help="how points are chosen: model_based (default), gridsearch, random, or optuna:SAMPLER",
        kind="word",
        metavar="SEARCH",
        default="",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--seed",),
        help="another seed gives another order of trials (default: 0)",
        kind="count",
        metavar="N",
        default=0,
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--results_dir",),
        help="folder of the study (default: tuning)",
        kind="word",
        metavar="DIR",
        default="",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--ask_tell",),
        help="run nothing: propose trials and take results as JSON lines on stdin and stdout",
        commands=_TUNE,
        shared=False,
    ),
    Option(
        names=("--init",),
        help="write a commented example of a study file, tune.toml, and end",
        commands=_TUNE,
        shared=False,
    ),
)
