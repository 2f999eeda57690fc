"""Multi-agent GAE against the slow reference, and the identities that theory demands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Episode, Observation, Task, Transition
from marft.config.algorithms import PRESETS
from marft.config.interfaces.credit import CreditInputs, Level, Values, flatten_actions
from marft.rewards.shaping import mix_rewards
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.monte_carlo import MonteCarlo
from tests import references
from tests.episodes import episodes, make_action, values_for
from tests.nights import BY_NIGHT, MANY

FRACTION = st.floats(0, 1, allow_nan=False)
LEVELS: list[Level] = ["action", "token"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "level"),
    [
        ("joint", "token"), ("agent", "action"), ("graph", "token"), pytest.param("joint", "action", marks=BY_NIGHT),
        pytest.param("agent", "token", marks=BY_NIGHT), pytest.param("graph", "action", marks=BY_NIGHT),
    ],
)  # fmt: skip
@given(data=st.data())
@settings(max_examples=MANY)
def test_gae_equals_the_slow_reference(chain: str, level: Level, data: st.DataObject) -> None:
    batch = data.draw(st.lists(episodes(), min_size=1, max_size=3))
    values = data.draw(values_for(batch, level))
    names = ("gamma_token", "gamma_agent", "gamma_step", "lambda_token", "lambda_agent", "lambda_step")
    numbers = {name: data.draw(FRACTION) for name in names}
    numbers["adaptive_lambda"] = data.draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
    alpha = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    credits = GAE(successor=chain, lambda_critic=1.0, **numbers).assign(
        CreditInputs(mix_rewards(batch, alpha, 1.0), level, values)
    )  # type: ignore[arg-type]
    expected = []
    for number, episode in enumerate(batch):
        own = references.values_of(values, batch, number)
        s = references.Settings(chain=chain, alpha=alpha, **numbers)
        expected += references.gae(episode, own, values.bootstrap[number], s, level)
    assert len(expected) == len(credits.advantages)
    for mine, theirs in zip(credits.advantages, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@given(data=st.data())
def test_returns_are_advantages_with_the_critics_lambda_plus_values(level: Level, data: st.DataObject) -> None:
    batch = data.draw(st.lists(episodes(), min_size=1, max_size=3))
    values = data.draw(values_for(batch, level))
    credits = GAE(lambda_critic=0.3).assign(CreditInputs(batch, level, values))
    again = GAE(lambda_token=0.3, lambda_agent=0.3, lambda_step=0.3).assign(CreditInputs(batch, level, values))
    for returns, advantages, value in zip(credits.returns, again.advantages, values.actions, strict=True):
        np.testing.assert_allclose(returns, advantages + value, atol=1e-9)


@pytest.mark.slow
@given(data=st.data())
def test_a_chain_makes_the_graph_equal_the_joint_sequence(data: st.DataObject) -> None:
    batch = data.draw(st.lists(episodes(chain=True), min_size=1, max_size=3))
    values = data.draw(values_for(batch, "token"))
    joint = GAE(successor="joint", gamma_agent=0.9).assign(CreditInputs(batch, "token", values))
    graph = GAE(successor="graph", gamma_agent=0.9).assign(CreditInputs(batch, "token", values))
    for a, b in zip(joint.advantages, graph.advantages, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.slow
@given(data=st.data())
def test_without_dependencies_the_graph_equals_one_recursion_an_agent(data: st.DataObject) -> None:
    batch = data.draw(st.lists(episodes(sees_nothing=True), min_size=1, max_size=3))
    values = data.draw(values_for(batch, "action"))
    agent = GAE(successor="agent").assign(CreditInputs(batch, "action", values))
    graph = GAE(successor="graph").assign(CreditInputs(batch, "action", values))
    for a, b in zip(agent.advantages, graph.advantages, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.slow
@given(data=st.data())
def test_action_level_is_token_level_with_one_token(data: st.DataObject) -> None:
    batch = data.draw(st.lists(episodes(), min_size=1, max_size=2))
    short = [Episode(**{**_fields(e), "actions": tuple(_one_token(a) for a in e.actions)}) for e in batch]
    values = data.draw(values_for(short, "action"))
    by_action = GAE(gamma_agent=0.7).assign(CreditInputs(short, "action", values))
    by_token = GAE(gamma_agent=0.7, gamma_token=0.1).assign(CreditInputs(short, "token", values))
    for a, b in zip(by_action.advantages, by_token.advantages, strict=True):
        np.testing.assert_array_equal(a, b)


@given(data=st.data())
def test_with_all_lambdas_one_returns_are_monte_carlo(data: st.DataObject) -> None:
    """λ = 1 telescopes: the return of a decision of a terminated episode is what was earned from there on."""
    episode = data.draw(episodes(chain=True))
    ended = Episode(**{**_fields(episode), "status": "terminated", "bootstrap": {},
                       "transitions": tuple(Transition(t.observation, t.reward) for t in episode.transitions)})  # fmt: skip
    values = data.draw(values_for([ended], "action"))
    credits = GAE(gamma_agent=1.0, gamma_step=1.0, lambda_critic=1.0).assign(CreditInputs([ended], "action", values))
    earned = [t.reward for t in ended.transitions]
    for action, returns in zip(ended.actions, credits.returns, strict=True):
        assert returns[0] == pytest.approx(sum(earned[action.step :]), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@given(data=st.data())
def test_a_critic_is_warmed_up_on_whole_returns_whatever_its_lambda(level: Level, data: st.DataObject) -> None:
    batch = data.draw(st.lists(episodes(), min_size=1, max_size=3))
    values = data.draw(values_for(batch, level))
    short = GAE(lambda_critic=0.3).assign(CreditInputs(batch, level, values))
    whole = GAE(lambda_critic=1.0).assign(CreditInputs(batch, level, values))
    for a, b in zip(short.monte_carlo, whole.returns, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_no_credit_flows_from_one_episode_to_another() -> None:
    """A done flag shifted by one once let agents before the last lose their return, or gain the next episode's."""
    poor = _two_agent_episode(reward=0.0)
    rich = _two_agent_episode(reward=100.0)
    zeros = Values([np.zeros(1) for _ in range(4)])
    credits = GAE(gamma_agent=1.0, gamma_step=1.0).assign(CreditInputs([poor, rich], "action", zeros))
    assert [float(r[0]) for r in credits.returns] == [0.0, 0.0, 100.0, 100.0]


