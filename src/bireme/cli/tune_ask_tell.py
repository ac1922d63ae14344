"""``bireme tune --ask_tell``: a study as JSON lines on stdin and stdout, so that any program can drive it.

Each line on stdin is a request, and each gets one line on stdout (``docs/tuning-any-program.md`` has examples)::

    {"ask": true}                                  {"trial": {"name": …, "point": {…}, …}} or {"trial": null, "over": …}
    {"propose": {"batch": 16, …}}                  {"trial": …}: of a point that your own search chose
    {"tell": NAME, "figures": {…}, "seconds": …}   {"told": NAME}   (seconds: as measured since the ask, if left out)
    {"tell": NAME, "failed": "out of memory"}      {"told": NAME}
    {"answer": true}                               {"answer": {…}}
    anything else                                  {"error": …}
"""

from __future__ import annotations

import sys
import time

from bireme import jsontext
from bireme.errors import OK, BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.tune.study.study import Study


def serve(study: Study) -> int:
    """Answer requests until stdin ends; return the exit code."""
    asked: dict[str, float] = {}
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            reply = _reply(study, _request(line), asked)
        except BadInputError as error:
            reply = {"error": str(error)}
        print(jsontext.dumps(reply), flush=True)
    return OK


def _request(line: str) -> Mapping[str, Any]:
    try:
        request = jsontext.loads(line, finite=True)
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadInputError("not a JSON object", hint='write {"ask": true}, {"tell": NAME, …} or {"answer": true}')
    return request


def _reply(study: Study, request: Mapping[str, Any], asked: dict[str, float]) -> dict[str, object]:
    """The reply to a request; ``asked``: when each trial was asked for."""
    if "ask" in request:
        trial = study.ask()
        if trial is None:
            return {"trial": None, "over": study.over}
        asked[trial.name] = time.monotonic()
        return {"trial": trial.as_dict()}
    if "propose" in request:
        point = request["propose"]
        if not isinstance(point, dict):
            raise BadInputError("propose: an object with a value for each parameter is expected")
        trial = study.propose(point)
        asked[trial.name] = time.monotonic()
        return {"trial": trial.as_dict()}
    if "tell" in request:
        return _tell(study, request, asked)
    if "answer" in request:
        return {"answer": study.answer.as_dict()}
    raise BadInputError(
        f"no request in {', '.join(request) or 'an empty object'}", hint="one of: ask, propose, tell, answer"
    )


def _tell(study: Study, request: Mapping[str, Any], asked: Mapping[str, float]) -> dict[str, object]:
    from bireme.tune.study.study import TrialResult

    name, figures, failed = str(request["tell"]), request.get("figures", {}), str(request.get("failed", ""))
    numbers = isinstance(figures, dict) and all(
        isinstance(figure, (int, float)) and not isinstance(figure, bool) for figure in figures.values()
    )
    now = time.monotonic()
    seconds = request.get("seconds", now - asked.get(name, now))
    if not numbers or isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadInputError(f"trial {name!r}: figures and seconds are numbers")
    cause = "ok" if not failed else "out of memory" if failed == "out of memory" else "failed"
    study.tell(name, TrialResult(cause=cause, metrics=figures, seconds=float(seconds), reason=failed))  # type: ignore[arg-type]
    return {"told": name}
