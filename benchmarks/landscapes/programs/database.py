"""Writes orders to an SQLite database, updates some of them, and prints the rows per second.

    bireme tune --param journal=delete,truncate,persist,wal --param synchronous=full,normal,off \\
        --param page=1024,4096,16384 --param cache=64,2000 --param rows=1,16,256 --maximize 'rows/s: {}' \\
        database.py --journal {journal} --synchronous {synchronous} --page {page} --cache {cache} --rows {rows}

The database is written in a new folder in ``--folder``, which should be on a real disk, and removed.
"""

import argparse
import os
import random
import sqlite3
import tempfile
import time


def key(number: int) -> int:
    """The key of an order: distinct, and in no order, so that pages in all parts of the tree are written."""
    return number * 2654435761 % (1 << 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", choices=["delete", "truncate", "persist", "wal"], default="delete")
    parser.add_argument("--synchronous", choices=["off", "normal", "full"], default="full")
    parser.add_argument("--page", type=int, default=4096, help="size of a page, bytes")
    parser.add_argument("--cache", type=int, default=2000, help="size of the cache, KiB")
    parser.add_argument("--rows", type=int, default=1, help="rows in a transaction")
    parser.add_argument("--seconds", type=float, default=0.15, help="how long to write")
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()

    rng = random.Random(0)
    texts = [rng.randbytes(200) for _ in range(256)]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        database = sqlite3.connect(os.path.join(folder, "orders.db"), isolation_level=None)
        for name, value in (
            ("page_size", args.page), ("journal_mode", args.journal), ("synchronous", args.synchronous),
            ("cache_size", -args.cache),
        ):  # fmt: skip
            database.execute(f"PRAGMA {name} = {value}")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, text BLOB, paid INTEGER)")
        database.execute("CREATE INDEX customers ON orders (customer)")
        done, begin = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begin) < args.seconds:
            database.execute("BEGIN")
            for number in range(done, done + args.rows):
                values = (key(number), number * 7919 % 1000, texts[number % len(texts)])
                database.execute("INSERT INTO orders VALUES (?, ?, ?, 0)", values)
                database.execute("UPDATE orders SET paid = paid + 1 WHERE id = ?", (key(number // 2),))
            database.execute("COMMIT")
            done += args.rows
        database.close()
    print(f"rows/s: {done / seconds:.6g}")


if __name__ == "__main__":
    main()
