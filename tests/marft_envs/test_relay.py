"""Relay: nobody can answer alone, what comes through is what the rules say, and the script plays it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import JointAction, Step
from marft.config.load import load_recipe
from marft.evaluation.episode_metrics import episode_metrics
from marft_envs.env_check.episode_player import EpisodePlan, EpisodePlayer
from marft_envs.env_check.players import ScriptPlayer, StepInput
from marft_envs.env_check.records import AgentReply, EpisodeRecord
from marft_envs.env_check.target import CheckTarget, Limits
from marft_envs.relay.environment import Relay
from marft_envs.relay.puzzles import KEYS, code_length, decode_symbols, encode_values, transmit
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action
from tests.nights import NIGHT, some

FEW: dict[str, Any] = {"train_tasks": 40, "held_out_tasks": 5}
KINDS: dict[str, dict[str, Any]] = {
    "the default": {},
    "two that tell one": {"speakers": ["north", "east"], "values": 3},
    "a line": {"speakers": ["north", "east"], "values": 3, "topology": "line"},
    "a sum": {"answer": "sum", "values": 8},
    "a sum along a line of four": {
        "answer": "sum",
        "values": 50,
        "speakers": ["a", "b", "c"],
        "topology": "line",
        "size": 2,
    },
    "several symbols": {"size": 3, "values": 12},
    "an alphabet of two": {"alphabet": ["lo", "hi"]},
    "erased": {"noise": 0.2, "max_words": 6},
    "replaced": {"noise": 0.1, "max_words": 9, "noise_effect": "replace"},
    "dropped": {"noise": 0.2, "max_words": 6, "noise_effect": "drop"},
    "the sender pays": {"paid_by": "sender"},
}


def made(**keys: Any) -> Relay:
    return Relay.model_validate({**FEW, **keys})


def played(relay: Relay, skill: float, tasks: int = 20) -> list[EpisodeRecord]:
    """Training tasks, played by the script."""

    async def all_of_them() -> list[EpisodeRecord]:
        stage = EpisodePlayer(CheckTarget(relay), Limits())
        try:
            return [
                await stage.play_episode(
                    EpisodePlan(
                        task,
                        "train",
                        n,
                        "the script",
                        ScriptPlayer(relay.script(skill), CheckTarget(relay, no_step_messages=True), (), task, n),
                    )
                )
                for n, task in enumerate(relay.tasks("train")[:tasks])
            ]
        finally:
            stage.close()

    return asyncio.run(all_of_them())


def step_by_step(relay: Relay, *said: dict[str, str], seed: int = 0) -> list[Step]:
    """One task, in which these texts are said."""
    task = relay.tasks("train")[0]
    steps = list[Step]()

    async def whole() -> None:
        stage = EpisodePlayer(CheckTarget(relay), Limits())

        async def player(moment: StepInput) -> dict[str, AgentReply]:
            return {role: AgentReply(text) for role, text in said[moment.step].items()}

        try:
            play = await stage.play_episode(EpisodePlan(task, "train", seed, "somebody", player))
            assert play.is_valid, play.faults
            steps.extend(play.steps)
        finally:
            stage.close()

    asyncio.run(whole())
    return steps


def answered(relay: Relay, text: str, role: str = "south") -> JointAction:
    """What a team did in which one agent alone said something."""
    action = make_action(role, text=text)
    return JointAction(action if role == relay.answerer else None, (action,))


class TestTheScript:
    @pytest.mark.parametrize("kind", some(KINDS))
    def test_solves_it_where_it_plays_well(self, kind: str) -> None:
        plays = played(made(**KINDS[kind]), 1.0)
        assert all(play.is_valid for play in plays)
        assert sum(bool(play.success) for play in plays) >= 0.85 * len(plays)

    def test_hears_nothing_and_guesses_where_it_plays_badly(self) -> None:
        relay = made(train_tasks=200)
        rate = sum(bool(play.success) for play in played(relay, 0.0, 200)) / 200
        assert rate == pytest.approx(relay.guess_rate, abs=0.08)

    @pytest.mark.slow
    def test_a_team_of_the_recipe_tells_more_the_better_it_plays(self) -> None:
        run = load_recipe("relay", changes={"models.base.path": "tiny-tools"})
        told, solved = [], []
        for skill in (0.0, 0.85, 1.0):
            with ScriptedTeam(run, run.environment.script(skill)) as team:
                episodes = list(team.play(run.environment.tasks("validation")[: 400 if NIGHT else 100]))  # type: ignore[attr-defined]
            metrics = episode_metrics(episodes, ("north", "south"), lambda _: 0)
            told.append(metrics["agents/north/message_information"])
            solved.append(metrics["accuracy"])
        assert abs(told[0]) < 0.15
        assert told[0] + 0.1 < told[1] < told[2] - 1
        assert told[2] == pytest.approx(metrics["agents/north/hidden_entropy"], abs=0.2)
        assert solved[0] < 0.4 < solved[2] == 1.0


class TestNobodyCanAnswerAlone:
    @pytest.mark.parametrize("kind", [{}, {"answer": "sum"}])
    def test_the_part_of_one_says_nothing_of_the_answer(self, kind: dict[str, Any]) -> None:
        relay = made(**kind)
        drawn = [relay.generate_task(Random(n)).data for n in range(3000)]
        answers: dict[str, Counter[str]] = {}
        for data in drawn:
            own = data["own"].split(", ")
            place = (
                str([row.rpartition(" ")[2] for row in own].index(data["answer"][0]))
                if len(own) > 1
                else data["answer"][0]
            )
            answers.setdefault(data["parts"]["north"][0] if len(own) == 1 else "", Counter())[place] += 1
        for counts in answers.values():
            assert max(counts.values()) / counts.total() < relay.guess_rate + 0.06

    @pytest.mark.parametrize("keys", [{"answer": "lookup", "values": 2}, {"answer": "sum", "values": 3}])
    def test_a_task_is_its_parts_in_whatever_order_a_table_is_shown(self, keys: dict[str, Any]) -> None:
        drawn = [made(**keys).generate_task(Random(n)) for n in range(3000)]
        truths = [(str(one.data["parts"]), str(sorted(one.data["own"].split(", ")))) for one in drawn]
        both = {(one.content, truth) for one, truth in zip(drawn, truths, strict=True)}
        assert len(both) == len(set(truths)) == len({one.content for one in drawn})

    def test_each_value_is_as_likely_and_the_rate_of_guessing_follows(self) -> None:
        drawn = [made(answer="sum", values=4).generate_task(Random(n)).data for n in range(4000)]
        for part in ([data["own"] for data in drawn], [data["parts"]["north"][0] for data in drawn]):
            assert {value: count / 4000 for value, count in Counter(part).items()} == {
                str(value): pytest.approx(0.25, abs=0.03) for value in range(4)
            }
        assert made(answer="sum", values=4, size=2).guess_rate == 1 / 16
        assert made(speakers=["a", "b"], values=3, size=2).guess_rate == pytest.approx(1 / 81)

    def test_one_that_is_alone_hears_nothing_and_answers_at_once(self) -> None:
        relay = made(answerer_only=True, answerer="solver")
        plays = played(relay, 1.0)
        assert {len(play.steps) for play in plays} == {1}
        assert "From" not in plays[0].observations[0].full_text


def transmitted(text: str, random: Random | None = None, replacements: Sequence[str] = (), **limits: Any) -> str:
    """What comes through where only these limits and this noise are set."""
    return transmit(text, random or Random(0), Relay.model_construct(**{"max_words": 0, **limits}), replacements)


class TestWhatComesThrough:
    def test_words_beyond_the_limit_are_lost_and_noise_erases(self) -> None:
        assert transmitted("the blue one", max_words=2) == "the blue"
        assert transmitted("a b a b", alphabet=("a",), noise=1.0) == "? ?"

    @given(
        st.text(max_size=60),
        st.integers(0, 5),
        st.integers(1, 40),
        st.floats(0, 1),
        st.sampled_from(["erase", "drop", "replace"]),
    )
    def test_is_never_more_than_may(self, text: str, words: int, characters: int, noise: float, kind: Any) -> None:
        came = transmitted(
            text, replacements=("x",), max_words=words, max_chars=characters, noise=noise, noise_effect=kind
        ).split()
        assert len(came) <= (words or len(text.split()))
        assert sum(map(len, came)) <= max(characters, len(came))

    def test_noise_is_as_likely_as_it_says(self) -> None:
        came = transmitted("word " * 5000, Random(1), max_chars=10**6, noise=0.3).split()
        assert came.count("?") / len(came) == pytest.approx(0.3, abs=0.03)

    def test_words_of_no_alphabet_are_lost(self) -> None:
        assert transmitted("it is LO and hi", max_words=3, alphabet=("lo", "hi")) == "lo hi"

    def test_the_same_seed_hits_the_same_words(self) -> None:
        relay = made(noise=0.5, max_words=0)
        first, again, other = (
            step_by_step(relay, {"north": "a b c d e f g h"}, {"south": "x"}, seed=seed)[0].observation
            for seed in (1, 1, 2)
        )
        assert first == again != other

    @given(
        st.integers(2, 12), st.integers(0, 5), st.lists(st.integers(0, 11), min_size=1, max_size=4), st.integers(1, 3)
    )
    def test_what_is_encoded_is_decoded(self, values: int, symbols: int, told: list[int], copies: int) -> None:
        alphabet = [] if symbols < 2 else [f"s{n}" for n in range(symbols)]
        known = [KEYS[0][:values]] * len(told)
        said = [KEYS[0][place % values] for place in told]
        coded = encode_values(said, known, alphabet)
        assert len(coded) == len(told) * code_length(values, len(alphabet))
        assert decode_symbols(coded * copies, known, alphabet) == said

    def test_words_that_just_fit_come_through_whole(self) -> None:
        assert transmitted("ab cd e", max_chars=4) == "ab cd"

    @pytest.mark.parametrize(("alphabet", "others"), [([], KEYS[0][:6]), (["lo", "hi"], ("lo", "hi"))])
    def test_a_word_that_is_replaced_becomes_any_that_may_be_said(
        self, alphabet: list[str], others: tuple[str, ...]
    ) -> None:
        relay = made(noise=1.0, noise_effect="replace", max_words=0, max_chars=10_000, alphabet=alphabet)
        shown = step_by_step(relay, {"north": "hi " * 100}, {"south": "x"})[0].observation.views["south"]
        assert set(shown.rpartition(": ")[2].split()) == set(others)


class TestWhoHearsWhom:
    def test_along_a_line_each_hears_the_one_before_alone(self) -> None:
        relay = made(answer="sum", speakers=["a", "b", "c"], topology="line", values=100)
        steps = step_by_step(relay, {"a": "one"}, {"b": "two"}, {"c": "three"}, {"south": "x"})
        assert [set(step.observation.views) for step in steps[:3]] == [{"b"}, {"c"}, {"south"}]
        assert [step.observation.turn for step in steps[:3]] == [("b",), ("c",), ("south",)]
        heard = [view for step in steps[:3] for view in step.observation.views.values()]
        assert [view.splitlines()[1:] for view in heard] == [["From a: one"], ["From b: two"], ["From c: three"]]

    def test_what_is_hidden_is_the_part_of_whoever_spoke_and_words_are_counted_over_the_episode(self) -> None:
        relay = made(answer="sum", speakers=["a", "b"], topology="line", values=100)
        task = relay.tasks("train")[0]
        session = relay.start(task, 0)
        steps = [asyncio.run(session.step(answered(relay, "one", role))) for role in ("a", "b", "south")]
        hidden = [step.info.get("hidden") for step in steps]
        assert steps[-1].info["measures"] == {"words_said": 2.0, "words_passed": 2.0, "guessing_rate": 0.01}
        assert hidden == [{"a": task.data["parts"]["a"][0]}, {"b": task.data["parts"]["b"][0]}, None]

    def test_in_a_star_all_speak_at_once_and_the_answerer_hears_them(self) -> None:
        relay = made(speakers=["north", "east"], values=3)
        assert relay.tasks("train")[0].data["fewest_steps"] == 2
        first, _ = step_by_step(relay, {"north": "one", "east": "two"}, {"south": "x"})
        own = relay.tasks("train")[0].data["own"]
        assert first.observation.views == {"south": f"Part: {own}\nFrom north: one\nFrom east: two"}

    def test_thoughts_are_neither_heard_nor_paid_for(self) -> None:
        relay = made(word_cost=0.1)
        thinking = replace(make_action("north", text="well, red it is: red"), thought=len("well, red it is: "))
        step = asyncio.run(relay.start(relay.tasks("train")[0], 0).step(JointAction(None, (thinking,))))
        assert step.observation.views["south"].endswith("\nFrom north: red")
        assert step.reward == pytest.approx(-0.1)


class TestRewards:
    def test_words_cost_the_team(self) -> None:
        relay = made(word_cost=0.1)
        answer = " ".join(relay.tasks("train")[0].data["answer"])
        steps = step_by_step(relay, {"north": "one two three four"}, {"south": answer})
        assert [step.reward for step in steps] == [pytest.approx(-0.4), 1.0]
        assert steps[-1].success

    def test_or_whoever_says_them(self) -> None:
        first, *_ = step_by_step(made(paid_by="sender", word_cost=0.1), {"north": "one two"}, {"south": "x"})
        assert (first.reward, first.agent_rewards) == (0.0, {"north": pytest.approx(-0.2)})

    def test_all_words_together_cost_at_most_half_of_what_an_answer_is_worth(self) -> None:
        first, *_ = step_by_step(made(word_cost=1.0), {"north": "word " * 1000}, {"south": "x"})
        assert first.reward == -0.5

    def test_a_wrong_or_missing_answer_earns_nothing(self) -> None:
        for said in ({"south": "no code"}, {}):
            last = step_by_step(made(), {"north": ""}, said)[-1]
            assert (last.reward, last.success, last.terminated) == (0.0, False, True)

    def test_what_is_right_of_an_answer_is_progress_and_earns_nothing(self) -> None:
        relay = made(size=3, values=12)
        wanted = relay.tasks("train")[0].data["answer"]
        session = relay.start(relay.tasks("train")[0], 0)
        for symbols, progress in ((wanted[:2], 2 / 3), ([*wanted, "X"], 0.99), (wanted, 1.0)):
            session.steps = 1
            step = asyncio.run(session.step(answered(relay, " ".join(symbols))))
            assert step.info["progress"] == pytest.approx(progress)
            assert step.reward == float(symbols == wanted)

    def test_what_was_said_and_what_came_through_is_measured(self) -> None:
        relay = made(max_words=2)
        session = relay.start(relay.tasks("train")[0], 0)
        step = asyncio.run(session.step(answered(relay, "one two three", "north")))
        assert step.info["measures"] == {"words_said": 3.0, "words_passed": 2.0, "guessing_rate": 1 / 6}
        assert step.info["hidden"] == {"north": relay.tasks("train")[0].data["parts"]["north"][0]}

    def test_several_messages_together_cost_at_most_as_much(self) -> None:
        relay = made(speakers=["north", "east"], values=3, word_cost=1.0, paid_by="sender")
        first, *_ = step_by_step(relay, {"north": "one", "east": "two"}, {"south": "x"})
        assert first.agent_rewards == {"north": -0.5, "east": 0.0}
        line = made(answer="sum", speakers=["a", "b", "c"], topology="line", word_cost=0.1)
        said = [{"a": "one " * 3}, {"b": "two " * 3}, {"c": "three"}]
        rewards = [step.reward for step in step_by_step(line, *said, {"south": "x"})]
        assert rewards == pytest.approx([-0.3, -0.2, 0.0, 0.0])

    def test_the_answer_may_be_said_in_a_sentence(self) -> None:
        relay = made()
        code = relay.tasks("train")[0].data["answer"][0]
        assert step_by_step(relay, {"north": ""}, {"south": f"The answer is {code.lower()}."})[-1].success


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"speakers": []}, "at least one, and not the answerer"),
            ({"speakers": ["south"]}, "not the answerer"),
            ({"values": 20}, "at most 3 speakers"),
            ({"speakers": ["a", "b"], "values": 12}, "has 144 rows"),
            ({"alphabet": ["a"]}, "one word tells nothing"),
            ({"alphabet": ["a", "b"], "max_words": 2}, "it takes 3 words"),
            ({"size": 4}, "it takes 4 words"),
            ({"speakers": ["a", "b"], "values": 3, "topology": "line", "max_words": 1}, "it takes 2 words"),
        ],
    )
    def test_what_nobody_could_play(self, keys: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            made(**keys)

    def test_and_nothing_that_can_be_played(self) -> None:
        assert made(speakers=["a", "b", "c"], values=4).guess_rate == 1 / 64
        assert made(speakers=["a", "b"], values=3, topology="line", max_words=2).min_words == 2
        assert made(speakers=["a", "b"], answer="sum", topology="line", max_words=1).min_words == 1
        assert not list(made(answerer_only=True).problems(["south"]))

    def test_a_team_that_lacks_a_role_or_has_one_too_many(self) -> None:
        assert "'north' holds a part" in " ".join(made().problems(["south", "west"]))
        assert "'west' holds no part" in " ".join(made().problems(["south", "west"]))
        assert not list(made().problems(["south", "north"]))


def test_who_has_no_part_in_a_step_is_not_heard() -> None:
    steps = step_by_step(made(), {"south": "K", "west": "K"}, {"north": "K"})
    assert "From north: (nothing)" in steps[0].observation.full_text
    assert not steps[-1].success


def test_no_action_at_all_is_an_answer_too() -> None:
    relay = made()
    session = relay.start(relay.tasks("train")[0], 0)

    async def silently() -> Step:
        await session.reset()
        await session.step(JointAction())
        return await session.step(JointAction())

    assert asyncio.run(silently()).reward == 0.0
