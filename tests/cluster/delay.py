"""``delay.py PORT BRIDGE MS LOSS``: a delay line between a host's cable and the bridge.

A stand-in for ``tc netem`` where the kernel lacks it. Runs in the site's net namespace: takes PORT (v-NAME) off the
bridge, makes a veth pair d-NAME and e-NAME with e-NAME on the bridge, and relays frames between PORT and d-NAME, each
MS milliseconds late, so that a round trip takes twice as much longer, losing LOSS percent. Meant for control traffic.
"""

from __future__ import annotations

import collections
import random
import select
import socket
import subprocess
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, OUTGOING, ETH_P_ALL = 263, 15, 4, 3
Line = collections.deque[tuple[float, socket.socket, bytes]]  # due, socket, frame: in order, as the delay is constant


def tap(device: str) -> socket.socket:
    tapped = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    tapped.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # carries unfinished checksums and GSO frames along
    tapped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    tapped.bind((device, ETH_P_ALL))
    tapped.setblocking(False)
    return tapped


def insert(port: str, bridge: str) -> str:
    """Put the veth pair between port and bridge; the end that is ours."""
    name = port.removeprefix("v-")
    links = f"""
link set {port} nomaster
link add d-{name} type veth peer name e-{name}
link set e-{name} master {bridge} up
link set d-{name} up
"""
    subprocess.run(["ip", "-batch", "-"], check=True, text=True, input=links)
    return f"d-{name}"


def receive(source: socket.socket, target: socket.socket, line: Line, seconds: float, loss: float) -> None:
    try:
        while True:
            frame, sender = source.recvfrom(70000)
            if sender[2] != OUTGOING and random.random() * 100 >= loss:
                line.append((time.monotonic() + seconds, target, frame))
    except BlockingIOError:
        pass


def send_due(line: Line) -> None:
    now = time.monotonic()
    while line and line[0][0] <= now:
        _, target, frame = line.popleft()
        try:
            target.send(frame)
        except OSError as error:
            print(error, file=sys.stderr, flush=True)


def main(port: str, bridge: str, ms: str, loss: str) -> None:
    ours = insert(port, bridge)
    here, there = tap(port), tap(ours)
    other = {here: there, there: here}
    line: Line = collections.deque()
    print("up", flush=True)
    while True:
        wait = max(0.0, line[0][0] - time.monotonic()) if line else None
        for source in select.select([here, there], [], [], wait)[0]:
            receive(source, other[source], line, float(ms) / 1000, float(loss))
        send_due(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
