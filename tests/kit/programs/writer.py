"""A rank that writes lines: ``writer.py WHAT [COUNT]``. Every line contains its rank and number."""

import os
import random
import sys

rank = int(os.environ["RANK"])
what = sys.argv[1]
count = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 0


def write(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def lines(name):
    return b"".join(
        b"%s of rank %d: %d %s\n" % (name, rank, i, b"abcdefghij"[: i % 11] * (i % 7)) for i in range(count)
    )


if what == "lines":
    write(1, lines(b"out"))
elif what == "pieces":  # both streams at once, cut where it hurts
    dice = random.Random(rank)
    texts = {1: lines(b"out"), 2: lines(b"err")}
    while texts:
        fd = dice.choice(list(texts))
        size = dice.choice([1, 2, 7, 100, 4096, 65536, 70000])
        write(fd, texts[fd][:size])
        texts[fd] = texts[fd][size:]
        if not texts[fd]:
            del texts[fd]
elif what == "long":  # lines of about the longest length that is kept whole, and longer
    for length in map(int, sys.argv[2].split(",")):
        write(1, b"%d" % rank * length + b"\n")
elif what == "file":  # the bytes of a file, and then an end as asked for
    with open(sys.argv[2].replace("{rank}", str(rank)), "rb") as file:
        write(1, file.read())
    if len(sys.argv) > 3:
        os.kill(os.getpid(), int(sys.argv[3]))
elif what == "flood":  # so many bytes without a newline
    block = b"%d" % (rank % 10) * 65536
    for _ in range(count // len(block)):
        write(1, block)
