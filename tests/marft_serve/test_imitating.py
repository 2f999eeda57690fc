"""Which steps of a warm start are measured, kept and called the best; what its turns are known by and how they count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marft.common.callbacks import CallbackList
from marft.common.errors import RunError
from marft.common.types import Action, Choice, Option, TokenSource
from marft.runs.checkpoints import CheckpointManager
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.batching import build_sample
from marft_serve.cli.traces import RecipeWithTraces
from marft_serve.traces import warm_start
from marft_serve.traces.sft import SftLoss
from marft_serve.traces.types import SkipCounter, TracedTurn
from marft_serve.traces.warm_start import (
    ImitationData,
    _build_metrics,
    _TrainLoop,
    iter_trainable_actions,
    mask_zero_weight_turns,
)
from tests.episodes import make_action
from tests.helpers import settings
from tests.runs import Listening

STEPS = [(0, [0])] * 4


class Scripted:
    """A supervisor that learns nothing, and finds held-out turns as likely as it is told."""

    def __init__(self, *held_out: float) -> None:
        self.held_out: Iterator[float] = iter(held_out)

    def learn(self, samples: object, step: int) -> tuple[SftLoss, dict[str, float]]:
        return SftLoss({"a": 2.0}, {"a": 2}), {}

    def evaluate(self, samples: object) -> SftLoss:
        return SftLoss({"a": next(self.held_out)}, {"a": 1})


class Kept:
    """In the place of what undoes a step: what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, learner: object) -> Kept:
        return self

    def take(self) -> None:
        self.asked.append("take")

    def restore(self) -> None:
        self.asked.append("restore")


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """States that checkpoints were saved of."""
    states: list[State] = []
    monkeypatch.setattr(CheckpointManager, "save", lambda _, state, *rest: states.append(state))
    monkeypatch.setattr(warm_start, "Snapshot", Kept())
    monkeypatch.setattr(warm_start, "find_non_finite", lambda _: [])
    return states


def gone_on(tmp_path: Path, every: int, *losses: float) -> State:
    run = settings("tiny", tmp_path, "--sft.eval_every", str(every), "--checkpoints.every", "2")
    supervisor: Any = Scripted(*losses)
    sample = build_sample(make_action())
    loop = _TrainLoop(
        run, RunFolder.create(run), None, supervisor, ImitationData([sample], [sample], 2), CallbackList([Listening()])
    )  # type: ignore[arg-type]
    state, held_out = loop.train(State(), STEPS, loop.measure_held_out())
    assert held_out == losses[-1]
    assert next(supervisor.held_out, None) is None, "measured as often as is said"
    return state


@pytest.mark.parametrize(
    ("every", "losses", "best", "score", "steps"),
    [
        (1, (9.0, 0.3, 1.0, 0.2, 2.0), 3, 0.2, [1, 2, 3, 4]),
        (2, (9.0, 2.0, 1.0), 4, 1.0, [2, 4]),
        (2, (0.5, 1.0, 2.0), 2, 1.0, [2, 4]),
        (3, (9.0, 1.0, 2.0), 3, 1.0, [2, 3, 4]),
        (0, (9.0, 4.0), 4, 4.0, [2, 4]),
    ],
)
def test_the_best_is_the_one_at_which_held_out_turns_were_likeliest_and_is_saved(
    every: int, losses: tuple[float, ...], best: int, score: float, steps: list[int], tmp_path: Path, saved: list[State]
) -> None:
    state = gone_on(tmp_path, every, *losses)
    assert [one.step for one in saved] == steps
    assert (state, state.best_step, state.best_score) == (saved[-1], best, -score)


def test_a_step_that_is_not_finite_is_undone_and_not_saved(
    tmp_path: Path, saved: list[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    monkeypatch.setattr(warm_start, "Snapshot", kept)
    monkeypatch.setattr(warm_start, "find_non_finite", lambda _: ["policies/a"])
    with pytest.raises(RunError, match="step 1: policies/a did not stay finite"):
        gone_on(tmp_path, 2, 9.0)
    assert (kept.asked, saved) == (["take", "restore"], [])


def test_losses_are_those_of_the_team_and_of_each_agent() -> None:
    found = _build_metrics(SftLoss({"a": 3.0, "b": 2.0}, {"a": 1, "b": 4}), "sft/loss")
    assert found == {"sft/loss": 1.0, "agents/a/sft/loss": 3.0, "agents/b/sft/loss": 0.5}


def test_turns_are_known_by_whose_they_are_and_by_what_of_them_counts() -> None:
    action = make_action("a", policy="p", tokens=(4, 5))
    others = [
        make_action("b", policy="p", tokens=(4, 5)), make_action("a", policy="q", tokens=(4, 5)),
        make_action("a", policy="p", tokens=(4, 6)), make_action("a", policy="p", tokens=(4, 5), prompt=(5, 6, 8)),
        make_action("a", policy="p", tokens=(4, 5), marks=(TokenSource.TOOL, TokenSource.SAMPLED)),
    ]  # fmt: skip
    known = [ImitationData([build_sample(one), build_sample(action)], [], 2).digest for one in (action, *others)]
    known.append(ImitationData([build_sample(action)], [build_sample(action)], 2).digest)
    assert len(set(known)) == len(known)


class Place:
    """A stage of one policy, whose context is so long."""

    def __init__(self, context: int) -> None:
        self.run = SimpleNamespace(trained_policies=("p",))
        self.renderer = SimpleNamespace(context_length=lambda _: context)


def told(action: Action, weight: float = 1.0) -> Any:
    turn = TracedTurn("0", ("a",), (), "", weight=weight, location="t.jsonl:1")
    said = [(action.key, turn, len(action.tokens), "")]
    return SimpleNamespace(turns=said, episode=SimpleNamespace(is_scored=True, actions=[action]))


@pytest.mark.parametrize(("context", "fits"), [(5, True), (4, False)])
def test_a_turn_may_fill_its_context(context: int, fits: bool) -> None:
    action, tally, stage = make_action("a", policy="p", prompt=(1, 2, 3), tokens=(4, 5)), SkipCounter(), Place(context)
    assert list(iter_trainable_actions(told(action), stage, tally)) == [action] * fits  # type: ignore[arg-type]
    assert tally.count("turn") == (not fits)


def test_a_choice_of_weight_0_is_none() -> None:
    options = tuple(Option(np.array([number, 2], np.int32)) for number in (4, 5))
    action = replace(
        make_action("a", policy="p", tokens=(4, 2), log_probs=(0.0,)),
        choice=Choice(options, 0, np.zeros(2, np.float32)),
    )
    assert mask_zero_weight_turns(action, [(1.0, 1)]) is action
    left = mask_zero_weight_turns(action, [(0.0, 1)])
    assert (left.choice, left.num_decisions, len(left.log_probs)) == (None, 0, 0)
    tally, stage = SkipCounter(), Place(99)
    assert list(iter_trainable_actions(told(action, 0.0), stage, tally)) == []  # type: ignore[arg-type]
    assert list(tally.skipped) == ["turn: its weight is 0"]


def test_roles_of_the_command_join_those_of_the_recipe(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, "--sft.roles", "{ solver = 'actor', boss = 'actor' }")
    changes = RecipeWithTraces(tmp_path, (), roles=["thinker=reasoner", "boss=reasoner"]).build_changes(run)
    assert changes == {"sft.roles": {"solver": "actor", "boss": "reasoner", "thinker": "reasoner"}}
