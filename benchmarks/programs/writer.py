"""Writes lines of 100 bytes with its rank and their number: ``writer.py LINES buffer|print``.

``buffer`` writes through its own buffer, so that interpreter options such as ``-u`` have no effect.
"""

import os
import sys

count = int(sys.argv[1])
rank = int(next(os.environ[n] for n in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK") if n in os.environ))
head, tail = f"rank {rank} line ", " " + "x" * 77
if sys.argv[2] == "print":
    for number in range(count):
        print(f"{head}{number:09d}{tail}")
else:
    line = f"{head}%09d{tail}\n".encode()
    out = open(1, "wb", buffering=65536, closefd=False)
    for number in range(count):
        out.write(line % number)
    out.flush()
