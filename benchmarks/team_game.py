"""Compare update rules for many agents with one reward, on a game of two minutes, to choose rules for full runs.

    python benchmarks/team_game.py

The team is a chain of n agents. Each sees its own features, and either slips (a habit) or gives one of four answers (a
skill). The team earns 1 if all answers are right. An agent has a linear head for the slip and one for the answer. The
slip rate brings an untrained team to one half at any size. Skill is nearly perfect, and drifts with the noise in the
weights. A step plays 32 episodes and takes four Adam steps of PPO, as the preset ``marft`` does.

The ceiling is what the team would earn without slips, at unchanged skill. The table has the mean and the worst of ten
seeds at the end, as shares of the ceiling. Writes results/team_game.json and team_game.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import machine
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

SIZES = (1, 2, 4, 6, 8, 12)
SEEDS = 10
STEPS, BATCH, EPOCHS, MINIBATCHES = 40, 32, 2, 2
COLUMNS, FEATURES, SHARED = 5, 24, 4.0  # four answers and the slip; features; value of the constant feature
BEGIN = 0.5  # reward of an untrained team
SHARP, TEMPTATION = 100.0, 3.0  # how much right answers, and slips, depend on an agent's features
SEEN = 0.7  # share of wrong actions that the critic detects in the message
CLIP, BETAS, EPSILON = 0.2, (0.9, 0.999), 1e-8
RATE = 0.05  # two agents end near their ceiling; three times this rate is too high for eight, as in the bundled model
HELD_OUT = 400


@dataclass(frozen=True)
class Rule:
    """Update rule of a team.

    Args:
        rate: factor on the learning rate.
        power: from two agents on, the rate is divided by (n / 2) to this power.
        decay: True to let the rate fall to 0.
        budget: nats that the joint policy may move in a step; 0 is no limit.
        share: share of the agents that move in a step, drawn anew each step.
        in_turn: True to update one agent after another, weighted with the ratios of the previous ones (HAPPO).
        decay_of_credit: λ of the credit.
        batch: factor on the episodes of a step; the number of steps is divided by it.
        longer: factor on the number of steps.
    """

    rate: float = 1.0
    power: float = 0.0
    decay: bool = False
    budget: float = 0.0
    share: float = 1.0
    in_turn: bool = False
    decay_of_credit: float = 0.95
    batch: int = 1
    longer: int = 1


RULES: Mapping[str, Rule] = {
    "as shipped": Rule(),
    "a third of the rate": Rule(rate=1 / 3),
    "three times the rate": Rule(rate=3.0),
    "rate / √n": Rule(power=0.5),
    "rate / n": Rule(power=1.0),
    "rate falls to 0": Rule(decay=True),
    "one after another (HAPPO)": Rule(in_turn=True),
    "half of the agents a step": Rule(share=0.5),
    "λ = 0": Rule(decay_of_credit=0.0),
    "4 × the batch, a quarter of the steps": Rule(batch=4),
    "team KL 0.01": Rule(budget=0.01),
    "team KL 0.01, three times the rate": Rule(budget=0.01, rate=3.0),
    "twice the steps": Rule(longer=2),
    "twice the steps, rate / √n, falls": Rule(longer=2, power=0.5, decay=True),
    "twice the steps, rate falls to 0": Rule(longer=2, decay=True),
    "twice the steps, team KL 0.01": Rule(longer=2, budget=0.01),
    "twice the steps, team KL 0.01, rate falls (`marft-team`)": Rule(longer=2, budget=0.01, decay=True),
    "the same at three times the rate": Rule(longer=2, budget=0.01, decay=True, rate=3.0),
    "twice the steps, rate falls, three times the rate": Rule(longer=2, decay=True, rate=3.0),
}


class Team:
    """n agents, for all seeds at once.

    ``weights`` has the shape [S, n, F, A]. Its last column decides whether an agent slips. The others choose its
    answer.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self.size, self.random = size, random
        self.right = random.normal(size=(SEEDS, size, FEATURES, COLUMNS)) / math.sqrt(FEATURES)
        self.right[:, :, 0] = 0.0
        self.weights = SHARP * self.right
        self.weights[..., -1] = TEMPTATION * self.right[..., -1]
        x = self.observe(500)
        low, high = np.full((2, SEEDS, size), [[[-50.0]], [[50.0]]])
        for _ in range(30):  # bisect the temptation that brings the team to BEGIN
            self.weights[:, :, 0, -1] = (low + high) / 2
            slips = policy(x, self.weights)[..., -1].mean(-1) > 1 - BEGIN ** (1 / size)
            low, high = np.where(slips, low, (low + high) / 2), np.where(slips, (low + high) / 2, high)
        self.moments = [np.zeros_like(self.weights), np.zeros_like(self.weights)]
        self.steps = np.zeros((SEEDS, size, 1, 1))

    def answer(self, x: Floats) -> Integers:
        return np.asarray((x @ self.right)[..., :-1].argmax(-1))

    def observe(self, episodes: int) -> Floats:
        x = self.random.normal(size=(SEEDS, self.size, episodes, FEATURES))
        x[..., 0] = SHARED
        return x

    def rates(self) -> tuple[Floats, Floats]:
        """Return the rates of right answers and of slips of each agent, on held-out situations: each [S, n]."""
        x = np.random.default_rng(7).normal(size=(HELD_OUT, FEATURES))
        x[:, 0] = SHARED
        chances = policy(x, self.weights)
        return at(chances, self.answer(x)).mean(-1), chances[..., -1].mean(-1)

    def ceiling(self) -> Floats:
        right, slips = self.rates()
        return np.asarray((right / (1 - slips)).prod(-1))


