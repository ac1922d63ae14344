"""A question to all nodes of a job: when it is answered, and to whom."""

from __future__ import annotations

from bireme.loop import Loop
from bireme.runner.question import Question


def told(answers: int, *, at_once: int = 0, later: int = 0, askers: int = 1) -> tuple[list[dict[int, str]], int, bool]:
    """What is told, how often the nodes are asked, and whether that was before the question had been put."""
    loop, said, asked = Loop(), list[dict[int, str]](), list[int]()

    def ask() -> int:
        asked.append(1)
        for node in range(at_once):
            question.answered({node: "here"})
        for node in range(at_once, at_once + later):
            loop.after(0, lambda node=node: question.answered({node: "there"}))
        return answers

    question = Question(loop, ask, 0.05 if at_once + later < answers else 60.0)
    for _ in range(askers):
        question.put(lambda found: (said.append(dict(found)), len(said) == askers and loop.stop()))
    early = bool(said)
    loop.run()
    loop.close()
    return said, len(asked), early


def test_a_job_without_nodes_is_told_about_none() -> None:
    assert told(0) == ([{}], 1, False)


def test_answers_that_come_while_the_nodes_are_asked() -> None:
    assert told(1, at_once=1) == ([{0: "here"}], 1, False)
    assert told(2, at_once=1, later=1) == ([{0: "here", 1: "there"}], 1, False)


def test_answers_that_do_not_come_are_not_waited_for() -> None:
    assert told(3, later=1) == ([{0: "there"}], 1, False)


def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    assert told(1, later=1, askers=3) == ([{0: "there"}] * 3, 1, False)
