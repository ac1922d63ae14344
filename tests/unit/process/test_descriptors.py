"""Which descriptors a guardian holds: one too many keeps another process from seeing the end of a file."""

from __future__ import annotations

import os
import subprocess
import sys

CLOSES = """
import os
from bireme.process import kernel
keep = [os.dup(0), os.dup(0), os.dup(0)]
kernel.close_all_but({keep[2], keep[0]})
print(os.readlink("/proc/self/fd/0"), *(fd for fd in range(1000) if os.path.exists(f"/proc/self/fd/{fd}")))
"""


def test_a_guardian_holds_none_that_is_not_its_own() -> None:
    """Otherwise what reads from a pipe of the program that embeds us would wait for its end for as long as the job."""
    ours, theirs = os.pipe()
    kept = [str(fd) for fd in range(3, 100) if fd not in (ours, theirs)]
    words = [sys.executable, "-c", CLOSES]
    done = subprocess.run(words, pass_fds=(ours, theirs), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["/dev/null", "0", "1", "2", kept[0], kept[2]]
    os.close(ours)
    os.close(theirs)
