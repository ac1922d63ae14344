"""The rendezvous store, beside the runner: ``python store.py PORT``; 0 takes any that is free.

Prints a line of JSON, ``{"port": N}`` or ``{"error": WHY}``, and serves until its stdin ends. Needs nothing but torch.
"""

from __future__ import annotations

import json
import os
import sys
import threading

_OUT = os.dup(1)  # what others print goes elsewhere
os.dup2(2, 1)


def main(port: int) -> None:
    """Serve until whoever started us is gone."""
    threading.Thread(target=_until_let_go, daemon=True).start()
    try:
        from torch.distributed import TCPStore

        store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except ImportError as error:
        _answer(error=f"elastic training needs PyTorch, and {sys.executable} cannot import it: {error}")
        return
    except Exception as error:  # torch raises a RuntimeError of many kinds
        first = str(error).partition("\n")[0]
        _answer(error=f"the rendezvous store cannot listen on port {port}: {first}")
        return
    _answer(port=store.port)
    threading.Event().wait()


def _until_let_go() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _answer(**answer: object) -> None:
    os.write(_OUT, f"{json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
