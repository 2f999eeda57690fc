"""The world in which ways of passing messages on are compared: what each of them can carry, by a script's own play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft.agents.channels import Record
from marft.config.interfaces.channel import Message
from tests.nights import BY_NIGHT, some
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"
WHERE, WHO = "Where is", "Who bought"


@pytest.fixture
def pact(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("pact")


def carried(pact: Any, topology: str, strategy: str) -> dict[str, float]:
    """The share of each kind of question that a flawless team answers."""
    kinds = pact.ceiling(topology, strategy, 30)["kinds"]
    return {kind: right / of for kind, (right, of) in kinds.items()}


@pytest.mark.parametrize("topology", ["split", pytest.param("pipeline", marks=BY_NIGHT)])
def test_raw_messages_carry_everything(pact: Any, topology: str) -> None:
    assert carried(pact, topology, "raw") == {WHERE: 1.0, WHO: 1.0}


@pytest.mark.parametrize(
    ("topology", "strategy"), some([("pipeline", "rules"), ("split", "rules"), ("split", "model")])
)
def test_a_record_carries_how_things_stand(pact: Any, topology: str, strategy: str) -> None:
    assert carried(pact, topology, strategy)[WHERE] == 1.0


def test_a_record_of_the_last_event_loses_what_came_before(pact: Any) -> None:
    assert carried(pact, "split", "rules")[WHO] < 0.5


@pytest.mark.parametrize("topology", ["pipeline", pytest.param("split", marks=BY_NIGHT)])
def test_what_was_done_says_not_where_things_are(pact: Any, topology: str) -> None:
    assert carried(pact, topology, "structured")[WHERE] < 0.3


def test_the_newest_message_is_enough_along_a_line_alone(pact: Any) -> None:
    assert carried(pact, "pipeline", "last")[WHERE] == 1.0
    assert carried(pact, "split", "last")[WHERE] < 0.6


@BY_NIGHT
def test_a_summary_of_the_beginning_forgets_what_will_matter(pact: Any) -> None:
    assert carried(pact, "pipeline", "summary")[WHERE] < 0.9
    assert carried(pact, "split", "summary") == {WHERE: 1.0, WHO: 1.0}


def test_rules_find_what_was_done_and_how_things_stand(pact: Any) -> None:
    text = "Ann is in Rome. Ann bought the lamp. Ann gave Cal the lamp. Eve likes rice. Now: lamp Cal, Ann Rome."
    (record,) = Record(fields=pact.FIELDS, fallback="none").transform([Message("first", text)])
    assert record is not None
    assert record.text == "did: Ann gave Cal the lamp; now: lamp Cal, Ann Rome"


def test_a_scribe_is_an_agent_whom_others_hear_in_the_place_of_a_reader(pact: Any, tmp_path: Path) -> None:
    run = pact.recipe("pipeline", "model", 0, "tiny-memory", tmp_path)
    assert run.team.visible["second"] == ("first_scribe",)
    assert run.team.visible["answerer"] == ("first_scribe", "second_scribe")
    assert {agent.policy for agent in run.agents} == {"reader", "scribe", "answerer"}
    assert list(run.team.problems([agent.role for agent in run.agents])) == []


def test_what_an_answer_is_comes_last(pact: Any) -> None:
    del pact
    import whereabouts

    from marft.common.types import Task

    session = whereabouts.Session(Task("t", "Where is the lamp?", {"answer": "Rome", "shown": {}}))
    assert session.grade("Answer: Oslo. Answer: Rome.").success
    assert not session.grade("Answer: Rome. Answer: Oslo.").success
    assert not session.grade("Rome").success
