"""Messages in other words: which are asked for, of whom, and what is made of the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from marft.agents.agents import Agent
from marft.agents.game import Attempt
from marft.agents.organizations import Chain
from marft.agents.team import Team
from marft.common.errors import EpisodeFailedError
from marft.common.token_data import Grammar
from marft.common.types import AgentProfile, Episode, Observation, SamplingParams, Task, Tool
from marft_lab.team_evaluation.message_ablation import (
    DONE_MESSAGE,
    INSTRUCTIONS,
    ParaphraseTeam,
    collect_messages,
    paraphrase_by_function,
    paraphrase_messages,
)
from marft_lab.team_evaluation.options import ComparisonOptions
from tests.benches import Plays, Told, attempt, run_of, told
from tests.episodes import make_action

TOOL = Tool("calculator", "It adds.", {})
TEAM = Team(
    tuple(
        Agent(
            AgentProfile(role, f"You are {role}.", guidance="Be short.", tools=(TOOL,)),
            role,
            SamplingParams(max_new_tokens=7, stop=("!",), grammar=Grammar("regex", "[a-z]+")),
            memory="own",
        )
        for role in "abc"
    ),
    Chain(),
)


@dataclass
class Paraphrases(Plays):
    """A player whose models say a text in other words by writing it backwards.

    Args:
        says: what is said in the place of a text.
        error: how an episode ends that does so, by task.
    """

    says: Callable[[str], str] = lambda text: f" {text[::-1]}\n"
    error: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[Mapping[str, str], list[Attempt], Team, Any]] = field(default_factory=list)

    @property
    def rollouts(self) -> Any:
        return SimpleNamespace(team=TEAM)

    def play_team(
        self, weights: Mapping[str, str], attempts: Sequence[Attempt], team: Team, told: Any
    ) -> list[Episode]:  # fmt: skip
        self.asked.append((weights, list(attempts), team, told))
        rewriter: Any = team.organization
        found = []
        for one in attempts:
            texts = rewriter.open(one.task, 0).texts[one.task.id]
            if one.task.id in self.error:
                texts = texts[:1]
            actions = tuple(make_action(rewriter.role, call=n, text=self.says(text)) for n, text in enumerate(texts))
            error = self.error.get(one.task.id, DONE_MESSAGE)
            found.append(attempt(one.task.id, actions=actions, status="failed", error=error))
        return found


def talk(task: str, *said: str, sample: int = 0) -> Episode:
    """Agents "a", "b" and "c" speak in turn; each hears those before it."""
    actions = [
        make_action("abc"[n % 3], index=n, call=n // 3, text=text, sees=tuple(f"0/{'abc'[m]}/0" for m in range(n % 3)))
        for n, text in enumerate(said)
    ]
    return attempt(task, sample=sample, actions=tuple(actions))


EPISODES = [
    talk("t", "plan t", "work t", "answer t"),
    talk("u", "plan u", "work u", "answer u"),
    talk("t", "other t", "work t", "answer t", sample=1),
]


def bench_of(wanted: Any, episodes: Sequence[Episode] = EPISODES, path: str = "/model", **player: Any) -> Told:
    run = run_of("a", "b", "c")
    run = run.model_copy(update={"models": {"base": run.models["base"].model_copy(update={"path": path})}})
    plays = Paraphrases([Task(task, "?") for task in "tuv"], lambda arm: episodes, **player)
    return told(run, plays.of, "tuv", options=ComparisonOptions(paraphrase=wanted), player=plays)


class TestMessages:
    def test_they_are_different_texts_of_those_whom_others_read_by_role_and_task(self) -> None:
        episodes = [*EPISODES, talk("v", " \n", "work v", "", "late"), talk("v", "", "work v", "")]
        assert collect_messages(bench_of("base", episodes).judge) == {
            "a": {"t": ["plan t", "other t"], "u": ["plan u"], "v": ["late"]},
            "b": {"t": ["work t"], "u": ["work u"], "v": ["work v"]},
        }


class TestWho:
    @pytest.mark.parametrize(
        ("wanted", "path", "note"),
        [
            ("", "/model", "messages are not paraphrased: name who does it (--paraphrase)"),
            (
                "base",
                "tiny",
                "the bundled tiny model cannot paraphrase: name a function (--paraphrase module:function)",
            ),
        ],
    )
    def test_nobody_is_asked_and_that_is_said(self, wanted: str, path: str, note: str) -> None:
        held = bench_of(wanted, path=path)
        assert paraphrase_messages(held.judge) == ({}, [])
        assert held.notes == [("ablation", note)]
        assert (held.player.played, held.expected) == ([], {})

    def test_a_team_of_which_one_agent_is_the_tiny_model_cannot_either(self) -> None:
        run = run_of("a", "b", "c", other_model="b")
        models = {"base": run.models["base"].model_copy(update={"path": "/model"}), "other": run.models["other"]}
        held = told(
            run.model_copy(update={"models": models}), lambda arm: EPISODES,
            options=ComparisonOptions(paraphrase="base")
        )  # fmt: skip
        assert paraphrase_messages(held.judge) == ({}, [])
        assert len(held.notes) == 1

    def test_a_function_is_asked_for_each_text_once_and_pairs_that_differ_are_shown(self) -> None:
        heard: list[str] = []

        def function(text: str) -> str:
            heard.append(text)
            return text if text.startswith("plan") else text.upper()

        held = bench_of(function, path="tiny")
        words, pairs = paraphrase_messages(held.judge)
        assert heard == ["plan t", "other t", "plan u", "work t", "work u"]
        assert words == {
            ("a", "plan t"): "plan t", ("a", "other t"): "OTHER T", ("a", "plan u"): "plan u",
            ("b", "work t"): "WORK T", ("b", "work u"): "WORK U",
        }  # fmt: skip
        assert pairs == [("other t", "OTHER T"), ("work t", "WORK T"), ("work u", "WORK U")]
        assert held.notes == []

    def test_a_function_may_be_named_and_six_pairs_are_shown(self) -> None:
        episodes = [talk("t", f"plan {n}", "", "") for n in range(8)]
        words, pairs = paraphrase_messages(bench_of("string:capwords", episodes).judge)
        assert words["a", "plan 7"] == "Plan 7"
        assert pairs == [(f"plan {n}", f"Plan {n}") for n in range(6)]

    def test_a_text_that_is_said_of_several_tasks_is_one(self) -> None:
        heard: list[str] = []
        paraphrase_by_function(lambda text: heard.append(text) or text, {"a": {"t": ["same", "one"], "u": ["same"]}})  # type: ignore[func-returns-value]
        assert heard == ["same", "one"]

    @pytest.mark.parametrize("function", ["no function", 3])
    def test_what_cannot_be_called_is_refused(self, function: Any) -> None:
        with pytest.raises(ValueError, match="cannot be called; give a function of a text"):
            paraphrase_by_function(function, {})

    def test_a_function_that_makes_no_text_is_refused(self) -> None:
        with pytest.raises(ValueError, match="it made a NoneType of 'plan t', not a text"):
            paraphrase_by_function(lambda text: None, {"a": {"t": ["plan t"]}})  # type: ignore[arg-type,return-value]


class TestModels:
    def test_the_untuned_base_says_what_each_agent_said(self) -> None:
        held = bench_of("base")
        words, pairs = paraphrase_messages(held.judge)
        assert words == {(role, text): text[::-1] for role, text in words}
        assert [*words] == [("a", "plan t"), ("a", "other t"), ("a", "plan u"), ("b", "work t"), ("b", "work u")]
        assert len(pairs) == 5
        assert isinstance(held.player, Paraphrases)
        (weights, attempts, team, said), (_, _, other, _) = held.player.asked
        assert weights == {"a": "base", "b": "base", "c": "base"}
        assert attempts == [Attempt(Task(task, "?"), "test/worth/paraphrase/a") for task in "tu"]
        texts = {"t": ["plan t", "other t"], "u": ["plan u"]}
        assert team.organization == ParaphraseTeam(role="a", texts=texts)
        assert said == [INSTRUCTIONS, "a", "a", texts]
        assert team.agents[1:] == TEAM.agents[1:]
        assert team.agents[0] == Agent(AgentProfile("a", INSTRUCTIONS), "a", SamplingParams(max_new_tokens=7))
        assert [one.profile.instructions == INSTRUCTIONS for one in other.agents] == [False, True, False]
        assert held.expected == {"ablation paraphrase a": 2, "ablation paraphrase b": 2}
        assert held.notes == []

    def test_a_policy_of_the_recipe_says_it_with_the_teams_weights(self) -> None:
        held = bench_of("c", path="tiny")
        paraphrase_messages(held.judge)
        assert isinstance(held.player, Paraphrases)
        assert [weights for weights, *_ in held.player.asked] == [{"a": "last", "b": "last", "c": "last"}] * 2
        assert [team.agents[n].policy for n, (_, _, team, _) in enumerate(held.player.asked)] == ["c", "c"]
        assert [said[1:3] for *_, said in held.player.asked] == [["a", "c"], ["b", "c"]]

    def test_a_policy_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"'d' is no policy of the recipe.*give one of base, a, b, c, or module"):
            paraphrase_messages(bench_of("d").judge)

    def test_an_empty_reply_leaves_the_text_as_it_was(self) -> None:
        words, pairs = paraphrase_messages(bench_of("base", says=lambda text: " \n").judge)
        assert words["a", "plan t"] == "plan t"
        assert pairs == []

    def test_where_it_fails_half_way_the_rest_stays_and_that_is_said(self) -> None:
        held = bench_of("base", error={"t": "boom"})
        words, _ = paraphrase_messages(held.judge)
        assert [*words] == [("a", "plan t"), ("a", "plan u"), ("b", "work t"), ("b", "work u")]
        assert held.notes == [
            ("ablation", "a: messages of t stay as they are: boom"),
            ("ablation", "b: messages of t stay as they are: boom"),
        ]


def test_the_rewriter_asks_its_agent_for_one_text_after_another_and_ends() -> None:
    asked: list[tuple[str, str]] = []

    def seat(role: str) -> Any:
        async def act(observation: Observation) -> Any:
            asked.append((role, observation.text))
            return make_action(role)

        return act

    agents: Any = {role: seat(role) for role in "ab"}
    rewriter = ParaphraseTeam(role="b", texts={"t": ["one", "two"], "u": ["three"]})
    opened = rewriter.open(Task("t", "?"), 3)
    assert opened == rewriter.model_copy(update={"task": "t"})
    with pytest.raises(EpisodeFailedError, match=DONE_MESSAGE):
        asyncio.run(opened.act(Observation("?"), agents))
    assert asked == [("b", "one"), ("b", "two")]
    opened.close()
