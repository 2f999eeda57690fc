"""Credit by comparison: with other attempts, or with what was played from the same state (formulas §5)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.dense.cases import EPSILON, EQUAL, Case, Judged


def earned(case: Case) -> float:
    """All that the team and its agents earned."""
    return sum(pay.whole() for pay in case.pays)


def earned_by(case: Case, agent: str) -> float:
    """What the team earned, and the agent for itself."""
    return sum(pay.team + pay.own.get(agent, 0.0) for pay in case.pays)


def all_costs(case: Case, agent: str | None = None) -> float:
    return sum(case.cost(k) for k, action in enumerate(case.actions) if agent in (None, action.agent))


@dataclass
class Entry:
    """Something to be compared with its like."""

    key: Hashable
    reward: float  # before costs: what decides whether a group is all-equal
    cost: float

    @property
    def net_reward(self) -> float:
        return self.reward - self.cost


def relative(entries: Sequence[Entry], scale: bool) -> list[float]:
    """(R − mean) / (std + ε) inside groups; 0 alone, and where all earned the same."""
    results = []
    for entry in entries:
        group = [other for other in entries if other.key == entry.key]
        rewards = [other.reward for other in group]
        if len(group) == 1 or max(rewards) - min(rewards) < EQUAL:
            results.append(0.0)
            continue
        center = sum(other.net_reward for other in group) / len(group)
        spread = math.sqrt(sum((other.net_reward - center) ** 2 for other in group) / (len(group) - 1))
        results.append((entry.net_reward - center) / (spread + EPSILON if scale else 1.0))
    return results


def to_episodes(cases: Sequence[Case], numbers: Sequence[float]) -> list[Judged]:
    return [Judged(case.spread([x] * len(case.actions))) for case, x in zip(cases, numbers, strict=True)]


def of_episodes(cases: Sequence[Case]) -> list[Entry]:
    return [Entry(case.episode.task.id, earned(case), all_costs(case)) for case in cases]


def grpo(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Shao et al. 2024; without scale Dr. GRPO (Liu et al. 2025)."""
    return to_episodes(cases, relative(of_episodes(cases), s.scale_rewards))


