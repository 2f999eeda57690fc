"""What guards measure and on which actions: held-out text in rows, and inputs that are swapped between tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.common.errors import UserError
from marft.common.token_data import GrammarMasks, PromptReset, single_token_mask
from marft.common.types import Action, ActionKey, Choice, Episode, Observation, Option, Sample, Task, Transition
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.trainer import diagnostics as diagnostics_module
from marft.trainer.batching import Packing
from marft.trainer.diagnostics import Diagnostics
from marft.trainer.ranks.interface import SINGLE_RANK
from tests.episodes import make_action

BEGIN = 1


class Letters:
    """A tokenizer with one token for each character; it puts a token of its own at the start unless told not to."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BEGIN] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != BEGIN)


def diagnostics(
    *agents: tuple[str, bool], trained: Sequence[str] = (), context: int = 1000, path: str = "", tokens: int = 1000,
    capability: float = 0.1, probes: int = 4,
) -> Diagnostics:  # fmt: skip
    """Of agents, each with whether it gives the answer; all of them are trained unless it is said who is."""
    roles = [role for role, _ in agents]
    held_out = SimpleNamespace(path=path, tokens=tokens, every=1)
    run = SimpleNamespace(
        guards=SimpleNamespace(held_out_text=held_out, capability=capability, probes=probes, dependence=0.1),
        agents=[SimpleNamespace(role=role, answers=answers, policy=role) for role, answers in agents],
        trained_policies=tuple(trained or roles),
    )
    policy = SimpleNamespace(tokenizer=cast(PreTrainedTokenizerBase, Letters()), context=context)
    models = SimpleNamespace(policies=dict.fromkeys(roles, policy))
    packing = Packing(
        {}, {}, dict.fromkeys(roles, 1.0), "action-mean", "action", 99, constant_length=1, teammate_text=True
    )
    return Diagnostics(cast(RunSettings, run), cast(PolicyRegistry, models), packing, SINGLE_RANK)


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def said(agent: str, text: str = "yes", *, task: str = "t", index: int = 0, **changes: Any) -> Action:
    return make_action(agent, task=task, call=index, index=index, text=text, tokens=ids(text), **changes)


def played(*actions: Action, task: str = "t", sample: int = 0, **changes: Any) -> Episode:
    earned = (Transition(Observation("o"), 1.0),)
    return replace(Episode(Task(task, "o"), "train/0", sample, actions, "terminated", earned), **changes)


def text_file(tmp_path: Path, text: str) -> str:
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return str(tmp_path / "text.txt")


class TestHeldOutText:
    @staticmethod
    def rows(path: str, **changes: Any) -> list[str]:
        return [
            Letters().decode([*action.prompt, *action.tokens]) for action in diagnostics(("a", True), path=path, **changes)._text
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "rows"),
        [
            ("ab", ["ab"]), ("abcd", ["abcd"]), ("abcde", ["abcd"]), ("abcdef", ["abcd", "ef"]),
            ("abcdefghi", ["abcd", "efgh"]),
        ],
    )  # fmt: skip
    def test_is_cut_into_rows_that_fit_and_a_last_token_alone_predicts_nothing(
        self, text: str, rows: list[str], tmp_path: Path
    ) -> None:
        assert self.rows(text_file(tmp_path, text), context=4) == rows

    def test_is_read_as_far_as_the_recipe_says_with_nothing_put_before_it(self, tmp_path: Path) -> None:
        (action,) = diagnostics(("a", True), path=text_file(tmp_path, "abcdef"), tokens=5)._text
        assert (action.prompt.tolist(), action.tokens.tolist()) == ([ord("a")], [*ids("bcde")])

    def test_has_rows_with_names_of_their_own(self, tmp_path: Path) -> None:
        made = diagnostics(("a", True), ("b", False), path=text_file(tmp_path, "abcdef"), context=4)
        assert [action.key for action in made._text] == [
            ActionKey("held out", policy, number, 0, "", 0) for policy in "ab" for number in range(2)
        ]

    def test_is_not_read_where_no_guard_asks_for_it(self) -> None:
        assert diagnostics(("a", True), path="/nowhere", capability=0.0)._text == []

    @pytest.mark.parametrize("text", ["", "a"])
    def test_of_less_than_two_tokens_is_refused(self, text: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="has fewer than two tokens"):
            diagnostics(("a", True), path=text_file(tmp_path, text))

    def test_that_is_not_there_is_said_to_be_missing(self) -> None:
        with pytest.raises(UserError, match=r"cannot read /nowhere: .*No such file"):
            diagnostics(("a", True), path="/nowhere")


def test_text_of_teammates_is_not_scored_for_guards() -> None:
    assert not diagnostics(("a", True))._packing.teammate_text


@pytest.mark.parametrize(
    ("agents", "trained", "measured"),
    [
        ([("a", False), ("b", True)], "ab", ["b"]), ([("a", False)], "a", ["a"]), ([("a", True), ("b", True)], "a", ["a"]),
        ([("a", False), ("b", False)], "ab", []),
    ],
)  # fmt: skip
def test_dependence_is_measured_of_trained_agents_that_answer_or_act_alone(
    agents: list[tuple[str, bool]], trained: str, measured: list[str]
) -> None:
    assert diagnostics(*agents, trained=trained)._final_roles == measured


