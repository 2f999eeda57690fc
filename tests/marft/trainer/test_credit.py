"""Credits without a critic, and step-level GAE, against slow references; the identities that theory demands."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Episode, Fork, Observation, Task, Transition
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Level, Values
from marft.trainer.credit.agent_group import AgentGroup
from marft.trainer.credit.batch import Batch
from marft.trainer.credit.comam import CoMAM
from marft.trainer.credit.counterfactual import Counterfactual
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.grpo import GRPO
from marft.trainer.credit.magrpo import MAGRPO
from marft.trainer.credit.monte_carlo import MonteCarlo
from marft.trainer.credit.rae import RAE
from marft.trainer.credit.rloo import RLOO
from marft.trainer.credit.step_gae import StepGAE
from marft.trainer.credit.tree import Tree
from tests import references_credit as slow
from tests.episodes import episodes, make_action, values_for
from tests.nights import MANY

LEVELS = st.sampled_from(["action", "token"])
REWARDS = st.sampled_from([0.0, 0.0, 0.5, 1.0, -1.0])


@st.composite
def batches(draw: st.DrawFn, forks: bool = False) -> list[Episode]:
    """Attempts at one to three tasks; groups of any size, also of one; rewards that are often equal."""
    batch: list[Episode] = []
    for number, episode in enumerate(draw(st.lists(episodes(max_steps=3), min_size=1, max_size=6))):
        task = draw(st.sampled_from(["t", "u", "v"]))
        own = draw(st.booleans())
        transitions = tuple(
            Transition(t.observation, draw(REWARDS), {a: draw(REWARDS) for a in t.agent_rewards} if own else {})
            for t in episode.transitions
        )
        changed = replace(episode, task=Task(task, "o"), sample=number, transitions=transitions)
        if forks and episode.actions and draw(st.booleans()):
            origin = draw(st.sampled_from(batch)).name if batch else "elsewhere"
            changed = replace(changed, fork=Fork(origin, draw(st.sampled_from(episode.actions)).id))
        batch.append(changed)
    return batch


def by_action(credits: CreditOutput) -> list[float]:
    for row in credits.advantages:
        assert np.ptp(row) == 0.0 if len(row) else True
    return [float(row[0]) for row in credits.advantages]


def flat(rows: list) -> list:  # type: ignore[type-arg]
    return [x for row in rows for x in row]


def of_actions(batch: list[Episode], numbers: list[float]) -> list[float]:
    return [number for episode, number in zip(batch, numbers, strict=True) for _ in episode.actions]


@pytest.mark.slow
@given(batch=batches(), level=LEVELS, scale=st.booleans())
@settings(max_examples=MANY)
def test_grpo_equals_the_slow_reference(batch: list[Episode], level: Level, scale: bool) -> None:
    credits = GRPO(scale_rewards=scale).assign(CreditInputs(batch, level))
    np.testing.assert_allclose(by_action(credits), of_actions(batch, slow.grpo(batch, scale)), rtol=1e-7, atol=1e-9)
    assert [len(row) for row in credits.advantages] == CreditInputs(batch, level).sizes()


@pytest.mark.slow
@given(batch=batches(), level=LEVELS)
@settings(max_examples=MANY)
def test_rloo_equals_the_slow_reference(batch: list[Episode], level: Level) -> None:
    credits = RLOO().assign(CreditInputs(batch, level))
    np.testing.assert_allclose(by_action(credits), of_actions(batch, slow.rloo(batch)), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@given(batch=batches(), scale=st.booleans())
@settings(max_examples=MANY)
def test_agent_wise_equals_the_slow_reference(batch: list[Episode], scale: bool) -> None:
    credits = AgentGroup(scale_rewards=scale).assign(CreditInputs(batch, "action"))
    np.testing.assert_allclose(by_action(credits), flat(slow.agent_group(batch, scale)), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@given(first=batches(), second=batches(), decay=st.floats(0, 0.99))
@settings(max_examples=MANY)
def test_rae_equals_the_slow_reference_and_remembers(first: list[Episode], second: list[Episode], decay: float) -> None:
    credit = RAE(decay=decay)
    mine = [by_action(credit.assign(CreditInputs(first, "action")))]
    resumed = RAE(decay=decay)
    resumed.load_state_dict(credit.state_dict())
    mine.append(by_action(resumed.assign(CreditInputs(second, "action"))))
    for advantages, expected in zip(mine, slow.rae([first, second], decay), strict=True):
        np.testing.assert_allclose(advantages, flat(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@given(batch=batches(forks=True), scale=st.booleans(), compared=st.sampled_from(["state", "agent", "turn"]))
@settings(max_examples=MANY)
def test_trees_equal_the_slow_reference(batch: list[Episode], scale: bool, compared: Any) -> None:
    credits = Tree(scale_rewards=scale, group_by=compared).assign(CreditInputs(batch, "action"))
    expected = flat(slow.tree(batch, scale, compared))
    assert list(credits.trained) == [x is not None for x in expected]
    np.testing.assert_allclose(by_action(credits), [x or 0.0 for x in expected], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@given(batch=batches(forks=True), symmetric=st.booleans())
@settings(max_examples=MANY)
def test_counterfactuals_equal_the_slow_reference(batch: list[Episode], symmetric: bool) -> None:
    credits = Counterfactual(train_on_resamples=symmetric).assign(CreditInputs(batch, "action"))
    expected = flat(slow.counterfactual(batch, symmetric))
    assert list(credits.trained) == [x is not None for x in expected]
    np.testing.assert_allclose(by_action(credits), [x or 0.0 for x in expected], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@given(
    batch=batches(),
    scale=st.booleans(),
    fallback=st.sampled_from([0.0, 0.5, 1.0]),
    consistency=st.sampled_from(["spearman", "kendall", "ndcg"]),
    fixed=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([0.0, 0.5, 2.0])),
)
@settings(max_examples=MANY)
def test_comam_equals_the_slow_reference(
    batch: list[Episode], scale: bool, fallback: float, consistency: Any, fixed: dict[str, float]
) -> None:
    credit = CoMAM(scale_rewards=scale, fallback_weight=fallback, consistency=consistency, fixed_weights=fixed)
    expected = flat(slow.comam(batch, scale, fallback, consistency, fixed))
    np.testing.assert_allclose(by_action(credit.assign(CreditInputs(batch, "action"))), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@given(agents=st.integers(1, 3), samples=st.integers(2, 3), data=st.data(), scale=st.booleans())
@settings(max_examples=MANY)
def test_crossed_magrpo_equals_the_slow_reference(agents: int, samples: int, data: st.DataObject, scale: bool) -> None:
    """Every tuple of samples is scored: a sample is worth the mean over the tuples that hold it."""
    made = [[make_action("abc"[i], sample=s, index=i) for s in range(samples)] for i in range(agents)]
    earned: dict[tuple[int, ...], float] = {}
    batch = []
    for chosen in product(range(samples), repeat=agents):
        earned[chosen] = data.draw(REWARDS)
        aligned = len(set(chosen)) == 1
        batch.append(
            Episode(
                Task("t", "o"), "train/0", len(batch), tuple(made[i][s] for i, s in enumerate(chosen)), "terminated",
                (Transition(Observation("o"), earned[chosen]),), fork=None if aligned else Fork("x", ""),
            )
        )  # fmt: skip
    credits = MAGRPO(joint_mode="cross", scale_rewards=scale).assign(CreditInputs(batch, "action"))
    expected = []
    for chosen in earned:
        if len(set(chosen)) == 1:
            for i, s in enumerate(chosen):
                means = [
                    slow.mean([r for other, r in earned.items() if other[i] == sample]) for sample in range(samples)
                ]
                expected.append(slow.relative(means[s], means, scale))
    mine = [x for x, trained in zip(by_action(credits), credits.trained, strict=True) if trained]
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@given(data=st.data(), chain=st.sampled_from(["joint", "agent", "graph"]))
@settings(max_examples=MANY)
def test_monte_carlo_equals_the_slow_reference(data: st.DataObject, chain: str) -> None:
    """The reference sums discounted rewards forward from each decision."""
    level = data.draw(LEVELS)
    batch = data.draw(st.lists(episodes(), min_size=1, max_size=3))
    gammas = {name: data.draw(st.floats(0, 1)) for name in ("gamma_token", "gamma_agent", "gamma_step")}
    credits = MonteCarlo(successor=chain, **gammas).assign(CreditInputs(batch, level))  # type: ignore[arg-type]
    expected = [row for e in batch for row in slow.monte_carlo(e, chain, level, **gammas)]
    for mine, theirs in zip(credits.advantages, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@given(data=st.data(), kind=st.sampled_from(["first", "mean"]), gamma=st.floats(0, 1), lam=st.floats(0, 1))
@settings(max_examples=MANY)
def test_step_gae_equals_the_slow_reference(data: st.DataObject, kind: str, gamma: float, lam: float) -> None:
    level = data.draw(LEVELS)
    batch = data.draw(st.lists(episodes(), min_size=1, max_size=3))
    values = data.draw(values_for(batch, level))
    count = sum(len(e.actions) for e in batch)
    traces = data.draw(st.none() | st.lists(st.floats(0.5, 2.0), min_size=count, max_size=count))
    credit = StepGAE(value=kind, gamma_step=gamma, lambda_step=lam)  # type: ignore[arg-type]
    credits = credit.assign(CreditInputs(batch, level, values, traces=np.array(traces) if traces is not None else None))
    expected, first = [], 0
    for number, episode in enumerate(batch):
        last = first + len(episode.actions)
        expected += slow.step_gae(
            episode, [v.tolist() for v in values.actions[first:last]], values.bootstrap[number], kind, gamma, lam,
            traces[first:last] if traces is not None else None,
        )  # fmt: skip
        first = last
    np.testing.assert_allclose(by_action(credits), expected, rtol=1e-9, atol=1e-9)


@given(data=st.data(), level=LEVELS)
def test_step_gae_of_a_lone_agent_is_gae(data: st.DataObject, level: Level) -> None:
    batch = [
        replace(e, actions=tuple(a for a in e.actions if a.agent == "a"))
        for e in data.draw(st.lists(episodes(chain=True), min_size=1, max_size=3))
    ]
    batch = [replace(e, actions=tuple(replace(a, index=k) for k, a in enumerate(e.actions))) for e in batch]
    values = data.draw(values_for(batch, "action"))
    alone = [replace(e, transitions=tuple(Transition(t.observation, t.reward) for t in e.transitions)) for e in batch]
    by_step = StepGAE().assign(CreditInputs(alone, "action", values))
    by_decision = GAE(successor="joint").assign(CreditInputs(alone, "action", values))
    np.testing.assert_allclose(by_action(by_step), by_action(by_decision), atol=1e-9)


@pytest.mark.slow
@given(batch=batches())
def test_magrpo_of_one_turn_is_dr_grpo_on_the_joint_return(batch: list[Episode]) -> None:
    inputs = CreditInputs([_together(replace(e, transitions=e.transitions[:1])) for e in batch], "action")
    assert by_action(MAGRPO().assign(inputs)) == by_action(GRPO(scale_rewards=False).assign(inputs))


@pytest.mark.slow
@given(batch=batches())
def test_agent_wise_is_grpo_where_all_agents_act_and_earn_together(batch: list[Episode]) -> None:
    """With the team's reward alone and everybody in every episode, every agent's group is the task's group."""
    shared = [_together(episode) for episode in batch]
    inputs = CreditInputs(shared, "action")
    np.testing.assert_allclose(by_action(AgentGroup().assign(inputs)), by_action(GRPO().assign(inputs)), atol=1e-12)