def test_every_agent_of_a_chain_gets_the_last_ones_reward() -> None:
    credits = GAE(gamma_agent=1.0, lambda_agent=1.0).assign(
        CreditInputs([_two_agent_episode(1.0)], "action", Values([np.zeros(1), np.zeros(1)]))
    )
    assert [float(a[0]) for a in credits.advantages] == [1.0, 1.0]


def test_the_first_of_two_agents_is_judged_by_the_reward_and_by_what_the_critic_expects_of_the_second() -> None:
    """As docs/algorithms.md says of `marft`, whose λ is 0.95 from agent to agent: Â₁ = λR + (1 − λ)V(s₂) − V(s₁)."""
    marft = GAE.model_validate({key: value for key, value in PRESETS["marft"]["credit"].items() if key != "name"})
    values = Values([np.array([0.3]), np.array([0.6])], [{}])
    advantages = marft.assign(CreditInputs([_two_agent_episode(1.0)], "action", values)).advantages
    assert advantages[0].item() == pytest.approx(0.95 * 1.0 + 0.05 * 0.6 - 0.3)
    assert advantages[1].item() == pytest.approx(1.0 - 0.6)


def test_the_next_state_is_valued_with_its_own_decision() -> None:
    """Not with a raw string or a constant: δ of the first agent uses V of the second agent's rollout observation."""
    values = Values([np.array([0.2]), np.array([0.7])])
    credits = GAE(gamma_agent=0.9, lambda_agent=0.0).assign(CreditInputs([_two_agent_episode(1.0)], "action", values))
    assert credits.advantages[0][0] == pytest.approx(0.9 * 0.7 - 0.2)
    assert credits.advantages[1][0] == pytest.approx(1.0 - 0.7)


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not() -> None:
    values = Values([np.zeros(1), np.zeros(1)], [{"b": 5.0}])
    ended = _two_agent_episode(1.0)
    cut = Episode(**{**_fields(ended), "status": "truncated", "bootstrap": {"b": np.array([3], np.int32)}})
    gae = GAE(gamma_step=0.5, lambda_agent=1.0)
    assert gae.assign(CreditInputs([cut], "action", values)).returns[1][0] == pytest.approx(1.0 + 0.5 * 5.0)
    none = Values(values.actions)
    assert gae.assign(CreditInputs([ended], "action", none)).returns[1][0] == pytest.approx(1.0)


