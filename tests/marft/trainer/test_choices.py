"""Enumerated actions: chosen by normalised log-probability, recorded whole, and trained like any other action."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.agents.organizations import Orchestrated, gather_actions
from marft.agents.play import play, play_all
from marft.common.types import (
    Choice,
    Episode,
    JointAction,
    Observation,
    Option,
    Sample,
    SamplingParams,
    Task,
    Transition,
)
from marft.config.interfaces.credit import CreditInputs, Level
from marft.config.interfaces.organization import Agents, Organization
from marft.inference.chat_messages import ChatFormat
from marft.inference.choice_sampling import ChoiceRequest, choose, score_options
from marft.inference.renderer import ChatRenderer
from marft.models.backbone import Backbone
from marft.models.choice_distribution import ChoiceSets, compute_entropies
from marft.models.log_probs import IDENTITY, LogitTransform
from marft.rewards.shaping import penalize_overlong
from marft.rollout.fork_plans import play_counterfactuals
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.batching import normalizer
from marft.trainer.critic import critic_input
from marft.trainer.train import train
from tests.episodes import make_action
from tests.fakes import FakeEngine, Script, ends, game
from tests.helpers import settings as recipe
from tests.marft.trainer.test_updates import (
    _log_probs,
    algorithm,
    assert_equal,
    double,
    gradients,
    packing,
    random_samples,
)
from tests.nights import BY_NIGHT, MANY

__all__ = ["double"]  # a fixture
NUMBER = st.floats(-4, 0, allow_nan=False)
OPTION = st.tuples(st.lists(NUMBER, min_size=1, max_size=3), st.floats(1, 4))
LISTS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=3)


def slow(menu: list[tuple[list[float], float]]) -> list[float]:
    scores = [sum(tokens) / z for tokens, z in menu]
    log_total = math.log(sum(math.exp(score) for score in scores))
    return [score - log_total for score in scores]


def menus_of(lists: list[list[tuple[list[float], float]]]) -> ChoiceSets:
    return ChoiceSets.from_lengths(
        [[len(tokens) for tokens, _ in menu] for menu in lists], [[z for _, z in menu] for menu in lists],
        torch.device("cpu"),
    )  # fmt: skip


@pytest.mark.slow
@given(lists=LISTS)
@settings(max_examples=MANY)
def test_the_distribution_equals_the_slow_reference(lists: list[list[tuple[list[float], float]]]) -> None:
    flat = torch.tensor([x for menu in lists for tokens, _ in menu for x in tokens], dtype=torch.float64)
    table = menus_of(lists).log_softmax(flat)
    for row, spread, menu in zip(table, compute_entropies(table), lists, strict=True):
        expected = slow(menu)
        np.testing.assert_allclose(row[: len(menu)].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert row[len(menu) :].isinf().all()
        assert spread.item() == pytest.approx(-sum(math.exp(x) * x for x in expected), abs=1e-5)


@pytest.mark.slow
@given(lists=LISTS)
@settings(max_examples=MANY)
def test_gradients_are_right_by_finite_differences(lists: list[list[tuple[list[float], float]]]) -> None:
    values = [x for menu in lists for tokens, _ in menu for x in tokens]
    flat = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    choice_sets = menus_of(lists)
    choice_sets.log_softmax(flat)[:, 0].sum().backward()
    assert flat.grad is not None
    h = 1e-5
    for place in range(len(values)):
        moved = []
        for step in (h, -h):
            shifted = torch.tensor(values, dtype=torch.float64)
            shifted[place] += step
            moved.append(choice_sets.log_softmax(shifted)[:, 0].sum().item())
        assert flat.grad[place].item() == pytest.approx((moved[0] - moved[1]) / (2 * h), rel=1e-4, abs=1e-6)


class TestTheEngine:
    options = (
        Option(np.array([7, 8], np.int32), 2.0),
        Option(np.array([9], np.int32)),
        Option(np.array([7, 9, 2], np.int32)),
    )

    def sums(self, backbone: Backbone, adapter: str | None, temperature: float = 1.0) -> list[float]:
        """By a forward for each option, over the whole vocabulary."""
        from marft.trainer.scoring import score_actions

        found, temperatures = list[float](), {"a": temperature}
        for option in self.options:
            said = make_action("a", prompt=(5, 6), tokens=tuple(option.tokens.tolist()))
            pack = replace(
                packing(backbone), backbones={"a": backbone}, adapters={"a": adapter}, temperatures=temperatures
            )
            found.append(float(score_actions(pack, [Sample(said, 1.0, np.zeros(1))])[said.key].sum()))
        return found

    def scores(self, backbone: Backbone, adapter: str | None) -> list[float]:
        sums = self.sums(backbone, adapter)
        found = [log_prob / option.normaliser for log_prob, option in zip(sums, self.options, strict=True)]
        total = math.log(sum(map(math.exp, found)))
        return [x - total for x in found]

    @pytest.mark.parametrize("limit", [8192, 10], ids=["in one forward", "in one each"])
    def test_options_are_weighed_by_the_probability_of_all_their_tokens(
        self, double: Backbone, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marft.inference.choice_sampling.PREFILL_TOKENS", limit)
        prompt, options = np.array([5, 6], np.int32), self.options
        asked = [
            ChoiceRequest(adapter, prompt, options[:count], SamplingParams(temperature=temperature), 0.5)
            for adapter, temperature, count in (("one", 1.0, 3), (None, 0.7, 2), ("two", 0.0, 3))
        ]
        found = score_options(double, asked)
        for request, log_probs in zip(asked, found, strict=True):
            expected = self.sums(double, request.adapter, request.sampling.temperature or 1.0)
            np.testing.assert_allclose(log_probs, expected[: len(request.options)], atol=1e-5)
        with pytest.raises(ValueError, match="no adapter called 'nobody'"):
            score_options(double, [replace(asked[0], adapter="nobody")])

    def test_a_request_takes_what_is_read_of_its_options(self) -> None:
        """The prompt before each of them, and all but their last tokens, after which nothing is asked."""
        request = ChoiceRequest(None, np.array([5, 6], np.int32), self.options, SamplingParams(), 0.5)
        assert request.tokens == (2 + 1) + (2 + 0) + (2 + 2)

    @pytest.mark.parametrize("shape", [IDENTITY, LogitTransform(0.5, 3.0)], ids=["plain", "capped"])
    @pytest.mark.parametrize("adapter", [None, "one"])
    def test_options_are_scored_as_one_by_one(
        self, double: Backbone, adapter: str | None, shape: LogitTransform
    ) -> None:
        """As the learner scores them, whatever the model does to its logits."""
        double.logit_transform = shape
        prompt = np.array([5, 6], np.int32)
        expected = self.scores(double, adapter)
        edges = np.cumsum(np.exp(expected))
        for uniform in (0.0, 0.3, 0.6, 0.999):
            choice = choose(double, [ChoiceRequest(adapter, prompt, self.options, SamplingParams(), uniform)])[0]
            np.testing.assert_allclose(choice.log_probs, expected, atol=1e-5)
            assert choice.chosen == int(np.searchsorted(edges, uniform, side="right"))
        greedy = choose(double, [ChoiceRequest(adapter, prompt, self.options, SamplingParams(temperature=0.0), 0.5)])[0]
        assert greedy.chosen == int(np.argmax(expected))
        for limited in (SamplingParams(top_k=1), SamplingParams(top_p=1e-6)):  # only frozen agents may
            chosen = {
                choose(double, [ChoiceRequest(adapter, prompt, self.options, limited, u)])[0].chosen
                for u in (0.0, 0.99)
            }
            assert chosen == {greedy.chosen}

    @pytest.mark.parametrize("changed", ["temperature", "top_p", "top_k"])
    def test_equal_lists_under_other_limits_are_drawn_as_if_each_were_alone(
        self, double: Backbone, changed: str
    ) -> None:
        limits: dict[str, tuple[Any, ...]] = {"temperature": (0.2, 1.0, 3.0), "top_p": (1e-6, 1.0), "top_k": (1, 0)}
        prompt, settings = np.array([5, 6], np.int32), [SamplingParams(**{changed: limit}) for limit in limits[changed]]
        asked = [ChoiceRequest("one", prompt, self.options, one, u) for u in (0.01, 0.5, 0.99) for one in settings]
        alone = [choose(double, [request])[0] for request in asked]
        for one, choice in zip(alone, choose(double, asked), strict=True):
            np.testing.assert_allclose(choice.log_probs, one.log_probs, atol=1e-6)
            assert choice.chosen == one.chosen
        differs = {(tuple(one.log_probs.tolist()) if changed == "temperature" else one.chosen) for one in alone}
        assert len(differs) > 1, "or nothing could be mixed up"

    def test_many_requests_are_answered_in_their_order(self, double: Backbone) -> None:
        choice_sets = [
            ChoiceRequest(
                adapter, np.array(prompt, np.int32), self.options[:count], SamplingParams(temperature=0.7), 0.4
            )
            for adapter, prompt, count in (("two", [5, 6], 3), (None, [5], 1), ("one", [4, 4, 4], 2))
        ]
        together = choose(double, choice_sets)
        for menu, choice in zip(choice_sets, together, strict=True):
            alone = choose(double, [menu])[0]
            np.testing.assert_allclose(choice.log_probs, alone.log_probs, atol=1e-6)
            assert (choice.chosen, len(choice.log_probs)) == (alone.chosen, len(menu.options))


def mixed(backbone: Backbone, level: Level) -> list[Sample]:
    """Written actions, and ones that were chosen from two or three options."""
    random = np.random.default_rng(5)
    samples = []
    for number, sample in enumerate(random_samples(backbone, level, count=6)):
        if number % 2:
            samples.append(sample)
            continue
        options = tuple(
            Option(random.integers(3, 100, random.integers(1, 4)).astype(np.int32), float(random.integers(1, 3)))
            for _ in range(2 + number % 3)
        )
        logs = np.log(np.full(len(options), 1 / len(options), np.float32))
        choice = Choice(options, number % len(options), logs)
        tokens = options[choice.chosen].tokens
        action = replace(
            sample.action, tokens=tokens, marks=np.zeros(len(tokens), np.uint8), log_probs=logs[:1], choice=choice
        )
        samples.append(Sample(action, normalizer(action, "tokens"), sample.advantages[:1]))
    return samples


@pytest.mark.parametrize("level", ["action", "token"])
def test_the_loss_equals_the_slow_reference_however_it_is_cut(double: Backbone, level: Level) -> None:
    from tests import references

    samples = mixed(double, level)
    pack = packing(double, level, "action-mean" if level == "action" else "token-mean")
    whole, metrics = gradients(double, samples, pack, algorithm(level=level))
    of_policy = {p: [s for s in samples if s.action.policy == p] for p in ("one", "two")}
    expected = 0.0
    for mine in of_policy.values():
        for sample in mine:
            action = sample.action
            if action.choice:
                table = []
                for option in action.choice.options:
                    said = replace(action, tokens=option.tokens, marks=np.zeros(len(option.tokens), np.uint8),
                                   log_probs=np.zeros(len(option.tokens), np.float32), choice=None)  # fmt: skip
                    table.append((_log_probs(double, replace(sample, action=said)), option.normaliser))
                now = [slow(table)[action.choice.chosen]]
            else:
                now = _log_probs(double, sample)
            old, advantages = [float(x) for x in action.log_probs], [float(x) for x in sample.advantages]
            if level == "action":
                ratio = references.action_ratio(now, old, sample.normalizer)
                rows = [(math.log(ratio), 0.0, advantages[0])]
                weight = 1 / len(mine)
            else:
                rows = list(zip(now, old, advantages, strict=True))
                weight = 1 / sum(s.action.num_decisions for s in mine)
            expected += weight * sum(references.ppo_term(*row, 0.2, 0.2, 3.0) for row in rows)
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-4)
    for tokens in (1, 40):
        assert_equal(
            whole, gradients(double, samples, replace(pack, tokens_per_batch=tokens), algorithm(level=level))[0]
        )


def test_a_choice_is_one_decision_at_any_level() -> None:
    choice = Choice((Option(np.array([1, 2], np.int32)), Option(np.array([3], np.int32))), 0, np.zeros(2, np.float32))
    action = replace(make_action(tokens=(1, 2), log_probs=(-0.5,), marks=(0, 0)), choice=choice)
    episode = Episode(Task("t", "o"), "s", 0, (action,), "terminated")
    assert [CreditInputs([episode], level).sizes() for level in ("action", "token")] == [[1], [1]]
    assert critic_input(action, "token").positions.tolist() == [2]
    assert normalizer(action, "words") == 1.0


class Chooser(Organization):
    """The first agent chooses who answers."""

    twice: bool = False

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        names = ["actor", "actor"] if self.twice else ["actor", "reasoner"]
        chosen = await agents.reasoner.choose(observation, names)
        return JointAction(answer=await agents[chosen.text](observation, sees=[chosen]))


@pytest.mark.parametrize("level", ["action", "token"])
def test_choices_are_recorded_and_trained(level: str, tmp_path: Path) -> None:
    run = recipe(
        "tiny", tmp_path, "--team.organization", "tests.marft.trainer.test_choices:Chooser", "--algorithm.level", level,
        "--algorithm.entropy_coefficient", "0.01", "--algorithm.kl.coefficient", "0.01",
    )  # fmt: skip
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    chosen = [e.actions[0] for e in read_episodes(folder.episodes / "step_000001.parquet")]
    assert all(a.choice and a.text in ("actor", "reasoner") and len(a.log_probs) == 1 for a in chosen)
    choice = chosen[0].choice
    assert choice
    assert np.exp(choice.log_probs).sum() == pytest.approx(1.0, abs=1e-5)
    rows = folder.read_metrics()
    assert rows[0]["log_prob_difference_max"] < 1e-4
    assert all(math.isfinite(row["policy_loss"]) for row in rows)


def test_a_list_that_names_something_twice_fails_the_episode(tmp_path: Path) -> None:
    g = game(Script([ends()]), "reasoner", "actor", organization=Chooser(twice=True))
    episode = asyncio.run(play(g, Attempt(Task("t", "o"), "train/0")))
    assert episode.status == "failed"
    assert "options must differ" in episode.error


class TestOrchestrated:
    def played(self, say: Any, **settings: Any) -> Episode:
        engine = FakeEngine(say)
        g = game(Script([ends()]), "router", "a", "b", organization=Orchestrated(**settings), engine=engine)
        return asyncio.run(play(g, Attempt(Task("t0", "begin"), "train/0")))

    def test_the_router_calls_and_stops(self) -> None:
        def say(key: Any, prompt: str) -> str:
            return ["b", "a", "stop"][key.call] if key.agent == "router" else f"{key.agent} said"

        episode = self.played(say)
        assert episode.status == "terminated", episode.error
        assert [a.id for a in episode.actions] == ["0/router/0", "0/b/0", "0/router/1", "0/a/0", "0/router/2"]
        assert episode.actions[2].sees == ("0/b/0",)
        assert episode.actions[3].sees == ("0/b/0",)

    def test_it_also_chooses_what_the_next_one_sees_and_is_stopped_in_the_end(self) -> None:
        def say(key: Any, prompt: str) -> str:
            return (
                ["a, seeing nothing", "b, seeing nothing", "a, seeing last"][key.call] if key.agent == "router" else "x"
            )

        episode = self.played(say, views=("nothing", "last"), max_calls=3, allow_stop=False)
        assert episode.status == "terminated", episode.error
        assert [a.sees for a in episode.actions if a.agent != "router"] == [(), (), ("0/b/0",)]
        assert len(episode.actions) == 6

    def test_nobody_is_asked_where_there_is_nothing_to_choose(self) -> None:
        g = game(Script([ends()]), "router", "a", organization=Orchestrated(max_calls=1))
        episode = asyncio.run(play(g, Attempt(Task("t0", "begin"), "train/0")))
        assert [a.id for a in episode.actions] == ["0/a/0"]

    def test_forks_of_a_router_go_wherever_its_new_choice_leads(self) -> None:
        def say(key: Any, prompt: str) -> str:
            first = "b" if "fork/0/router/0" in key.stream else "a"
            return [first, "stop"][key.call] if key.agent == "router" else f"{key.agent} said"

        g = game(Script([ends()]), "router", "a", "b", organization=Orchestrated(), engine=FakeEngine(say))

        def play_many(attempts: Any) -> list[Episode]:
            return asyncio.run(play_all(g, attempts, 8))

        attempts = [Attempt(Task("t0", "begin"), "train/0")]
        played = play_many(attempts)
        forks = play_counterfactuals(play_many, attempts, played, 1, ("router",))
        assert [fork.status for fork in forks] == ["terminated"] * 2, forks[0].error
        assert [a.id for a in forks[0].actions] == ["0/router/0", "0/b/0", "0/router/1"]
        assert forks[0].actions[-1].key.stream != "train/0"  # the router saw something else, and chose anew


def test_options_end_as_a_turn_does_and_need_to(tiny_tokenizer: Any) -> None:
    ends, endless = ChatFormat(tiny_tokenizer, 99, {}, stop_ids=(2, 3)), ChatFormat(tiny_tokenizer, 99, {})
    renderer = ChatRenderer({"p": ends, "q": endless})
    assert renderer.tokenize_option("p", "a").tolist() == [*tiny_tokenizer.encode("a", add_special_tokens=False), 2]
    with pytest.raises(ValueError, match="no end-of-turn token"):
        renderer.tokenize_option("q", "a")


def test_no_turn_begins_with_a_choice_and_long_options_cost_nothing() -> None:
    class Wrong(Organization):
        async def act(self, observation: Observation, agents: Agents) -> JointAction:
            chosen = await agents.a.choose(observation, ["a", "bb"])
            return JointAction(answer=await agents.b(observation, begins=chosen))

    g = game(Script([ends()]), "a", "b", organization=Wrong(), engine=FakeEngine(lambda key, _: "bb"))
    episode = asyncio.run(play(g, Attempt(Task("t0", "begin"), "train/0")))
    assert episode.status == "failed"
    assert "no turn can begin with it" in episode.error
    chosen = replace(episode, transitions=(Transition(Observation("o"), 1.0),))
    assert penalize_overlong([chosen], {"a": 1, "b": 1}, 1)[0].transitions[0].agent_rewards == {}


class OneFails(Organization):
    """Two at once, of which one raises on some tasks."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        async def fails() -> Any:
            raise RuntimeError("boom")

        odd = len(observation.text) % 2 == 1
        actions = await gather_actions(agents.reasoner(observation), fails() if odd else agents.actor(observation))
        return JointAction(answer=actions[-1])


class Leaves(Organization):
    """Starts what it does not wait for."""

    async def act(self, observation: Observation, agents: Agents) -> Any:
        self._left = asyncio.ensure_future(agents.reasoner(observation))
        await agents.actor(observation)
        return None if observation.text.endswith("7 =") else JointAction()


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("organization", ["OneFails", "Leaves"])
def test_an_organization_that_leaves_things_undone_loses_only_its_episodes(organization: str, tmp_path: Path) -> None:
    run = recipe(
        "tiny", tmp_path, "--team.organization", f"tests.marft.trainer.test_choices:{organization}", "--training.steps", "4",
        "--rollout.tasks_per_step", "4", "--algorithm.critic.kind", "none", "--algorithm.credit", "{ name = 'batch' }",
        "--agents.reasoner.sampling.max_new_tokens", "24",
    )  # fmt: skip
    folder = RunFolder.create(run)
    assert train(run, folder).step == 4
