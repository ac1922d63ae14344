"""Encodes and decodes world info, DeepSpeed's format of hosts and their slots in one word."""

from __future__ import annotations

import base64
import json

from bireme import jsontext
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.resources.pool import Pool


def encode_world_info(world_info: Mapping[str, Sequence[int | str]]) -> str:
    """Encode ``{"host": [slot, …], …}`` as URL-safe base64 of its JSON, keeping the order of hosts."""
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


def decode_world_info(text: str) -> Pool:
    """Decode world info; the slots become words."""
    where = "--world_info"
    try:
        world = jsontext.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except ValueError:
        raise BadInputError("not the URL-safe base64 of a JSON object", where=where) from None
    if not isinstance(world, dict) or not world:
        raise BadInputError('not an object such as {"host": [0, 1]}', where=where)
    for host, slots in world.items():
        if not _is_word(host):
            raise BadInputError(f"not a host name: {host!r}", where=where)
        words = isinstance(slots, list) and all(type(slot) in (int, str) and _is_word(str(slot)) for slot in slots)
        if not words or not slots:
            raise BadInputError(f"the slots of {host} are not a list of ids", where=where)
    return {host: tuple(map(str, slots)) for host, slots in world.items()}


def _is_word(text: str) -> bool:
    """Whether a text is safe as a name in a command line and an environment."""
    return text != "" and text.isprintable() and " " not in text
