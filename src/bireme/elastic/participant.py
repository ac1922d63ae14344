"""One node's part in a rendezvous of PyTorch's: ``python participant.py``, which needs nothing but torch.

It imports torch at once, while the nodes are still being asked, and then reads one line of JSON from its stdin: the
fields of :func:`join`. It prints ``{}`` when it has come to the store, then a line of JSON, ``{"group_rank": K,
"nodes": N}`` or ``{"error": WHY}``, and ends; also when its stdin ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

_OUT = os.dup(1)  # what others print goes elsewhere
os.dup2(2, 1)
_PATIENCE = 3.0
"""Seconds that an address of the store may take to answer."""
_NEVER = 100_000


def main() -> None:
    """Take part once."""
    # Else the first node would offer the ranks a store of its own, at an address made of our label.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    lines: list[str] = []
    invited = threading.Event()
    threading.Thread(target=_read, args=(lines, invited), daemon=True).start()
    try:
        import torch.distributed.elastic.rendezvous.registry  # noqa: F401  (the cost of all, paid while nobody waits)
    except ImportError as error:
        _answer(error=f"elastic training needs PyTorch, and {sys.executable} cannot import it: {error}")
        return
    invited.wait()
    try:
        _answer(**join(**json.loads(lines[0])))
    except Exception as error:
        _answer(error=f"{type(error).__name__}: {error}".partition("\n")[0])


def _read(lines: list[str], invited: threading.Event) -> None:
    """The invitation; whoever sends it and then lets go does not want us any more."""
    with open(0, closefd=False) as stdin:
        lines += [stdin.readline()]
        if lines[0].strip():
            invited.set()
            stdin.read()
    os._exit(0)


def join(
    addresses: list[str],
    port: int,
    run_id: str,
    label: str,
    nodes: int,
    join_timeout: int,
) -> dict[str, int]:
    """Take part in the rendezvous ``run_id``, by the backend ``c10d`` of torch's registry.

    Args:
        addresses, port: where the store may be reached.
        label: nodes are numbered in the order of their labels.
        nodes: it is complete with so many. PyTorch would end it with fewer after a while, too, but by the clock of each
            node, and these may differ: whoever is waited for in vain, the runner finds out.
        join_timeout: seconds in which they must come.

    Returns:
        ``group_rank`` and ``nodes``.

    Raises:
        OSError: the store cannot be reached.
    """
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    address = _reachable(addresses, port)
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
        run_id=run_id,
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr=label,
        is_host=False,
        join_timeout=join_timeout,
        keep_alive_max_attempt=_NEVER,  # it goes by the nodes' clocks, which may differ; who is dead, others find out
    )
    handler = get_rendezvous_handler(parameters)
    os.write(_OUT, b"{}\n")
    found = handler.next_rendezvous()
    return {"group_rank": found.rank, "nodes": found.world_size}


def _reachable(addresses: list[str], port: int) -> str:
    for address in addresses:
        try:
            socket.create_connection((address, port), _PATIENCE).close()
        except OSError:
            continue
        return address
    raise OSError(f"the rendezvous store is not reached at any of {', '.join(addresses)}, port {port}")


def _answer(**answer: object) -> None:
    os.write(_OUT, f"{json.dumps(answer)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
