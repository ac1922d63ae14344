"""On a terminal each rank has terminals of its own: what it finds there, its bars and colours, and our colours."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess

import pytest

from tests.command.test_terminal import HOST
from tests.conftest import bireme, clean_environ, wait_for

FINDS = """
import json, os, shutil, sys
found = {
    "stdout": sys.stdout.isatty(),
    "stderr": sys.stderr.isatty(),
    "columns": shutil.get_terminal_size().columns,
    "own": os.get_terminal_size(1).columns if sys.stdout.isatty() else 0,
    "variable": os.environ.get("COLUMNS"),
}
with open(sys.argv[1] + "/" + os.environ["RANK"], "w") as file:
    json.dump(found, file)
"""
WIDTH = 100
LABEL = len(b"[" + HOST + b":0] ")


def found_by(folder, ranks):
    return [json.loads((folder / str(rank)).read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("options", [("--num_gpus", "1"), ("--num_gpus", "2", "--output", "raw")], ids=["one", "raw"])
def test_without_labels_it_is_as_without_a_launcher(terminal, script, tmp_path, options):
    screen = terminal("run", "-q", *options, script(FINDS), tmp_path, columns=WIDTH)
    assert screen.wait() == 0, screen.seen
    for found in found_by(tmp_path, 2 if "raw" in options else 1):
        assert found == {"stdout": True, "stderr": True, "columns": WIDTH, "own": WIDTH, "variable": None}


def test_with_labels_the_width_is_what_they_leave(terminal, script, tmp_path):
    screen = terminal("run", "-q", "--num_gpus", "2", script(FINDS), tmp_path, columns=WIDTH)
    assert screen.wait() == 0, screen.seen
    left = WIDTH - LABEL
    found = found_by(tmp_path, 2)
    # Some programs ask stdin first, which is the whole window for rank 0.
    for rank, variable in enumerate((str(left), None)):
        assert found[rank] == {"stdout": True, "stderr": True, "columns": left, "own": left, "variable": variable}


def test_a_narrow_window_is_not_divided(terminal, script, tmp_path):
    screen = terminal("run", "-q", "--num_gpus", "2", script(FINDS), tmp_path, columns=LABEL + 1)
    assert screen.wait() == 0, screen.seen
    assert [found["own"] for found in found_by(tmp_path, 2)] == [LABEL + 1] * 2


def test_folded_output_is_no_terminal(terminal, script, tmp_path):
    screen = terminal("run", "-q", "--num_gpus", "2", "--fold", script(FINDS), tmp_path, columns=WIDTH)
    assert screen.wait() == 0, screen.seen
    assert not any(found["stdout"] or found["stderr"] for found in found_by(tmp_path, 2))


def test_two_terminals_get_a_stream_each(terminal, script):
    ours, theirs = os.openpty()
    program = script("import os\nos.write(1, b'out\\n')\nos.write(2, b'err\\n')\n")
    words = bireme("run", "-q", "--num_gpus", "1", program)
    screen = terminal(argv=["/bin/sh", "-c", f"exec {shlex.join(words)} 2> {os.ttyname(theirs)}"], columns=WIDTH)
    assert screen.wait() == 0
    assert (screen.seen, os.read(ours, 100)) == (b"out\r\n", b"err\r\n")
    os.close(ours)
    os.close(theirs)


def test_only_what_goes_to_a_terminal_is_one(terminal, script, tmp_path):
    """``bireme run … > file`` on a terminal: stdout is a file for the ranks too, byte for byte."""
    words = bireme("run", "-q", "--num_gpus", "1", script(FINDS + "print('a\\rb\\x1b[31m')"), tmp_path)
    argv = ["/bin/sh", "-c", f"exec {shlex.join(words)} > {shlex.quote(str(tmp_path / 'file'))}"]
    screen = terminal(argv=argv, columns=WIDTH)
    assert screen.wait() == 0, screen.seen
    (found,) = found_by(tmp_path, 1)
    assert (found["stdout"], found["stderr"]) == (False, True)
    assert (tmp_path / "file").read_bytes() == b"a\rb\x1b[31m\n"


def test_the_window_is_made_narrower(terminal, script):
    program = script(
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "os.write(1, b'ready\\n')\n"
        "signal.sigwait([signal.SIGWINCH])\n"
        "os.write(1, b'now %d %d\\n' % (os.get_terminal_size(1).columns, os.get_terminal_size(2).columns))\n"
    )
    screen = terminal("run", "-q", "--num_gpus", "2", program, columns=WIDTH)
    screen.expect(b"ready\r\n", times=2)
    screen.resize(60)
    screen.expect(b"now %d %d\r\n" % (60 - LABEL, 60 - LABEL), times=2)
    assert screen.wait() == 0


def test_bars_take_the_width_of_a_window_that_was_made_narrower(terminal, script, tmp_path):
    """At once, also if their rank draws nothing meanwhile; a rank that asks finds the new width."""
    program = script(
        "import os, shutil, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.write(2, b'\\rold\\r' + b'#' * (os.get_terminal_size(2).columns - 1) + b'|')\n"
        "    sys.stdin.readline()\n"
        "else:\n"
        "    open(sys.argv[1], 'w').close()\n"  # before it waits for the signal, that would be lost
        "    signal.sigwait([signal.SIGWINCH])\n"
        "    os.write(1, b'now %d\\n' % shutil.get_terminal_size().columns)\n"
    )
    environ = clean_environ(NO_COLOR="1", TERM="xterm-256color")
    screen = terminal("run", "-q", "--num_gpus", "2", program, tmp_path / "waits", columns=WIDTH, env=environ)
    screen.expect(b"#|")
    wait_for((tmp_path / "waits").exists, "rank 1")
    screen.resize(60)
    screen.expect(b"now %d\r\n" % (60 - LABEL))
    screen.expect(b"\r\x1b[1A\x1b[J[" + HOST + b":0] " + b"#" * (60 - LABEL))
    screen.type(b"\n")
    assert screen.wait() == 0


def test_the_window_changes_after_a_rank_has_ended(terminal, script):
    program = script(
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "os.write(1, b'ready\\n')\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.sigwait([signal.SIGWINCH])\n"
    )
    screen = terminal("run", "--log_level", "debug", "--num_gpus", "2", program, columns=WIDTH)
    screen.expect(b"ready\r\n", times=2)
    screen.expect(b"rank 0 ended")
    screen.resize(60)
    assert screen.wait() == 0, screen.seen


def test_without_pseudo_terminals_ranks_have_pipes(terminal, script, tmp_path):
    """``/dev/ptmx`` is hidden, as if all were in use."""
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/ptmx && "$@"']
    if subprocess.run([*apart, "sh", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    unshare = shutil.which("unshare")
    argv = [unshare, *apart[1:], "sh", *bireme("run", "-q", "--num_gpus", "2", script(FINDS), tmp_path)]
    screen = terminal(argv=argv, columns=WIDTH)
    assert screen.wait() == 0, screen.seen
    for found in found_by(tmp_path, 2):
        assert (found["stdout"], found["stderr"], found["variable"]) == (False, False, str(WIDTH - LABEL))


BARS = """
import os, sys
rank = os.environ["RANK"]
os.write(1, b"begin\\n")
for step in range(1000):
    os.write(2, b"\\r%d%% of %s" % (step // 10, rank.encode()))
os.write(2, b"\\r100%% of %s\\n" % rank.encode())
os.write(1, b"end\\n")
"""


def test_a_bar_stays_on_its_line(terminal, script):
    """It is redrawn much less often than the program draws it, and ends as a line."""
    screen = terminal("run", "-q", "--num_gpus", "2", script(BARS), columns=WIDTH)
    assert screen.wait() == 0
    for rank in (0, 1):
        label = b"[" + HOST + b":%d] " % rank
        assert label + b"100%% of %d\r\n" % rank in screen.seen
        assert screen.seen.count(label) < 500
        assert screen.seen.count(label + b"end\r\n") == 1


def test_an_unfinished_line_becomes_a_bar(terminal, script, tmp_path):
    """It was shown because nothing followed for a moment; the bar takes its place, and its label."""
    go = tmp_path / "go"
    program = script(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.write(1, b'loading')\n"
        "    while not os.path.exists(sys.argv[1]):\n"
        "        time.sleep(0.01)\n"
        "    os.write(1, b'\\rloaded\\n')\n"
    )
    screen = terminal("run", "-q", "--num_gpus", "2", program, go, columns=WIDTH)
    label = b"[" + HOST + b":0] "
    screen.expect(label + b"loading")
    go.touch()
    assert screen.wait() == 0
    assert screen.seen.startswith(label + b"loading\r\x1b[K")
    assert screen.seen.endswith(label + b"loaded\r\n")


def test_a_line_is_written_above_the_bars(terminal, script, tmp_path):
    go = tmp_path / "go"
    program = script(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.write(1, b'\\r50%')\n"
        "    time.sleep(1000)\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(0.01)\n"
        "os.write(1, b'line\\n')\n"
    )
    screen = terminal("run", "-q", "--num_gpus", "2", program, go, columns=WIDTH)
    bar, line = b"[" + HOST + b":0] 50%", b"[" + HOST + b":1] line\r\n"
    screen.expect(bar)
    go.touch()
    screen.expect(bar + b"\r\x1b[J" + line + bar)
    screen.type(b"\x03\x03")
    screen.wait()


def test_an_erased_bar_is_gone_at_the_end(terminal, script, tmp_path):
    """Also if the job ends before the bars are drawn again."""
    go = tmp_path / "go"
    program = script(
        "import os, sys, time\n"
        "os.write(1, b'\\r50%')\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(0.01)\n"
        "os.write(1, b'\\r\\x1b[K')\n"
        "os._exit(0)\n"
    )
    screen = terminal("run", "-q", "--num_gpus", "2", program, go, columns=WIDTH)
    screen.expect(b":1] 50%")
    go.touch()
    assert screen.wait() == 0
    assert b"50%" not in screen.seen.rpartition(b"\x1b[J")[2]


def test_a_colour_ends_where_a_line_rests(terminal, script):
    """A prompt that a rank does not reset must not colour what other ranks write."""
    program = script("import os, time\nos.write(1, b'\\x1b[31mred')\ntime.sleep(1000)\n")
    screen = terminal("run", "-q", "--num_gpus", "2", program, columns=WIDTH)
    screen.expect(b"\x1b[31mred\x1b[0m")
    screen.type(b"\x03\x03")
    screen.wait()


def test_a_bar_of_one_rank_passes_unchanged(terminal, script):
    screen = terminal(
        "run", "-q", script("import os\nos.write(1, b'\\r10%\\x1b[K\\r20%\\x1b[31m\\n')\n"), columns=WIDTH
    )
    assert screen.wait() == 0
    assert screen.seen == b"\r10%\x1b[K\r20%\x1b[31m\r\n"


@pytest.mark.parametrize(
    "options", [("--num_gpus", "1"), ("--num_gpus", "2", "--output", "rank0")], ids=["one", "rank0"]
)
def test_the_streams_of_one_rank_keep_their_order(terminal, script, options):
    """A line that is written beside a bar (``tqdm.write``) goes to stdout after stderr was cleared for it."""
    program = script("import os\nfor step in range(300):\n    os.write(2, b'bar\\r')\n    os.write(1, b'line\\n')\n")
    screen = terminal("run", "-q", *options, program, columns=WIDTH)
    assert screen.wait() == 0
    assert screen.seen == b"bar\rline\r\n" * 300


def test_the_report_quotes_without_colours(terminal, script):
    """Python 3.13 and others colour tracebacks on a terminal."""
    text = "\\x1b[1mTraceback (most recent call last):\\n\\x1b[31mValueError\\x1b[0m: \\x1b[35mboom\\x1b[0m\\n"
    screen = terminal("run", script(f"import os\nos.write(2, b'{text}')\nos._exit(3)\n"), columns=WIDTH)
    assert screen.wait() == 3
    assert b"  | Traceback (most recent call last):\r\n" in screen.seen
    assert b"  | ValueError: boom\r\n" in screen.seen


@pytest.mark.parametrize(
    ("variables", "colour"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["xterm", "NO_COLOR", "dumb"],
)
def test_our_messages_have_colours(terminal, script, variables, colour):
    environ = {name: value for name, value in clean_environ().items() if name != "NO_COLOR"}
    screen = terminal("run", "-q", script("raise SystemExit(3)"), env={**environ, **variables}, columns=WIDTH)
    assert screen.wait() == 3
    start = b"\x1b[31mbireme: rank 0 on" if colour else b"bireme: rank 0 on"
    assert screen.seen.startswith(start), screen.seen
    assert (b"\x1b" in screen.seen) == colour
