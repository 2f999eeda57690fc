"""vLLM in an environment of its own samples what the in-process engine would: ``make test-vllm``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.errors import RunError
from marft.game.game import Attempt
from marft.marks import Grammar
from marft.rollouts import LocalRollouts
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder
from marft.training import train
from marft.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions
from tests.helpers import settings

PYTHON = os.environ.get("MARFT_VLLM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="minutes, and gigabytes: make test-vllm installs vLLM and runs them"),
]
VLLM = ("--engine", f"{{kind = 'vllm', python = '{PYTHON}', options = {{enforce_eager = true}}}}")
CLOSE = 1e-4  # nats a token
PROMPT = Prompt(np.arange(5, 29, dtype=np.int32))
OPTIONS = [Option(np.array(ids, np.int32), len(ids)) for ids in ([7, 8, 2], [7, 9, 2], [11, 2])]


def key(call: int = 0) -> ActionKey:
    return ActionKey("train/0", "t", 0, 0, "actor", call)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRollouts]:
    """One adapter that has learned, and one that is as it began."""
    with LocalRollouts(settings("tiny", tmp_path_factory.mktemp("there"), *VLLM)) as rollouts:
        moved(rollouts)
        rollouts.publish(3)
        yield rollouts


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRollouts]:
    with LocalRollouts(settings("tiny", tmp_path_factory.mktemp("here"))) as rollouts:
        moved(rollouts)
        rollouts.publish(3)
        yield rollouts


def moved(rollouts: LocalRollouts, by: float = 0.02) -> None:
    for weights in rollouts.models.policies["actor"].parameters().values():
        weights.data.add_(by)


def said(rollouts: LocalRollouts, policy: str = "actor", call: int = 0, **sampling: Any) -> Completion:
    how = Sampling(**{"max_new_tokens": 12, **sampling})
    return rollouts.wait_for(rollouts.engine.sample(policy, PROMPT, how, key(call)))


def chosen(rollouts: LocalRollouts, temperature: float) -> tuple[Choice, Versions]:
    return rollouts.wait_for(rollouts.engine.choose("actor", PROMPT, OPTIONS, Sampling(temperature=temperature), key()))


@pytest.mark.parametrize("policy", ["actor", "reasoner"])
def test_greedy_answers_and_their_log_probs_are_the_same(
    here: LocalRollouts, there: LocalRollouts, policy: str
) -> None:
    one, other = (said(each, policy, temperature=0.0) for each in (here, there))
    assert one.tokens.tolist() == other.tokens.tolist()
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert (one.text, one.finish) == (other.text, other.finish)
    assert other.versions == Versions(3, 3)


def test_a_key_draws_the_same_answer_again_and_another_key_another(there: LocalRollouts) -> None:
    first, again, other = (said(there, call=call).tokens.tolist() for call in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_choices_are_as_likely_as_here_and_the_same_one_is_drawn(
    here: LocalRollouts, there: LocalRollouts, temperature: float
) -> None:
    (one, _), (other, versions) = chosen(here, temperature), chosen(there, temperature)
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert one.chosen == other.chosen
    assert versions == Versions(3, 3)


def test_texts_that_stop_an_action_and_listeners_are_ours(here: LocalRollouts, there: LocalRollouts) -> None:
    whole = said(here, temperature=0.0)
    stop = whole.text[len(whole.text) // 2 :][:3]
    heard: list[int] = []
    one = said(here, temperature=0.0, stop=(stop,))
    other = said(there, temperature=0.0, stop=(stop,), listener=heard.append)
    assert other.tokens.tolist() == one.tokens.tolist() == heard
    assert (other.text, other.finish) == (one.text, "stop")


def test_alternatives_are_those_of_here(here: LocalRollouts, there: LocalRollouts) -> None:
    one, other = (said(each, temperature=0.0, max_new_tokens=3, alternatives=2) for each in (here, there))
    assert [[id for id, _ in step] for step in one.alternatives] == [[id for id, _ in s] for s in other.alternatives]


GRAMMARS = [
    Grammar("regex", r"[0-9]{1,3}(\+[0-9]{1,3}){0,2}"),
    Grammar("lark", 'start: "the " /[a-z]{1,9}/ " is " /[0-9]+/'),
    Grammar("json", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_texts_are_held_to_grammars_as_here(here: LocalRollouts, there: LocalRollouts, grammar: Grammar) -> None:
    one, other = (said(each, temperature=0.0, grammar=grammar) for each in (here, there))
    assert (other.text, other.finish, other.forced) == (one.text, one.finish, one.forced)
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert one.masks
    assert other.masks
    assert other.masks.rows(len(other.tokens)).tolist() == one.masks.rows(len(one.tokens)).tolist()
    assert other.masks.table == one.masks.table


def test_what_is_published_is_what_samples(here: LocalRollouts, there: LocalRollouts) -> None:
    for each in (here, there):
        moved(each, 0.05)
        each.publish(4)
    one, other = (said(each, temperature=0.0) for each in (here, there))
    assert np.abs(one.log_probs - other.log_probs[: len(one.log_probs)]).max() < CLOSE
    assert other.versions == Versions(4, 4)


def test_a_process_that_is_killed_is_started_again_and_asked_again(there: LocalRollouts) -> None:
    task = there.run.environment.tasks("train")[0]  # type: ignore[attr-defined]
    before = [said(there, call=call).tokens.tolist() for call in range(3)]

    def kill(_: int) -> None:
        if not killed:
            killed.extend(servers())
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    said(there, listener=kill)
    assert [said(there, call=call).tokens.tolist() for call in range(3)] == before
    assert there.usage()["engine_restarts"] == 1
    assert there.play([Attempt(task, "train/1")])[0].status == "terminated"


def servers() -> list[int]:
    """Processes that serve vLLM, without the subreapers above them."""
    found = [(file.parent.name, file.read_bytes()) for file in Path("/proc").glob("[0-9]*/cmdline")]
    return [int(pid) for pid, words in found if words.startswith(PYTHON.encode()) and b"apart.vllm_server" in words]


def test_a_training_run_learns_from_what_the_learner_would_have_sampled(tmp_path: Path) -> None:
    """One policy is an adapter, the other has all its weights sent at every step: two processes."""
    run = settings("tiny", tmp_path, *VLLM, "--policies.actor.train", "full", "--training.steps", "4")
    train(run, folder := RunFolder.create(run))
    assert furthest(folder) < CLOSE
    assert {row.get("engine_restarts") for row in folder.read_metrics()} == {0.0}


def test_a_team_that_is_held_to_grammars_is_learned_from_over_the_same_tokens(tmp_path: Path) -> None:
    """Were other tokens allowed for there than here, log-probs over them would be others."""
    number, phrase = r"-?[0-9]{1,4}(\.[0-9]+)?", 'start: /[a-z]+/ (" " /[a-z]+/)* "."'
    run = settings(
        "tiny", tmp_path, *VLLM, "--agents.actor.sampling.regex", number, "--agents.reasoner.sampling.grammar", phrase
    )
    train(run, folder := RunFolder.create(run))
    episodes = [episode for file in folder.episodes.iterdir() for episode in read_episodes(file)]
    assert {episode.status for episode in episodes} == {"terminated"}
    assert all(action.masks for episode in episodes for action in episode.actions)
    assert furthest(folder) < CLOSE


def furthest(folder: RunFolder) -> float:
    """Nats that a token's log-prob was from the learner's, in any step."""
    differences = [
        value
        for row in folder.read_metrics()
        for name, value in row.items()
        if name.endswith("log_prob_difference_max")
    ]
    assert differences
    return max(differences)


def test_an_argument_that_vllm_has_not_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"engine\.options: vLLM .* takes no no_such_thing"):
        LocalRollouts(settings("tiny", tmp_path, *VLLM, "--engine.options.no_such_thing", "1")).close()
