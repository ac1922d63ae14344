"""Whether the study in a folder is the one that is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.tune.program.files import digests
from bireme.tune.program.resume import resume
from bireme.tune.store.journal import Journal
from bireme.tune.study.trial_result import TrialResult

STUDY = {"program": "train.py", "deliveries": [{"how": "flag"}], "digests": {"train.py": "1", "c.yaml": "2"}}
END = {"end": "trial-1", "ending": TrialResult("ok").as_dict(), "point": {}, "phase": "noise", "round": 1, "block": ""}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"digests": {"train.py": "1", "c.yaml": "3"}}, "another content of c.yaml"),
        ({"digests": {"train.py": "4", "c.yaml": "3"}}, "another content of train.py and another content of c.yaml"),
        ({"deliveries": [{"how": "environment"}]}, "other parameters"),
        ({"program": "other.py", "digests": {"other.py": "1", "c.yaml": "2"}}, "other program"),
        ({"later": 1}, "another version of Bireme"),
    ],
)
def test_the_difference_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    for records in ([{"study": STUDY}, END], []):
        journal = Journal.open(str(tmp_path / "journal"))
        for record in records:
            journal.append(record)
        if not records:
            assert resume(journal, STUDY, "tuning")[1] == "resuming the study: 1 of its trials has ended"
            with pytest.raises(BadInputError, match=f"^tuning holds a study with {said}: 1 of its trials has ended"):
                resume(journal, {**STUDY, **change}, "tuning")
        journal.close()


def test_the_digests_of_files(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("1")
    before = digests([str(file), "a.module", os.fspath(tmp_path)])
    file.write_text("2")
    assert list(before) == [str(file)] and before != digests([str(file)])
