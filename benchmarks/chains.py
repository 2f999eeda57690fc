"""Measure along which chain credit should flow back, on games small enough to compute the true gradient.

    python benchmarks/chains.py

There are three ways to link decisions. Each agent throws a coin: its action is 0 or 1, and its policy is the
probability. All joint actions can be enumerated, so the true policy gradient is known. The table shows the mean cosine
between the gradient of a batch of 64 episodes and the true gradient: 1 is perfect, 0 is noise. A chain's critic is
exact for the returns of that chain, wrong by a fixed error in every state, or absent (V = 0). Nothing is trained; the
script takes seconds. Writes results/chains.json and chains.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import machine
import numpy as np

from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Episode, Observation, Task, Transition
from marft.config.interfaces.credit import CreditInputs, Floats, Values
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.links import Chain

CHAINS: tuple[Chain, ...] = ("joint", "agent", "graph")
LAMBDAS = (0.95, 0.5)
BATCH, BATCHES = 64, 2000
ERROR = 0.3  # error of the wrong critic, in standard deviations of the return

Coins = tuple[int, ...]
TermReward = tuple[float, Mapping[str, float]]


@dataclass(frozen=True)
class Structure:
    """Team with one environment step: visibility, and the rewards of a joint action (team reward, own rewards)."""

    title: str
    sees: Sequence[Sequence[int]]
    earns: Callable[[Coins], TermReward]


def name(agent: int) -> str:
    return f"agent_{agent}"


def pipelines(count: int) -> Structure:
    """Return parallel pairs: the second agent of a pair builds on the first, and earns for the pair."""
    return Structure(
        f"{count} pipelines of two, each paid for itself",
        [[]] * count + [[i] for i in range(count)],
        lambda c: (0.0, {name(count + i): float(c[i] * c[count + i]) for i in range(count)}),
    )


STRUCTURES = (
    Structure("chain of 8", [list(range(k)) for k in range(8)], lambda c: (sum(c) / 8.0 * c[7], {})),
    Structure(
        "7 workers, then a judge", [[]] * 7 + [list(range(7))], lambda c: (sum(c[:7]) / 7.0 * c[7], {})
    ),
    Structure(
        "7 workers, then a judge; workers also graded",
        [[]] * 7 + [list(range(7))],
        lambda c: (sum(c[:7]) / 7.0 * c[7], {name(i): float(c[i]) for i in range(7)}),
    ),
    pipelines(2),
    pipelines(4),
    Structure(
        "8 apart (D = 0), each paid for itself", [[]] * 8,
        lambda c: (0.0, {name(i): float(c[i]) for i in range(8)}),
    ),
)  # fmt: skip


def main() -> None:
    rows = [measure(structure, decay) for structure in STRUCTURES for decay in LAMBDAS]
    table = markdown(rows)
    machine.save("chains", {"machine": machine.describe(), "rows": rows})
    (machine.RESULTS / "chains.md").write_text(table)
    print(table)


def measure(structure: Structure, decay: float) -> dict[str, Any]:
    """Return the cosines with the true gradient, by critic and chain."""
    coins = list(product((0, 1), repeat=len(structure.sees)))
    episodes = [episode(structure, c) for c in coins]
    score = np.array(coins) - 0.5
    totals = np.array([e.total_reward + own_rewards(e) for e in episodes])
    truth = (totals[:, None] * score).mean(0)
    cosines: dict[str, dict[str, float]] = {}
    for chain in CHAINS:
        zeros = np.zeros(score.shape)
        returns = advantages(episodes, zeros, chain, 1.0)
        exact = values_of_states(returns, coins)
        error = values_of_states(np.random.default_rng(0).normal(size=score.shape), coins, keep_first=True)
        critics = {"exact": exact, "wrong": exact + ERROR * totals.std() * error, "absent": zeros}
        for critic, values in critics.items():
            gradients = advantages(episodes, values, chain, decay) * score
            cosines.setdefault(critic, {})[chain] = mean_cosine(gradients, truth)
    return {"structure": structure.title, "lambda": decay, "cosine": cosines}


def episode(structure: Structure, coins: Coins) -> Episode:
    actions = tuple(
        Action(
            key=ActionKey("train/0", "t", 0, 0, name(k), 0), policy=name(k), index=k,
            sees=tuple(f"0/{name(j)}/0" for j in structure.sees[k]), prompt=np.zeros(1, np.int32),
            tokens=np.array([coin], np.int32), marks=np.array([TokenSource.SAMPLED], np.uint8),
            log_probs=np.zeros(1, np.float32), text=str(coin), finish="stop",
        )
        for k, coin in enumerate(coins)
    )  # fmt: skip
    team, own = structure.earns(coins)
    return Episode(
        Task("t", "o"), "train/0", 0, actions, "terminated", (Transition(Observation("o"), team, own),)
    )  # fmt: skip


def own_rewards(episode: Episode) -> float:
    return sum(sum(t.agent_rewards.values()) for t in episode.transitions)


def advantages(episodes: Sequence[Episode], values: Floats, chain: Chain, decay: float) -> Floats:
    """Return the advantage of every decision of every episode, shape [E, agents]."""
    credit = GAE(successor=chain, gamma_step=1.0, lambda_agent=decay, lambda_step=decay)
    flat = Values([np.array([v]) for v in values.ravel()])
    found = credit.assign(CreditInputs(episodes, "action", flat)).advantages
    return np.concatenate(found).reshape(values.shape)


def values_of_states(returns: Floats, coins: Sequence[Coins], keep_first: bool = False) -> Floats:
    """Return the value V(s_k) of each decision's state: the mean return over joint actions with the same start.

    With ``keep_first``, each state has the value of its first row instead of the mean.
    """
    values = np.zeros(returns.shape)
    for k in range(returns.shape[1]):
        groups: dict[Coins, list[int]] = {}
        for row, c in enumerate(coins):
            groups.setdefault(c[:k], []).append(row)
        for rows in groups.values():
            values[rows, k] = returns[rows[0], k] if keep_first else returns[rows, k].mean()
    return values


def mean_cosine(gradients: Floats, truth: Floats) -> float:
    """Return the mean cosine of batches drawn uniformly from all joint actions."""
    drawn = np.random.default_rng(1).integers(len(gradients), size=(BATCHES, BATCH))
    batches = gradients[drawn].mean(1)
    return float(np.mean(batches @ truth / (np.linalg.norm(batches, axis=1) * np.linalg.norm(truth) + 1e-12)))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    critics = ("exact", "wrong", "absent")
    head = " | ".join(f"critic {critic}: {' / '.join(CHAINS)}" for critic in critics)
    lines = [f"| team | λ | {head} |", "| --- | ---: |" + " --- |" * len(critics)]
    for row in rows:
        cells = []
        for critic in critics:
            numbers = row["cosine"][critic]
            best = max(numbers.values())
            cells.append(" / ".join(f"**{n:.2f}**" if n > best - 0.005 else f"{n:.2f}" for n in numbers.values()))
        lines.append(f"| {row['structure']} | {row['lambda']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