def policy(x: Floats, weights: Floats) -> Floats:
    """Return the probabilities of every answer and of the slip, [..., A]."""
    logits = x @ weights
    slip = 1 / (1 + np.exp(-logits[..., -1:]))
    e = np.exp(logits[..., :-1] - logits[..., :-1].max(-1, keepdims=True))
    return np.concatenate([(1 - slip) * e / e.sum(-1, keepdims=True), slip], -1)


def at(chances: Floats, drawn: Integers) -> Floats:
    return np.asarray(np.take_along_axis(chances, drawn[..., None], -1)[..., 0])


def train(size: int, rule: Rule) -> tuple[Floats, Floats]:
    """Return the final reward of the team, and its ceiling before training: each [S]."""
    team = Team(size, np.random.default_rng(0))
    ceiling, values = team.ceiling(), np.full((SEEDS, size + 1), BEGIN)
    steps = STEPS * rule.longer // rule.batch
    for step in range(steps):
        x = team.observe(BATCH * rule.batch)
        p = policy(x, team.weights)
        drawn = (p.cumsum(-1) < team.random.random((*p.shape[:3], 1))).sum(-1).clip(max=COLUMNS - 1)
        advantages = credit(drawn == team.answer(x), values, rule.decay_of_credit, team.random)
        rate = RATE * rule.rate * min(1.0, (2 / size) ** rule.power) * (1 - step / steps if rule.decay else 1.0)
        update(team, x, drawn, advantages, p, rate, rule)
    return np.asarray(team.rates()[0].prod(-1)), ceiling


def credit(good: Bools, values: Floats, decay: float, random: np.random.Generator) -> Floats:
    """Return normalized GAE along the chain, [S, n, B].

    The critic knows the mean reward of chains that are right so far (``values`` [S, n + 1], updated here). It detects a
    wrong action with probability SEEN.
    """
    reward = good.all(1).astype(float)
    hidden = np.cumprod(good | (random.random(good.shape) >= SEEN), 1).astype(float)
    v = np.concatenate([np.ones_like(hidden[:, :1]), hidden], 1) * values[:, :, None]
    v[:, -1] = reward  # the end of the chain is known
    advantages, later = np.zeros_like(hidden), np.zeros_like(reward)
    for k in reversed(range(good.shape[1])):
        later = v[:, k + 1] - v[:, k] + decay * later
        advantages[:, k] = later
    alive = np.concatenate([np.ones_like(hidden[:, :1]), hidden[:, :-1]], 1)
    earned = (alive * reward[:, None]).sum(-1) / np.maximum(1, alive.sum(-1))
    values[:, :-1] += 0.3 * (earned - values[:, :-1])
    mean, deviation = advantages.mean((1, 2), keepdims=True), advantages.std((1, 2), keepdims=True)
    return np.asarray((advantages - mean) / (deviation + 1e-8))