@pytest.mark.slow
@given(batch=batches())
def test_trees_are_grpo_where_candidates_are_whole_episodes(batch: list[Episode]) -> None:
    """One action an episode, sampled from the same state: the candidates of the state are the attempts at the task."""
    single = [
        replace(
            e, actions=(make_action("a", task=e.task.id),), transitions=(Transition(Observation("o"), e.total_reward),),
            fork=Fork("root", "0/a/0"),
        )
        for e in batch
    ]  # fmt: skip
    inputs = CreditInputs(single, "action")
    np.testing.assert_allclose(by_action(Tree().assign(inputs)), by_action(GRPO().assign(inputs)), atol=1e-12)


class TestTraps:
    @pytest.mark.parametrize("credit", [GRPO(), RLOO(), Batch(), AgentGroup(), MAGRPO(scale_rewards=True), CoMAM()])
    def test_differences_in_kl_alone_are_no_signal(self, credit: Credit) -> None:
        """Scaled to unit deviation, a few 1e-5 of KL in the reward would be a full-size step."""
        batch = [_episode("t", 0.0, n) for n in range(3)]
        costs = [np.array([1e-5 * (n + 1)]) for n in range(3)]
        credits = credit.assign(CreditInputs(batch, "action", costs=costs))
        assert by_action(credits) == [0.0] * 3
        assert credits.metrics["zero_variance_groups"] == 1

    def test_a_team_is_paid_for_what_an_agent_earns_when_it_does_not_act(self) -> None:
        """b's decision led to what a earned after its own: along one sequence b has to hear of it."""
        actions = (make_action("a", step=0, index=0), make_action("b", step=1, index=1))
        paid = (Transition(Observation("o"), 0.0), Transition(Observation("o"), 0.0, {"a": -1.0}))
        episode = Episode(Task("t", "o"), "train/0", 0, actions, "terminated", paid)
        credits = MonteCarlo(gamma_step=1.0).assign(CreditInputs([episode], "action"))
        assert by_action(credits) == [-1.0, -1.0]

    def test_candidates_after_different_pasts_are_different_groups(self) -> None:
        """Nobody sees anybody, but what the first did decides what the second can earn."""
        batch = []
        for past, reward in ((1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)):
            actions = (make_action("a", tokens=(past,), index=0), make_action("b", tokens=(5 + len(batch),), index=1))
            transitions = (Transition(Observation("o"), reward),)
            fork = Fork("root", "0/b/0")
            batch.append(
                Episode(Task("t", "o"), "train/0", len(batch), actions, "terminated", transitions, fork=fork)
            )  # fmt: skip
        credits = Tree().assign(CreditInputs(batch, "action"))
        assert by_action(credits) == [0.0] * 8
        assert credits.metrics["zero_variance_groups"] == 2

    def test_groups_go_by_key_and_not_by_place(self) -> None:
        """An all-right and an all-wrong task, interleaved: a reshape would mix them and give everybody credit."""
        batch = [_episode(task, reward, n) for n, (task, reward) in enumerate([("r", 1.0), ("w", 0.0)] * 4)]
        credits = GRPO().assign(CreditInputs(batch, "action"))
        assert by_action(credits) == [0.0] * 8
        assert credits.metrics["groups"] == 2
        assert credits.metrics["zero_variance_groups"] == 2

    def test_sixteen_tasks_of_eight_are_sixteen_groups(self) -> None:
        batch = [_episode(f"t{n % 16}", float(n < 64), n) for n in range(128)]
        metrics = GRPO().assign(CreditInputs(batch, "action")).metrics
        assert (metrics["groups"], metrics["group_size"]) == (16, 8)

    def test_an_agent_that_speaks_often_is_one_member(self) -> None:
        """Call counts do not re-weigh the baseline."""
        chatty = _episode("t", 1.0, 0, calls=5)
        quiet = [_episode("t", 0.0, n) for n in (1, 2)]
        credits = AgentGroup(scale_rewards=False).assign(CreditInputs([chatty, *quiet], "action"))
        np.testing.assert_allclose(by_action(credits), [2 / 3] * 5 + [-1 / 3] * 2)

    def test_a_group_of_one_has_no_baseline(self) -> None:
        credits = RLOO().assign(CreditInputs([_episode("t", 1.0, 0)], "action"))
        assert by_action(credits) == [0.0]
        assert credits.metrics["singleton_groups"] == 1

    def test_a_lost_member_leaves_a_smaller_group(self) -> None:
        """An episode that could not be scored is not there: it is no reward of 0 in its group's mean."""
        batch = [_episode("t", 1.0, n) for n in range(3)]
        credits = GRPO().assign(CreditInputs(batch, "action"))
        assert by_action(credits) == [0.0] * 3
        assert credits.metrics["group_size_min"] == 3

    def test_crossed_samples_are_judged_by_all_their_tuples(self) -> None:
        """Two agents, two samples each: a's first sample is in two tuples, of returns 1 and 0, and so on."""
        a = [make_action("a", sample=s) for s in (0, 1)]
        b = [make_action("b", sample=s, index=1) for s in (0, 1)]
        returns = {(0, 0): 1.0, (1, 1): 0.0, (0, 1): 0.0, (1, 0): 1.0}
        batch = [
            Episode(
                Task("t", "o"), "train/0", i, (a[i], b[j]), "terminated", (Transition(Observation("o"), r),),
                fork=None if i == j else Fork("x", ""),
            )
            for (i, j), r in returns.items()
        ]  # fmt: skip
        credits = MAGRPO(joint_mode="cross").assign(CreditInputs(batch, "action"))
        mine = [x for x, trained in zip(by_action(credits), credits.trained, strict=True) if trained]
        assert mine == [0.0, 0.5, 0.0, -0.5]  # of (a0, b0), then (a1, b1): b0 always earned, b1 never did

    @pytest.mark.parametrize("level", ["action", "token"])
    def test_costs_come_off_the_reward_of_their_own_decision(self, level: Level) -> None:
        action = make_action(tokens=(1, 2, 3))
        episode = Episode(Task("t", "o"), "train/0", 0, (action,), "terminated", (Transition(Observation("o"), 1.0),))
        costs = [np.array([0.3]) if level == "action" else np.array([0.1, 0.2, 0.0])]
        zeros = Values([np.zeros_like(costs[0])])
        credits = GAE(lambda_token=1.0).assign(CreditInputs([episode], level, zeros, costs))
        np.testing.assert_allclose(credits.advantages[0], [0.7] if level == "action" else [0.7, 0.8, 1.0])
        assert Batch(whiten=False).assign(CreditInputs([episode], level, costs=costs)).advantages[0][
            0
        ] == pytest.approx(0.7)


def _episode(task: str, reward: float, sample: int, calls: int = 1) -> Episode:
    actions = tuple(make_action("a", call=c, index=c, task=task, sample=sample) for c in range(calls))
    transitions = (Transition(Observation("o"), reward),)
    return Episode(Task(task, "o"), "train/0", sample, actions, "terminated", transitions)


def _together(episode: Episode) -> Episode:
    actions = tuple(make_action(agent, index=k) for k, agent in enumerate("ab"))
    return replace(
        episode, actions=actions, transitions=tuple(Transition(t.observation, t.reward) for t in episode.transitions)
    )
