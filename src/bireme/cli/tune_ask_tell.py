"""``bireme tune --ask_tell``: a study as JSON lines on stdin and stdout, so that any program can drive it.

Each line on stdin is a request, and each gets one line on stdout (``docs/tuning-any-program.md`` has examples)::

    {"ask": true}                                  {"trial": {"name": …, "point": {…}, …}} or {"trial": null, "over": …}
    {"propose": {"batch": 16, …}}                  {"trial": …}: of a point that your own search chose
    {"tell": NAME, "figures": {…}, "seconds": …}   {"told": NAME}   (seconds: as measured since the ask, if left out)
    {"tell": NAME, "failed": "out of memory"}      {"told": NAME}
    {"answer": true}                               {"answer": {…}}
    anything else                                  {"error": …}

With ``--results_dir`` the study is kept there: another program goes on with it.
"""

from __future__ import annotations

import sys

from bireme import jsontext
from bireme.errors import OK, BadInputError
from bireme.logs.console import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.tune.store.stored_study import Study


def serve(study: Study) -> int:
    """Answer requests until stdin ends; return the exit code."""
    for note in study.notes:
        complain(note)
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            reply = _reply(study, _request(line))
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


def _reply(study: Study, request: Mapping[str, Any]) -> dict[str, object]:
    if "ask" in request:
        trial = study.ask()
        if trial is None:
            return {"trial": None, "over": study.over}
        return {"trial": trial.as_dict()}
    if "propose" in request:
        point = request["propose"]
        if not isinstance(point, dict):
            raise BadInputError("propose: an object with a value for each parameter is expected")
        trial = study.propose(point)
        return {"trial": trial.as_dict()}
    if "tell" in request:
        return _tell(study, request)
    if "answer" in request:
        return {"answer": study.answer.as_dict()}
    raise BadInputError(
        f"no request in {', '.join(request) or 'an empty object'}", hint="one of: ask, propose, tell, answer"
    )


def _tell(study: Study, request: Mapping[str, Any]) -> dict[str, object]:
    name, figures = str(request["tell"]), request.get("figures", {})
    result = study.result_of(name, str(request.get("failed", "")), figures)
    numbers = (*(figures.values() if isinstance(figures, dict) else ("",)), request.get("seconds", result.seconds))
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in numbers):
        raise BadInputError(f"trial {name!r}: figures and seconds are numbers")
    study.tell(name, result.replace(seconds=float(numbers[-1])))
    return {"told": name}
