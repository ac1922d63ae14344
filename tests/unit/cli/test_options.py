"""The option parser: spellings and values; every command line is either read or refused, without a crash."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.cli.job_options import job_spec
from bireme.cli.parser import parse
from bireme.errors import BadInputError
from bireme.job import JobSpec
from bireme.options.table import select

RUN = select("run")
TABLES = {"run": RUN, "agent": select("agent")}
NAMES = sorted({name for table in TABLES.values() for group in table.values() for o in group for name in o.names})


def spec(*words):
    return job_spec(parse(RUN, words))


# -- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--num_gpus", "2"],
        ["--num-gpus", "2"],
        ["--num_gpus=2"],
        ["--num-gpus=2"],
        ["--num_accelerators", "2"],
        ["--num-accelerators=2"],
        ["--nproc_per_node", "2"],
        ["--nproc-per-node=2"],
    ],
    ids="".join,
)
def test_one_option_in_all_its_spellings(words):
    assert spec(*words, "s.py").num_gpus == 2


@pytest.mark.parametrize(
    ("word", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("1D", 86400)],
)
@pytest.mark.parametrize("option", ["grace", "time_limit", "elastic_timeout", "restart_window"])
def test_lengths_of_time(option, word, seconds):
    assert getattr(spec(f"--{option}", word, "s.py"), option) == seconds


@pytest.mark.parametrize("table", TABLES)
def test_underscore_and_dash_are_alike_in_every_name(table):
    options = [option for group in TABLES[table].values() for option in group]
    for option in options:
        value = [] if option.kind == "flag" else [option.choices[-1] if option.choices else "7"]
        results = [
            parse(TABLES[table], [spelling, *value, "s.py"]).options
            for name in option.names
            for spelling in {name, name.replace("_", "-") if name.startswith("--") else name}
        ]
        assert results[0][option.dest] not in (False, None, option.default), option.names
        assert all(result == results[0] for result in results)


@pytest.mark.parametrize("words", [["-i", "h:0"], ["-ih:0"], ["-i=h:0"], ["--include", "h:0"], ["--include=h:0"]])
def test_short_options_with_their_value(words):
    assert spec(*words, "s.py").include == "h:0"


def test_values_may_look_like_options_or_be_empty():
    assert parse(RUN, ["--master_addr", "--quiet", "s.py"]).options["master_addr"] == "--quiet"
    assert parse(RUN, ["--include=", "s.py"]).options["include"] == ""
    assert parse(RUN, ["--wrap=a=b c", "s.py"]).options["wrap"] == "a=b c"


def test_words_of_a_choice_in_any_case():
    assert spec("--launcher", "PDSH", "--output=Rank0", "s.py").launcher == "pdsh"


def test_the_last_of_two_wins():
    assert spec("--num_gpus", "1", "--num-gpus", "3", "s.py").num_gpus == 3
    assert spec("--num_gpus", "2", "--nproc_per_node", "2", "s.py").num_gpus == 2


@pytest.mark.parametrize("name", ["--include", "--exclude", "--launcher_args", "--wrap", "--wrap_ranks"])
def test_an_empty_value_that_means_not_given(name):
    assert spec(name, "", "s.py") == spec("s.py")


def test_everything_from_the_script_on_is_the_scripts():
    parsed = parse(RUN, ["-q", "s.py", "-q", "--num_gpus", "--", "", "--help"])
    assert parsed.command == ("s.py", "-q", "--num_gpus", "--", "", "--help")
    assert parse(RUN, ["-q", "--", "-s.py", "-q"]).command == ("-s.py", "-q")
    assert parse(RUN, ["-", "-q"]).command == ("-", "-q")


@pytest.mark.parametrize("word", ["auto", "gpu", "-1"])
def test_words_for_all_there_are(word):
    assert spec("--nproc-per-node", word, "s.py").num_gpus is None


def test_nproc_per_node_cpu():
    job = spec("--nproc-per-node", "cpu", "s.py")
    assert job.accelerator == "cpu"
    assert job.num_gpus is not None and job.num_gpus >= 1


@pytest.mark.parametrize(
    ("endpoint", "addr", "port"),
    [
        ("host:29501", "host", 29501),
        ("host", "host", None),
        ("host:0", "host", None),
        ("10.0.0.1:80", "10.0.0.1", 80),
        ("[fe80::1]:29501", "fe80::1", 29501),
        ("[fe80::1]", "fe80::1", None),
    ],
)
def test_rendezvous_endpoint(endpoint, addr, port):
    job = spec("--rdzv-endpoint", endpoint, "s.py")
    assert (job.master_addr, job.master_port) == (addr, port)


def test_kinds_of_program():
    assert spec("s.py", "a").program.kind == "script"
    assert spec("-m", "s", "a").program.kind == "module"
    assert spec("--no_python", "s", "a").program.kind == "exec"


@pytest.mark.parametrize(
    ("words", "value"), [([], "auto"), (["--no_local_rank"], "never"), (["--local_rank_arg"], "always")]
)
def test_local_rank(words, value):
    assert spec(*words, "s.py").local_rank_arg == value


def test_quiet_is_a_log_level():
    assert spec("-q", "s.py").log_level == "error"
    assert spec("s.py").log_level == "info"


@pytest.mark.parametrize(("text", "ranks"), [("0,3", (0, 3)), ("0-2", (0, 1, 2)), ("3, 1", (3, 1)), ("5-5", (5,))])
def test_wrap_ranks(text, ranks):
    assert spec("--wrap", "env", "--wrap_ranks", text, "s.py").wrap_ranks == ranks


def test_wrap_is_split_as_a_shell_would():
    assert spec("--wrap", "nsys profile -o 'a b{rank}'", "s.py").wrap == ("nsys", "profile", "-o", "a b{rank}")


def test_none_is_no_log_directory():
    assert spec("--enable_each_rank_log", "None", "s.py").rank_log_dir is None
    assert spec("--enable_each_rank_log", "logs", "s.py").rank_log_dir == "logs"


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--num_gpu", "2", "s.py"], ["unknown option: --num_gpu", "did you mean --num_gpus?"]),
        (["--no-pyton", "s.py"], ["unknown option: --no-pyton", "did you mean --no_python?"]),
        (["--back", "s.py"], ["unknown option: --back", "it is an option of bireme drain"]),
        (["-x", "s.py"], ["unknown option: -x"]),
        (["--xyzzy=3", "s.py"], ["unknown option: --xyzzy"]),
        (["--num_gpus"], ["--num_gpus needs a value"]),
        (["--grace"], ["--grace needs a value"]),
        (["-i"], ["-i needs a value"]),
        (["--quiet=1", "s.py"], ["--quiet takes no value"]),
        (["--num_gpus", "two", "s.py"], ["--num_gpus", "'two'"]),
        (["--num_gpus", "0", "s.py"], ["--num_gpus", "at least 1"]),
        (["--num_gpus", "-2", "s.py"], ["--num_gpus"]),
        (["--num_gpus", "1.5", "s.py"], ["--num_gpus"]),
        (["--num_gpus", "", "s.py"], ["--num_gpus"]),
        (["--num_gpus", "٣", "s.py"], ["--num_gpus"]),
        (["--master_port", "http", "s.py"], ["--master_port", "'http'"]),
        (["--rdzv_endpoint", "h:http", "s.py"], ["--rdzv_endpoint"]),
        (["--rdzv_endpoint", "h:1", "--master_port", "2", "s.py"], ["--rdzv_endpoint", "--master_port"]),
        (["--rdzv_endpoint", ":1", "s.py"], ["--rdzv_endpoint", "empty"]),
        (["--master_addr", "", "s.py"], ["--master_addr", "empty", "ADDR"]),
        (["--hosts", "", "s.py"], ["--hosts", "empty"]),
        (["--hostfile", "", "s.py"], ["--hostfile", "empty", "leave the option out"]),
        (["--export", "", "s.py"], ["--export", "empty"]),
        (["--log-dir=", "s.py"], ["--log_dir", "empty"]),
        (["--num_gpus", "2", "--nproc_per_node", "3", "s.py"], ["--num_gpus and --nproc_per_node", "2 and 3"]),
        (["-i", "a", "--include", "b", "s.py"], ["-i and --include", "a and b"]),
        (["--log_dir", "a", "--enable_each_rank_log", "b", "s.py"], ["--log_dir", "--enable_each_rank_log"]),
        (["--fold", "--output", "raw", "s.py"], ["--fold", "--output raw"]),
        (["--ssh_port", "0", "s.py"], ["--ssh_port", "between 1 and 65535"]),
        (["--time_limit", "0", "s.py"], ["--time_limit", "at once"]),
        (["--heartbeat", "0.1", "s.py"], ["--heartbeat", "0.5"]),
        (["--grace", "-1", "s.py"], ["--grace"]),
        (["--grace", "nan", "s.py"], ["--grace"]),
        (["--grace", "inf", "s.py"], ["--grace"]),
        (["--grace", "soon", "s.py"], ["--grace", "'soon'"]),
        (["--grace", "2 hours", "s.py"], ["--grace", "'2 hours'", "30m"]),
        (["--time_limit", "0m", "s.py"], ["--time_limit", "at once"]),
        (["--output", "all", "s.py"], ["--output", "prefix"]),
        (["--accelerator", "tpu", "s.py"], ["--accelerator", "cuda"]),
        (["--log_level", "loud", "s.py"], ["--log_level", "warning"]),
        (["-m", "--no_python", "s"], ["--module", "--no_python"]),
        (["--no_local_rank", "--local_rank_arg", "s.py"], ["--no_local_rank", "--local_rank_arg"]),
        (["--num_gpus", "1", "-i", "localhost", "s.py"], ["--num_gpus", "--include"]),
        (["--wrap_ranks", "0", "s.py"], ["--wrap_ranks", "--wrap"]),
        (["--json", "s.py"], ["--json only works with --dry_run"]),
        (["-i", "a", "-e", "b", "s.py"], ["--include cannot be used with --exclude"]),
        (["--wrap", "a 'b", "s.py"], ["--wrap", "quot"]),
        (["--wrap", "a", "--wrap_ranks", "x", "s.py"], ["--wrap_ranks", "'x'"]),
        (["--wrap", "a", "--wrap_ranks", "1-", "s.py"], ["--wrap_ranks"]),
        (["--wrap", "a", "--wrap_ranks", "-1", "s.py"], ["--wrap_ranks"]),
        ([], ["no script"]),
        (["-q"], ["no script"]),
        (["--"], ["no script"]),
        ([""], ["empty"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_refused_with_what_is_wrong(words, says):
    with pytest.raises(BadInputError) as caught:
        spec(*words)
    text = str(caught.value)
    assert len(text.splitlines()) <= 2
    for part in says:
        assert part in text, text


HUGE = "9" * 5000  # int() raises upon more than 4300 digits


@pytest.mark.parametrize(
    "words",
    [
        ["--master_port", HUGE],
        ["--num_gpus", HUGE],
        ["--rdzv_endpoint", f"h:{HUGE}"],
        ["--rdzv_endpoint", "h:65536"],
        ["--rdzv_endpoint", "::1"],
        ["--wrap", "env", "--wrap_ranks", HUGE],
        ["--wrap", "env", "--wrap_ranks", "0-99999999999"],
        ["--wrap", "env", "--wrap_ranks", "5-3"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_absurd_values(words):
    with pytest.raises(BadInputError) as caught:
        spec(*words, "s.py")
    assert words[-2] in str(caught.value)


# -- whatever is typed ---------------------------------------------------------------------------

texts = st.text(st.characters(exclude_characters="\0"), max_size=30)
numbers = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "0", "-1", "00", "1e9", "0x10", "٣", "²", "nan", "0-99", "3-1", "0,", "a@b:1"]),
)
options = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES).map(lambda name: name.replace("_", "-")),
    st.builds("{}={}".format, st.sampled_from(NAMES), texts | numbers),
    st.builds("{}{}".format, st.sampled_from([name for name in NAMES if len(name) == 2]), texts | numbers),
)
argvs = st.lists(options | texts | numbers, max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TABLES)), argvs)
def test_any_command_line_is_read_or_refused(table, argv):
    try:
        parsed = parse(TABLES[table], argv)
        job = job_spec(parsed)
    except BadInputError as error:
        assert 1 <= len(str(error).splitlines()) <= 2 or any(not word.isprintable() for word in argv)
        return
    assert isinstance(job, JobSpec)
    rest = list(parsed.command)
    assert argv[len(argv) - len(rest) :] == rest
    assert (job.program.target, *job.program.args) == parsed.command


@settings(max_examples=200, deadline=None)
@given(argvs)
def test_the_scripts_own_words_are_never_read(words):
    assert parse(RUN, ["-q", "s.py", *words]).command == ("s.py", *words)
