"""The study file that ``bireme tune --init`` writes: an example with all keys, explained."""

from __future__ import annotations

from bireme.errors import BadInputError

NAME = "tune.toml"

TEXT = """\
# What bireme tune is to do; start it with:  bireme tune tune.toml
# Lines starting with # are comments. docs/study-file.md explains every key.

# The program and its arguments. {batch} is the value of the parameter `batch`.
command = "train.py --batch {batch} --compile {compile}"

# What is best: a number after a text of the output ({} is the number), a key of a JSON file that the program
# writes ("results.json:train.rate"), a figure of bireme.report, or the time that the program takes ("time").
maximize = "samples/s: {}"
# minimize = "time"

# Constraints on other metrics.
# limits = ["p99: {} < 200", "peak_memory < 16GiB"]

# How long to search at most, and how sure the answer must be.
# budget = "2h"
# trials = 40
# confidence = 95         # percent
# effect = 2              # the smallest difference that matters, in percent
# search = "model_based"   # or "gridsearch", "random", "optuna:tpe"
# results_dir = "tuning"
# warm_start = ["measured.csv"]   # earlier results, in a table or in a study's folder

# Which combinations are possible.
# constraints = ["batch * accum == 256"]

[parameters]
batch = "8..512:log2:memory"    # 8, 16, 32, … 512; more of it needs more memory
compile = "on,off"              # the first one is the default: what the program does today

# A parameter with more to say about it:
# [parameters.accum]
# values = [1, 2, 4, 8]
# default = 4
# flag = "--accum"              # appended as --accum 4; or env = "ACCUM"; or, in a file that the program reads:
# # file = "config.yaml"
# # key = "training.accum"
# only_if = "compile == on"     # absent from all other combinations

# Options of the launcher, as in: bireme run --num_gpus 2
# [launch]
# num_gpus = 2
"""


def write(path: str = NAME) -> None:
    """Write the example.

    Raises:
        BadInputError: the file exists, or cannot be written.
    """
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(TEXT)
    except FileExistsError:
        raise BadInputError("exists already", hint="remove it, or start it: bireme tune " + path, where=path) from None
    except OSError as error:
        raise BadInputError(f"cannot be written: {error.strerror}", where=path) from None
