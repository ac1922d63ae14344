"""Sends py-spy of this machine to the agents of nodes that have none."""

from __future__ import annotations

import os
import sys

from bireme.control import messages
from bireme.control.frames import PIECE_HEAD, put_piece_head
from bireme.errors import ProtocolError
from bireme.one_node.stack_taker import find_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.cluster.agent_handle import AgentHandle

_PIECE = 1 << 18


class StackToolSender:
    """The tool, which is read again for each agent."""

    def __init__(self) -> None:
        import hashlib

        self._path = find_tool(os.environ.get("PATH", os.defpath), sys.executable)
        self._sent: set[AgentHandle] = set()
        self._digest, self._size = "", 0
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except OSError:
            return
        self._digest, self._size = hashlib.sha256(data).hexdigest(), len(data)

    def answer(self, member: AgentHandle, need: messages.NeedTool) -> None:
        """Say which tool there is for such a machine, or send it."""
        if not need.send:
            fits = need.machine == os.uname().machine
            member.send(messages.Tool(digest=self._digest if fits else "", size=self._size))
            return
        if member in self._sent:
            raise ProtocolError("it asked for py-spy again")
        self._sent.add(member)
        channel = member.channel
        try:
            file = open(self._path, "rb")
        except OSError:
            return
        frame, left = bytearray(PIECE_HEAD + _PIECE), self._size

        def more() -> bytes | memoryview:
            nonlocal left
            size = file.readinto(memoryview(frame)[PIECE_HEAD : PIECE_HEAD + min(left, _PIECE)])
            left -= size
            if not size:
                file.close()
                return b""
            put_piece_head(frame, size)
            return memoryview(frame)[: PIECE_HEAD + size]

        if channel is not None:
            channel.feed(more)