class TestPairs:
    @staticmethod
    def pairs(episodes: Sequence[Episode], count: int = 9) -> list[tuple[str, str]]:
        """Texts of each action and of the one that it is paired with."""
        found = diagnostics_module._pair_actions(episodes, "actor", count)
        return [(pair.action.text, pair.paired.text) for pair in found]

    def test_are_the_last_actions_at_a_task_and_at_the_next_one(self) -> None:
        batch = [
            played(said("actor", f"first {task}", task=task), said("actor", task, task=task, index=1), task=task)
            for task in "xyz"
        ]
        assert self.pairs(batch) == [("x", "y"), ("y", "z"), ("z", "x")]
        assert self.pairs(batch, 2) == [("x", "y"), ("y", "x")]
        assert self.pairs(batch, 1) == self.pairs(batch[:1]) == []

    def test_are_of_the_first_attempt_that_was_scored(self) -> None:
        batch = [
            played(said("actor", "failed"), status="failed"), played(said("actor", "first")),
            played(said("actor", "second"), sample=1), played(said("actor", "other", task="u"), task="u"),
        ]  # fmt: skip
        assert self.pairs(batch) == [("first", "other"), ("other", "first")]

    def test_are_of_that_agent_alone_and_of_tasks_at_which_it_acted(self) -> None:
        batch = [
            played(said("actor", task, task=task), said("critic", "no", task=task, index=1), task=task) for task in "xy"
        ]
        assert self.pairs([*batch, played(said("critic", task="z"), task="z")]) == [("x", "y"), ("y", "x")]

    def test_are_of_actions_with_one_prompt_and_with_tokens_to_decide_on(self) -> None:
        options = tuple(Option(np.array([n], np.int32)) for n in (5, 6))
        unusable = [
            replace(said("actor"), choice=Choice(options, 0, np.log(np.full(2, 0.5, np.float32)))),
            replace(said("actor"), restarts=(PromptReset(1, np.array([3], np.int32), 1, "it was cut"),)),
            replace(said("actor", "y"), masks=GrammarMasks.from_masks([0], [single_token_mask(5)])),
            said("actor", marks=(2, 2, 2)),
        ]
        other = played(said("actor", "other", task="u"), task="u")
        for action in unusable:
            assert self.pairs([played(action), other]) == []
        assert self.pairs([played(said("actor", "y")), other]) == [("y", "other"), ("other", "y")]


class TestSwappedMessages:
    @staticmethod
    def swapped(
        prompt: str, mine: dict[str, str], theirs: dict[str, str], *, before: tuple[int, ...] = ()
    ) -> str | None:
        """The prompt after the messages have been exchanged for those of another task."""
        action = said("actor", sees=tuple(mine), prompt=(*before, *ids(prompt)))
        pair = diagnostics_module._Pair(action, said("actor"), mine, theirs)
        found = pair.swap_messages(cast(PreTrainedTokenizerBase, Letters()))
        return None if found is None else "".join(map(chr, found))

    def test_stand_where_the_agent_read_its_own(self) -> None:
        assert self.swapped("Task. One! Two!", {"a": "One", "b": "Two"}, {"a": "Three", "b": "4"}) == "Task. Three! 4!"

    def test_are_none_where_it_read_none_or_the_other_has_none(self) -> None:
        assert self.swapped("Task.", {}, {}) is None
        assert self.swapped("Task. One!", {"a": "One"}, {}) is None
        assert self.swapped("Task. One!", {"a": "Two"}, {"a": "Three"}) is None

    def test_are_none_where_the_prompts_text_does_not_give_its_ids(self) -> None:
        assert self.swapped("Task. One!", {"a": "One"}, {"a": "Two"}, before=(BEGIN,)) is None


class TestContext:
    @pytest.mark.parametrize(("context", "read"), [(8, [5, 2]), (7, [2]), (5, [2]), (4, [])])
    def test_inputs_with_which_an_action_does_not_fit_are_left_out(
        self, context: int, read: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Prompts of two and of five tokens, before actions of three: with the other's inputs they have eight and five."""
        asked: list[int] = []

        def score(packing: Packing, samples: Sequence[Sample], ranks: object) -> dict[ActionKey, np.ndarray]:
            asked.extend(len(sample.action.prompt) for sample in samples)
            return {sample.action.key: np.zeros(3) for sample in samples}

        monkeypatch.setattr(diagnostics_module, "score_actions", score)
        batch = [
            played(said("actor", task=task, prompt=prompt), task=task) for task, prompt in (("x", (5,) * 2), ("y", (6,) * 5))
        ]  # fmt: skip
        metrics = diagnostics(("actor", True), context=context).measure(batch, 0)
        assert asked == read
        assert metrics == ({"agents/actor/dependence/inputs": -1.0} if read else {})
