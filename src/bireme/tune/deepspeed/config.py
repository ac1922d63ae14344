"""Checks the ``autotuning`` section of a DeepSpeed configuration: its keys, types and defaults.

Keys and defaults are those of ``deepspeed.autotuning.config``. DeepSpeed ignores unknown keys; here they are errors
that name the nearest known key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bireme.errors import BadInputError, similar
from bireme.tune.deepspeed.reading import Document, read_document
from bireme.tune.deepspeed.results import METRICS
from bireme.tune.samplers import KINDS
from bireme.value import Value

SECTION = "autotuning"


class Autotuning(Value):
    """The ``autotuning`` section; batch sizes in samples, steps counted from 1."""

    enabled: bool = False
    fast: bool = True
    results_dir: str = "autotuning_results"
    exps_dir: str = "autotuning_exps"
    overwrite: bool = True
    start_profile_step: int = 3
    end_profile_step: int = 5
    metric: str = "throughput"
    metric_path: str | None = None
    tuner_type: str = "gridsearch"
    tuner_early_stopping: int | None = 5
    tuner_num_trials: int | None = 50
    arg_mappings: Mapping[str, str] | None = None
    max_train_batch_size: int | None = None
    min_train_batch_size: int = 1
    max_train_micro_batch_size_per_gpu: int = 1024
    min_train_micro_batch_size_per_gpu: int = 1
    num_tuning_micro_batch_sizes: int = 3
    mp_size: int = 1
    model_info: Mapping[str, object] | None = None
    model_info_path: str | None = None


class Config(Value):
    """A configuration: the whole file, and its checked ``autotuning`` section."""

    document: Document
    autotuning: Autotuning

    @property
    def data(self) -> dict[str, object]:
        """The content of the file. Must not be changed."""
        return self.document.data


def read_config(path: str) -> Config:
    """Read and check a DeepSpeed configuration.

    Raises:
        BadInputError: the file is missing or malformed, or the section has unknown keys or invalid values.
    """
    return check_config(read_document(path))


def check_config(document: Document) -> Config:
    """Check a configuration that was already read; raises as `read_config`."""
    section = document.data.get(SECTION, {})
    if not isinstance(section, dict):
        raise BadInputError(f"{SECTION!r} must be an object: {{...}}", where=document.where(SECTION))
    for key in section:
        if key not in Autotuning._fields:
            raise _unknown(key, Autotuning._fields, document.where(SECTION, key))
    for key, value in section.items():
        wrong = CHECKS[key](value)
        if wrong:
            raise BadInputError(f"{SECTION}.{key} must be {wrong}, not {value!r}", where=document.where(SECTION, key))
    autotuning = Autotuning(**{key: value for key, value in section.items() if value is not None or key in NULLABLE})
    _check_together(autotuning, document)
    return Config(document, autotuning)


def _unknown(key: str, known: tuple[str, ...], where: str) -> BadInputError:
    # DeepSpeed's documentation mentions start_step and end_step, which it does not read.
    near = {"start_step": "start_profile_step", "end_step": "end_profile_step"}.get(key) or similar(key, known, 0.5)
    hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(known)}"
    return BadInputError(f"unknown key in {SECTION}: {key!r}", hint=hint, where=where)


def _check_together(section: Autotuning, document: Document) -> None:
    if section.start_profile_step > section.end_profile_step:
        raise BadInputError(
            f"start_profile_step {section.start_profile_step} is after end_profile_step {section.end_profile_step}",
            where=document.where(SECTION, "end_profile_step"),
        )
    for what in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        least, most = getattr(section, f"min_{what}"), getattr(section, f"max_{what}")
        if most is not None and least > most:
            raise BadInputError(
                f"min_{what} {least} is above max_{what} {most}", where=document.where(SECTION, f"min_{what}")
            )


# -- checks of values: each returns "" or what the value should be instead ----------------------------

Check = Callable[[object], str]


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _count(value: object) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "a positive integer"


def _count_or_none(value: object) -> str:
    return "" if value is None else _count(value)


def _text(value: object) -> str:
    return "" if isinstance(value, str) and value.strip() else "a non-empty string"


def _text_or_none(value: object) -> str:
    return "" if value is None else _text(value)


def _one_of(*words: str) -> Check:
    return lambda value: "" if value in words else "one of " + ", ".join(words)


def _mappings(value: object) -> str:
    if value is None or (
        isinstance(value, dict) and all(isinstance(flag, str) and flag.strip() for flag in value.values())
    ):
        return ""
    return 'an object that maps configuration keys to flags, such as {"train_micro_batch_size_per_gpu": "--batch-size"}'


def _model_info(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, dict):
        return "an object"
    known = {
        "profile": _flag,
        "num_params": _count_or_none,
        "trainable_num_params": _count_or_none,
        "activation_mem_per_gpu": _count_or_none,
        "hidden_size": _count_or_none,
        "num_layers": _count_or_none,
    }
    for key, inner in value.items():
        if key not in known:
            near = similar(key, known, 0.5)
            return f"an object of known keys; {key!r} is not one" + (f" (did you mean {near!r}?)" if near else "")
        if wrong := known[key](inner):
            return f"an object whose {key} is {wrong}"
    return ""


_BY_TYPE: dict[str, Check] = {
    "bool": _flag,
    "int": _count,
    "int | None": _count_or_none,
    "str": _text,
    "str | None": _text_or_none,
}
CHECKS = {name: _BY_TYPE[hint] for name, hint in Autotuning.__annotations__.items() if hint in _BY_TYPE} | {
    "metric": _one_of(*METRICS),
    "tuner_type": _one_of(*KINDS),
    "arg_mappings": _mappings,
    "model_info": _model_info,
}

NULLABLE = {"tuner_early_stopping", "tuner_num_trials"}
"""Keys for which null means "no limit", not the default."""
