"""Started instead of ``ssh``: runs the agent here, and changes what it sends to the runner, as a rogue agent would.

The host ``bad`` is the rogue: the file that BIREME_ROGUE names says what it does, as JSON: ``{"at": NAME, "do":
"replace" | "before" | "after", "send": [{...} | {"raw": HEX}, ...]}``; NAME is that of the agent's first message of
this kind. Every other host's agent is left alone.
"""

import json
import os
import struct
import subprocess
import sys
import threading

host, command = sys.argv[-2:]
if host != "bad":
    os.execv("/bin/sh", ["sh", "-c", command])
with open(os.environ["BIREME_ROGUE"]) as file:
    plan = json.load(file)
agent = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def frame(message: dict) -> bytes:
    if "raw" in message:
        return bytes.fromhex(message["raw"])
    text = json.dumps(message).encode()
    return b"J" + struct.pack("!I", len(text)) + text


def to_agent() -> None:
    while data := os.read(0, 65536):
        agent.stdin.write(data)
        agent.stdin.flush()
    agent.stdin.close()


def exactly(count: int) -> bytes:
    data = agent.stdout.read(count)
    if len(data) < count:
        agent.wait()
        os._exit(0)
    return data


def say(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


threading.Thread(target=to_agent, daemon=True).start()
say(agent.stdout.readline() + agent.stdout.readline())  # the greeting
done = False
while True:
    head = exactly(5)
    body = exactly(struct.unpack("!I", head[1:])[0])
    name = {b"O": "Output", b"T": "Piece"}.get(head[:1]) or json.loads(body)["type"]
    if done or name != plan["at"]:
        say(head + body)
        continue
    done = True
    rogue = b"".join(map(frame, plan["send"]))
    say({"replace": rogue, "before": rogue + head + body, "after": head + body + rogue}[plan["do"]])
