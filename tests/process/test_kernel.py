"""What we ask of the kernel, where only a rare moment or a rare machine would show that it is wrong."""

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


def test_a_guardian_holds_no_descriptor_that_is_not_its_own() -> None:
    """Otherwise what reads from a pipe of the program that embeds us would wait for its end for as long as the job."""
    ours, theirs = os.pipe()
    done = subprocess.run([sys.executable, "-c", CLOSES], pass_fds=[ours, theirs], capture_output=True, check=True)
    os.close(ours)
    os.close(theirs)
    free = [fd for fd in range(3, 100) if fd not in (ours, theirs)]
    assert done.stdout.split() == [b"/dev/null", b"0", b"1", b"2", *(b"%d" % free[number] for number in (0, 2))]