def test_the_papers_discounts_leave_little_of_the_signal_at_token_level() -> None:
    """0.99^512 of a reward at the end reaches the first of 512 tokens; with γ_token = 1 all of it does."""
    action = make_action(tokens=tuple(range(512)))
    episode = Episode(Task("t", "o"), "train/0", 0, (action,), "terminated", (Transition(Observation("o"), 1.0),))
    zeros = Values([np.zeros(512)])
    paper = GAE(gamma_token=0.99, lambda_token=0.95).assign(CreditInputs([episode], "token", zeros)).advantages[0]
    vetted = GAE(gamma_token=1.0, lambda_token=1.0).assign(CreditInputs([episode], "token", zeros)).advantages[0]
    assert paper[0] == pytest.approx((0.99 * 0.95) ** 511)
    assert vetted[0] == 1.0


def test_observation_tokens_inside_an_action_are_jumped_over() -> None:
    """Only sampled tokens are decisions: tool tokens neither discount nor hold a value."""
    action = make_action(tokens=(1, 2, 3, 4), marks=(0, 1, 1, 0))
    episode = Episode(Task("t", "o"), "train/0", 0, (action,), "terminated", (Transition(Observation("o"), 1.0),))
    values = Values([np.zeros(int(action.sampled_mask.sum()))])
    advantages = GAE(gamma_token=0.5, lambda_token=1.0).assign(CreditInputs([episode], "token", values)).advantages[0]
    assert advantages.tolist() == [0.5, 1.0]


def _two_agent_episode(reward: float) -> Episode:
    plan = make_action("a", index=0)
    answer = make_action("b", index=1, sees=(plan.id,))
    return Episode(Task("t", "o"), "train/0", 0, (plan, answer), "terminated", (Transition(Observation("o"), reward),))


def _fields(episode: Episode) -> dict:  # type: ignore[type-arg]
    return {name: getattr(episode, name) for name in Episode.__slots__}


def _one_token(action):  # type: ignore[no-untyped-def]
    return make_action(
        action.agent, step=action.step, call=action.key.call, index=action.index, sees=action.sees, tokens=(8,)
    )


def test_rows_are_in_the_order_of_all_actions() -> None:
    batch = [_two_agent_episode(1.0), _two_agent_episode(2.0)]
    assert [a.agent for a in flatten_actions(batch)] == ["a", "b", "a", "b"]


def test_a_return_without_a_critic_is_discounted_between_steps_alone_unless_it_is_told() -> None:
    actions = tuple(make_action("ab"[n % 2], step=n // 2, index=n) for n in range(4))
    paid = (Transition(Observation("o"), 0.0), Transition(Observation("o"), 1.0))
    episode = Episode(Task("t", "o"), "train/0", 0, actions, "terminated", paid)
    returns = MonteCarlo().assign(CreditInputs([episode], "token")).advantages
    assert [row.tolist() for row in returns] == [[0.99, 0.99], [0.99, 0.99], [1.0, 1.0], [1.0, 1.0]]
