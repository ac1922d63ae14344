"""Relays data between the agents and their runner, in place of a launcher: relay.py SETTINGS LAUNCHER [ARGUMENT...].

Runs the launcher with the port of ``--dial`` changed to its own, passes on whatever comes there, and does what
SETTINGS, a file of JSON, says: ``log`` names the file that gets all bytes of both directions; ``replace`` a text and
what to put in its place; ``flip`` a direction ("to_agent", "to_runner") and the number of the byte whose lowest bit is
changed in each connection; ``held`` and ``go`` two files: the first gets the addresses and the port, and then the
second is waited for.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time


class Relay:
    """Passes on each connection to the runner, and back."""

    def __init__(self, settings: dict, host: str, port: int) -> None:
        self.settings, self.target = settings, (host, port)
        self.log = open(settings["log"], "ab", buffering=0) if "log" in settings else None
        self.listener = socket.create_server(("0.0.0.0", 0), backlog=100)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """Take all who come."""
        while True:
            agent, _ = self.listener.accept()
            runner = socket.create_connection(self.target)
            for source, sink, way in ((agent, runner, "to_runner"), (runner, agent, "to_agent")):
                threading.Thread(target=self.carry, args=(source, sink, way), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        """One direction of one connection."""
        count = 0
        try:
            while data := source.recv(1 << 16):
                if self.log is not None:
                    self.log.write(data)
                sink.sendall(self.altered(data, way, count))
                count += len(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def altered(self, data: bytes, way: str, count: int) -> bytes:
        """What is passed on in the place of these bytes, which so many have preceded."""
        if "replace" in self.settings:
            data = data.replace(*(text.encode() for text in self.settings["replace"]))
        where, place = self.settings.get("flip", ("", 0))
        if way == where and 0 <= (at := place - count) < len(data):
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data


def main() -> int:
    """Run the launcher; return its exit code."""
    with open(sys.argv[1]) as file:
        settings = json.load(file)
    command = sys.argv[2:]
    found = re.search(r"--dial (\S+) (\d+) ", " ".join(command))
    assert found is not None
    addresses, port = found.groups()
    if "held" in settings:
        with open(f"{settings['held']}.tmp", "w") as file:
            file.write(f"{addresses} {port}")
        os.rename(f"{settings['held']}.tmp", settings["held"])
        while not os.path.exists(settings["go"]):
            time.sleep(0.01)
    else:
        relay = Relay(settings, addresses.split(",")[0], int(port))
        command = [re.sub(rf"(^| ){port}( |$)", rf"\g<1>{relay.port}\2", word) for word in command]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