def gdpo(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Liu et al. 2026: terms in their groups, then over the batch. The dense twin's rewards have a single term."""
    entries = [Entry(entry.key, entry.reward, 0.0) for entry in of_episodes(cases)]
    sums = relative(entries, scale=True)
    center = sum(sums) / len(sums)
    spread = math.sqrt(sum((x - center) ** 2 for x in sums) / (len(sums) - 1))
    return to_episodes(cases, [(x - center) / (spread + EPSILON) for x in sums])


def rloo(cases: Sequence[Case], s: Any) -> list[Judged]:
    """R − mean of the other attempts (Ahmadian et al. 2024)."""
    entries, results = of_episodes(cases), []
    for number, entry in enumerate(entries):
        others = [o for n, o in enumerate(entries) if o.key == entry.key and n != number]
        rewards = [o.reward for o in [*others, entry]]
        same = max(rewards) - min(rewards) < EQUAL
        results.append(
            0.0 if not others or same else entry.net_reward - sum(o.net_reward for o in others) / len(others)
        )
    return to_episodes(cases, results)


def batch(cases: Sequence[Case], s: Any) -> list[Judged]:
    """REINFORCE++ (Hu et al. 2025): the return less the KL still to come, whitened over what is trained of the batch.
    Without ``whiten`` REINFORCE's. Where all episodes earned the same nothing is told apart."""
    results = []
    for case in cases:
        left, rows = 0.0, case.zeros()
        for k in reversed(range(len(rows))):
            for j in reversed(range(len(rows[k]))):
                left += case.costs[k][j]
                rows[k][j] = earned(case) - left
        results.append(Judged(rows))
    if not s.whiten:
        return results
    rewards = [earned(case) for case in cases]
    if max(rewards) - min(rewards) < EQUAL:
        return [Judged(case.zeros()) for case in cases]
    mine = [x for case, j in zip(cases, results, strict=True)
            for row, learns in zip(j.advantages, case.trains, strict=True) if learns for x in row]  # fmt: skip
    mean = sum(mine) / len(mine)
    spread = math.sqrt(sum((x - mean) ** 2 for x in mine) / (len(mine) - 1))
    return [Judged([[(x - mean) / (spread + EPSILON) for x in row] for row in j.advantages]) for j in results]


def agent_group(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Each agent among its own trajectories at a task (Dr. MAS): one member a trajectory, however often it spoke."""
    rows = [(n, agent) for n, case in enumerate(cases) for agent in sorted({a.agent for a in case.actions})]
    entries = [
        Entry((cases[n].episode.task.id, agent), earned_by(cases[n], agent), all_costs(cases[n], agent))
        for n, agent in rows
    ]
    found = dict(zip(rows, relative(entries, s.scale_rewards), strict=True))
    return [Judged(case.spread([found[n, a.agent] for a in case.actions])) for n, case in enumerate(cases)]


def magrpo(cases: Sequence[Case], s: Any) -> list[Judged]:
    """The joint return from the turn on, among the attempts at a task (Liu et al. 2025); ``cross``: see below."""
    if s.joint_mode == "cross":
        return _magrpo_cross(cases, s)
    rows = [(n, step) for n, case in enumerate(cases) for step in sorted({a.step for a in case.actions})]
    entries = [
        Entry(
            (cases[n].episode.task.id, step),
            sum(pay.whole() for pay in cases[n].pays[step:]),
            sum(cases[n].cost(k) for k, a in enumerate(cases[n].actions) if a.step >= step),
        )
        for n, step in rows
    ]
    found = dict(zip(rows, relative(entries, s.scale_rewards), strict=True))
    return [Judged(case.spread([found[n, a.step] for a in case.actions])) for n, case in enumerate(cases)]


def _magrpo_cross(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Every tuple of the agents' samples is an episode; a sample's return is the mean over those that hold it."""
    keys = list({a.key: None for case in cases if case.episode.fork is None for a in case.actions})
    entries = []
    for key in keys:
        held = [case for case in cases if any(a.key == key for a in case.actions)]
        reward = sum(earned(case) for case in held) / len(held)
        cost = sum(all_costs(case) for case in held) / len(held)
        entries.append(Entry((key.task, key.agent, key.call), reward, cost))
    found = dict(zip(keys, relative(entries, s.scale_rewards), strict=True))
    return [
        Judged(
            case.spread([found.get(a.key, 0.0) for a in case.actions]),
            trained=[case.episode.fork is None] * len(case.actions),
        )
        for case in cases
    ]


def rae(cases: Sequence[Case], s: Any, baselines: dict[str, float]) -> list[Judged]:
    """R_i − b_i, the baseline from before the batch (SPIRAL: Liu et al. 2025)."""
    results = [
        Judged(case.spread([
            earned_by(case, a.agent) - all_costs(case, a.agent) - baselines.get(a.agent, 0.0) for a in case.actions
        ]))
        for case in cases
    ]  # fmt: skip
    for agent in {a.agent for case in cases for a in case.actions}:
        mine = [case for case in cases if any(a.agent == agent for a in case.actions)]
        mean = sum(earned_by(case, agent) - all_costs(case, agent) for case in mine) / len(mine)
        baselines[agent] = s.decay * baselines.get(agent, 0.0) + (1 - s.decay) * mean
    return results


def comam(cases: Sequence[Case], s: Any) -> list[Judged]:
    """local + w · global, w from how alike the two rank an agent's attempts (after arXiv 2603.12631; w is ours)."""
    rows = [(n, agent) for n, case in enumerate(cases) for agent in sorted({a.agent for a in case.actions})]
    local = {(n, agent): sum(p.own.get(agent, 0.0) for p in cases[n].pays) for n, agent in rows}
    team = [sum(p.team for p in case.pays) for case in cases]
    entries = []
    for n, agent in rows:
        peers = [m for m, a in rows if a == agent and cases[m].episode.task.id == cases[n].episode.task.id]
        locally = [local[m, agent] for m in peers]
        weight = max(0.0, spearman(locally, [team[m] for m in peers]))
        if max(locally) - min(locally) < EQUAL:  # nothing to rank: the team's reward is all there is
            weight = s.fallback_weight
        mixed = local[n, agent] + weight * team[n]
        cost = all_costs(cases[n], agent)
        entries.append(Entry((cases[n].episode.task.id, agent), mixed, cost))
    found = dict(zip(rows, relative(entries, s.scale_rewards), strict=True))
    return [Judged(case.spread([found[n, a.agent] for a in case.actions])) for n, case in enumerate(cases)]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's correlation of mean ranks; 0 where either is constant."""

    def ranks(values: Sequence[float]) -> list[float]:
        places = sorted(values)
        return [places.index(v) + (places.count(v) - 1) / 2 for v in values]

    if len(a) < 2 or max(a) - min(a) < EQUAL or max(b) - min(b) < EQUAL:
        return 0.0
    x, y = ranks(a), ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    cov = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    return cov / math.sqrt(sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y))


def tree(cases: Sequence[Case], s: Any) -> list[Judged]:
    """AT-GRPO (Stronger-MAS: Zhao et al. 2025): candidates from one state, by what their step paid."""
    rows = [
        (n, k) for n, case in enumerate(cases) for k, a in enumerate(case.actions)
        if case.episode.fork is None or a.id == case.episode.fork.at
    ]  # fmt: skip
    entries = []
    for n, k in rows:
        case, action = cases[n], cases[n].actions[k]
        pay = case.pays[action.step]
        before = tuple((a.id, tuple(a.tokens.tolist())) for a in case.actions if a.index < action.index)
        key = (case.episode.task.id, action.id, tuple(action.prompt.tolist()), before)
        entries.append(Entry(key, pay.team + pay.own.get(action.agent, 0.0), case.cost(k)))
    found = dict(zip(rows, relative(entries, s.scale_rewards), strict=True))
    return [
        Judged(
            case.spread([found.get((n, k), 0.0) for k in range(len(case.actions))]),
            trained=[(n, k) in found for k in range(len(case.actions))],
        )
        for n, case in enumerate(cases)
    ]


def counterfactual(cases: Sequence[Case], s: Any) -> list[Judged]:
    """R − mean R of what was played with this one action sampled anew (after COMA: Foerster et al. 2018)."""
    results = []
    for case in cases:
        fork, numbers, trained = case.episode.fork, [], []
        for action in case.actions:
            mine = fork is None or (s.train_on_resamples and action.id == fork.at)
            origin = fork.origin if fork else case.episode.name
            others = [
                earned(other) - all_costs(other)
                for other in cases
                if other is not case and (other.episode.name == origin or other.episode.fork == (origin, action.id))
            ]
            worth = earned(case) - all_costs(case)
            numbers.append(worth - sum(others) / len(others) if mine and others else 0.0)
            trained.append(mine)
        results.append(Judged(case.spread(numbers), trained=trained))
    return results