def update(team: Team, x: Floats, drawn: Integers, advantages: Floats, p: Floats, rate: float, rule: Rule) -> None:
    """Run epochs of PPO minibatches for the agents of each turn, then scale the change down to the budget."""
    before, old = team.weights.copy(), at(p, drawn) + 1e-30
    for moving in turns(team, rule):
        others = np.exp(np.log((at(policy(x, team.weights), drawn) + 1e-30) / old).sum(1, keepdims=True))
        weighed = advantages * (others.clip(0.5, 2.0) if rule.in_turn else 1.0)
        for _ in range(EPOCHS):
            for part in np.split(team.random.permutation(x.shape[2]), MINIBATCHES):
                adam(team, x[:, :, part], drawn[..., part], weighed[..., part], old[..., part], rate, moving)
    if rule.budget:
        now = policy(x, team.weights)
        kl = (p * (np.log(p + 1e-30) - np.log(now + 1e-30))).sum(-1).mean(-1).sum(1)  # [S], of the team
        fraction = np.minimum(1.0, np.sqrt(rule.budget / np.maximum(kl, 1e-12)))[:, None, None, None]
        team.weights = before + fraction * (team.weights - before)


def turns(team: Team, rule: Rule) -> list[Bools]:
    """Return which agents move, [S, n], by turn."""
    order = team.random.permuted(np.tile(np.arange(team.size), (SEEDS, 1)), axis=1)
    if rule.in_turn:
        return [np.arange(team.size) == order[:, [k]] for k in range(team.size)]
    return [order < max(1, round(rule.share * team.size))]


def adam(
    team: Team, x: Floats, drawn: Integers, advantages: Floats, old: Floats, rate: float, moving: Bools
) -> None:  # fmt: skip
    """Take one Adam step on the clipped surrogate for the moving agents."""
    p = policy(x, team.weights)
    ratio = at(p, drawn) / old
    active = np.where(advantages > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
    pull = (active * ratio * advantages)[..., None] * score(drawn, p) / x.shape[2]
    mine = moving[:, :, None, None]
    gradient = np.swapaxes(x, -1, -2) @ pull
    team.steps += mine
    for moment, beta, value in zip(team.moments, BETAS, (gradient, gradient**2), strict=True):
        moment += mine * (1 - beta) * (value - moment)
    mean, square = (m / (1 - b ** np.maximum(1, team.steps)) for m, b in zip(team.moments, BETAS, strict=True))
    team.weights = team.weights + mine * rate * mean / (np.sqrt(square) + EPSILON)


def score(drawn: Integers, p: Floats) -> Floats:
    """Return the gradient of the log-probability of the drawn actions in the logits, [..., A]."""
    taken, slip = np.eye(COLUMNS)[drawn], p[..., -1:]
    answers = (1 - taken[..., -1:]) * (taken[..., :-1] - p[..., :-1] / (1 - slip + 1e-30))
    return np.concatenate([answers, taken[..., -1:] - slip], -1)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"| rule | {' | '.join(f'{size}' for size in SIZES)} |", f"| --- |{' ---: |' * len(SIZES)}"]
    for name, row in rows.items():
        shares = [np.array(row[str(size)]["end"]) / np.array(row[str(size)]["ceiling"]) for size in SIZES]
        cells = [f"{100 * share.mean():.0f} ({100 * share.min():.0f})" for share in shares]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rows: dict[str, dict[str, Any]] = {}
    for name, rule in RULES.items():
        rows[name] = {}
        for size in SIZES:
            end, ceiling = train(size, rule)
            rows[name][str(size)] = {"end": end.round(4).tolist(), "ceiling": ceiling.round(4).tolist()}
        print(table({name: rows[name]}).splitlines()[-1], flush=True)
    machine.save("team_game", {"machine": machine.describe(), "rules": rows})
    (machine.RESULTS / "team_game.md").write_text(table(rows))


if __name__ == "__main__":
    main()
