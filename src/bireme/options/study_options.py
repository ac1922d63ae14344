"""The options of ``bireme tune`` that describe a study of any program: what varies, what is measured, when it ends."""

from __future__ import annotations

from bireme.options.option import Option

_TUNE = ("tune",)

# A row takes one to three lines.
# fmt: off
STUDY_OPTIONS = (
    Option("list", "--param NAME=VALUES", "what varies: batch=8..512:log2, lr=1e-4..1e-1:log, mode=fast,safe. Its "
        "value stands for {NAME} in the arguments; --param --batch=8,16 appends the flag", commands=_TUNE),
    Option("list", "--env NAME=VALUES", "an environment variable that varies: OMP_NUM_THREADS=1,2,4", commands=_TUNE),
    Option("list", "--in FILE:KEY=VALUES", "a key of a JSON, YAML, TOML or HJSON file that varies: "
        "config.yaml:training.batch=8,16", commands=_TUNE),
    Option("list", "--when CONDITION", "a parameter counts only under a condition: 'offload only if stage >= 2'",
        commands=_TUNE),
    Option("list", "--constraint EXPRESSION", "only such points are tried: 'batch * accum == 256'", commands=_TUNE),
    Option("list", "--default NAME=VALUE", "what the program does today, the baseline: batch=32 (default: the first "
        "value of each)", commands=_TUNE),
    Option("list", "--maximize --maximise FIGURE", "the figure that should be large: a pattern of the output "
        "('samples/s: {}'), a key of a JSON file (result.json:speed), or a figure of bireme.report", commands=_TUNE),
    Option("list", "--minimize --minimise FIGURE", "the figure that should be small; time is that of the program by "
        "the clock", commands=_TUNE),
    Option("list", "--limit LIMIT", "what a good configuration keeps to: 'p99: {} < 200', 'peak_memory < 20GiB'",
        commands=_TUNE),
    Option("seconds", "--budget TIME", "time for the whole study: 90s, 30m, 1h30m (default: until nothing better is "
        "expected); for a DeepSpeed configuration it bounds only the rounds after the search", commands=_TUNE,
        zero="would leave no time for a trial"),
    Option("count", "--trials N", "run the program this many times at most (a DeepSpeed configuration says that "
        "itself)", commands=_TUNE, least=1),
    Option("word", "--confidence PERCENT", "how sure the answer must be, in percent (default: 95)", commands=_TUNE),
    Option("word", "--effect PERCENT", "the smallest difference that matters, in percent (default: 2)", commands=_TUNE),
    Option("word", "--search SEARCH", "how points are chosen: model_based (default), gridsearch, random, or "
        "optuna:SAMPLER", commands=_TUNE, default=""),
    Option("count", "--seed N", "another seed gives another order of trials (default: 0)", commands=_TUNE, default=0),
    Option("word", "--results_dir DIR", "folder of the study (default: tuning)", commands=_TUNE, default=""),
    Option("flag", "--ask_tell", "run nothing: propose trials and take results as JSON lines on stdin and stdout",
        commands=_TUNE),
    Option("flag", "--init", "write a commented example of a study file, tune.toml, and end", commands=_TUNE),
)
# fmt: on
