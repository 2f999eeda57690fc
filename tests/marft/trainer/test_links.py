"""How decisions follow each other and who is paid what, case by case: steps in which nobody acts, sights of earlier
steps, detours, rewards of those who are silent. (`test_gae.py` draws such cases at random.)"""

from __future__ import annotations

import numpy as np
import pytest

from marft.common.types import Action, Episode, Observation, Task, Transition
from marft.config.interfaces.credit import CreditInputs, Level, Values, flatten_actions
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.links import backward_sum, build_links
from marft.trainer.credit.monte_carlo import MonteCarlo
from tests import references
from tests.episodes import make_action

Said = tuple[str, int, tuple[str, ...], int]  # agent, step, ids of what it sees, tokens


def episode(said: list[Said], rewards: list[float], own: dict[int, dict[str, float]], ends: str = "") -> Episode:
    actions: list[Action] = []
    for agent, step, sees, size in said:
        call = sum(a.agent == agent and a.step == step for a in actions)
        actions.append(make_action(agent, step=step, call=call, index=len(actions), sees=sees, tokens=(9,) * size))
    transitions = tuple(Transition(Observation("o"), r, own.get(t, {})) for t, r in enumerate(rewards))
    bootstrap = {agent: np.array([1], np.int32) for agent in ends}
    status = "truncated" if ends else "terminated"
    return Episode(Task("t", "o"), "train/0", 0, tuple(actions), status, transitions, bootstrap=bootstrap)


# nobody acts in the first step, nor in the third and fourth; b sees a's message of two steps before, a nothing of it
SILENT_STEPS = episode(
    [("a", 1, (), 2), ("b", 1, ("1/a/0",), 3), ("a", 4, ("1/b/0",), 1), ("b", 4, ("1/a/0",), 2), ("c", 4, ("4/b/0",), 1)],
    [0.5, 1.0, -2.0, 0.25, 3.0, 0.75],
    {1: {"a": 0.3, "c": 7.0}, 2: {"a": -1.0, "b": 2.0}, 3: {"a": 0.7}, 5: {"a": 0.9, "b": 0.4, "d": 5.0}},
    ends="abc",
)  # fmt: skip
# a diamond in each step, drawn back together by d; c begins alone, and hears of the step before
DIAMONDS = episode(
    [
        ("a", 0, (), 1), ("b", 0, ("0/a/0",), 2), ("c", 0, ("0/a/0",), 1), ("d", 0, ("0/b/0", "0/c/0"), 2),
        ("c", 1, ("0/d/0",), 1), ("a", 1, ("0/a/0",), 3), ("b", 1, ("1/a/0", "1/c/0"), 1), ("a", 1, ("1/b/0",), 2),
        ("d", 2, (), 1),
    ],
    [1.0, -1.0, 2.0],
    {0: {"a": 0.1, "d": 0.2}, 1: {"d": 0.4, "b": -0.3}, 2: {"a": 0.6}},
)  # fmt: skip
BATCH = [SILENT_STEPS, DIAMONDS, SILENT_STEPS]
GAMMAS = {"gamma_token": 0.9, "gamma_agent": 0.8, "gamma_step": 0.7}
LAMBDAS = {"lambda_token": 0.6, "lambda_agent": 0.5, "lambda_step": 0.4}


def values_of(level: Level) -> Values:
    random = np.random.default_rng(0)
    sizes = [1 if level == "action" else len(action.tokens) for action in flatten_actions(BATCH)]
    ends = [{agent: float(random.normal()) for agent in e.bootstrap} for e in BATCH]
    return Values([random.normal(size=size) for size in sizes], ends)


@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("chain", ["joint", "agent", "graph"])
@pytest.mark.parametrize("adaptive", [0.0, 0.3, 2.0])
def test_gae_equals_the_slow_reference_on_these(chain: str, level: Level, adaptive: float) -> None:
    values, numbers = values_of(level), {**GAMMAS, **LAMBDAS, "adaptive_lambda": adaptive}
    credits = GAE(successor=chain, **numbers).assign(CreditInputs(BATCH, level, values))  # type: ignore[arg-type]
    expected = [
        row
        for number, one in enumerate(BATCH)
        for row in references.gae(
            one, references.values_of(values, BATCH, number), values.bootstrap[number],
            references.Settings(chain=chain, alpha=1.0, **numbers), level,
        )
    ]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(credits.advantages), np.concatenate(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chain", ["joint", "agent", "graph"])
def test_monte_carlo_is_what_is_left_of_it_without_values(chain: str) -> None:
    zeros = Values([np.zeros(len(action.tokens)) for action in flatten_actions(BATCH)])
    ones = dict.fromkeys(LAMBDAS, 1.0)
    whole = GAE(successor=chain, **GAMMAS, **ones).assign(CreditInputs(BATCH, "token", zeros))  # type: ignore[arg-type]
    mine = MonteCarlo(successor=chain, **GAMMAS).assign(CreditInputs(BATCH, "token"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.concatenate(mine.advantages), np.concatenate(whole.advantages))


def test_a_reward_is_discounted_by_the_steps_since_the_decision_that_it_pays() -> None:
    """Nobody decides in the second and third step: what they pay goes to the first step's last decision."""
    one = episode([("a", 0, (), 1), ("b", 0, (), 1)], [1.0, 10.0, 100.0], {2: {"a": 1000.0}})
    links = build_links([one], "joint", 0.5)
    assert links.rewards.tolist() == [0.0, 1.0 + 0.5 * 10.0 + 0.25 * 1100.0, 0.0]
    assert links.steps.tolist() == [0, 3, 0]
    assert (links.successor.tolist(), links.ends) == ([1, 2, 2], [(0, "")])
    by_agent = build_links([one], "agent", 0.5)
    assert by_agent.rewards.tolist() == [31.0 + 0.25 * 1000.0, 31.0, 0.0, 0.0]
    assert by_agent.ends == [(0, "a"), (0, "b")]


def test_adding_up_along_a_chain_leaves_what_it_is_given_alone() -> None:
    terms, weights, successor = np.ones(4), np.full(4, 0.5), np.array([1, 2, 3, 3])
    assert backward_sum(terms, weights, successor).tolist() == [1.875, 1.75, 1.5, 1.0]
    assert (terms.tolist(), weights.tolist(), successor.tolist()) == ([1.0] * 4, [0.5] * 4, [1, 2, 3, 3])
