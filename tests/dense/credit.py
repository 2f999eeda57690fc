"""What every decision was worth: one function a credit, by recursion or loops over decisions (formulas §2, §3, §5).

A decision is (k, j): token j of action k of an episode; j = 0 alone at action level. Rewards are those of
:mod:`tests.dense.rewards`; costs are the KL in the reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marft.types import Action, Episode
from tests.dense.rewards import Pay

EQUAL = EPSILON = 1e-8
Rows = list[list[float]]  # by action, then by decision


@dataclass
class Case:
    """An episode, and everything that it is judged by."""

    episode: Episode
    pays: list[Pay]  # of each environment step
    costs: Rows
    values: Rows = field(default_factory=list)  # V at every decision
    final: Mapping[str, float] = field(default_factory=dict)  # V of the final state, as each agent's head sees it
    ratios: list[float] = field(default_factory=list)  # of each action's step: how far earlier policies have moved

    @property
    def actions(self) -> Sequence[Action]:
        return self.episode.actions

    def cost(self, k: int) -> float:
        return sum(self.costs[k])

    def ending(self, k: int, chain: str) -> float:
        """What the end is worth to the chain whose last decision is k: to the agent that would decide next in it."""
        if chain == "joint" or not self.final:
            return next(iter(self.final.values()), 0.0)
        agent = self.actions[k if chain == "agent" else min(_roots(self.actions, k))].agent
        return self.final.get(agent, next(iter(self.final.values())))

    def zeros(self) -> Rows:
        return [[0.0] * len(row) for row in self.costs]

    def spread(self, numbers: Sequence[float]) -> Rows:
        """One number an action → one a decision."""
        return [[number] * len(row) for number, row in zip(numbers, self.costs, strict=True)]


@dataclass
class Judged:
    """Of one episode. An action of which ``trained`` is False only served to judge others."""

    advantages: Rows
    returns: Rows = field(default_factory=list)
    monte_carlo: Rows = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)


def judge(cases: Sequence[Case], settings: Any, baselines: dict[str, float]) -> list[Judged]:
    """Credit by name. ``baselines`` are RAE's, which the batch moves."""
    one_by_one: dict[str, Callable[[Case, Any], Judged]] = {
        "gae": gae, "step-gae": step_gae, "monte-carlo": monte_carlo,
    }  # fmt: skip
    together: dict[str, Callable[[Sequence[Case], Any], list[Judged]]] = {
        "batch": batch, "grpo": grpo, "rloo": rloo, "agent-group": agent_group, "magrpo": magrpo, "comam": comam,
        "tree": tree, "counterfactual": counterfactual,
    }  # fmt: skip
    if settings.name in one_by_one:
        return [one_by_one[settings.name](case, settings) for case in cases]
    if settings.name == "rae":
        return rae(cases, settings, baselines)
    return together[settings.name](cases, settings)


# ---- with a critic: along chains -------------------------------------------------------------------------------------


def gae(case: Case, s: Any) -> Judged:
    """δ = r + γ V' − V, Â = δ + γ λ Â' (MARFT Algorithm 3; at token level the token Bellman backup)."""
    pay = paid(case, s.chain, s.gamma_step)

    def hop(k: int, j: int) -> tuple[tuple[int, int] | None, float, float, float]:
        """What follows decision (k, j): itself, its value, γ and λ on the way there."""
        size = len(case.values[k])
        if j + 1 < size:
            lam = s.lambda_token
            if s.adaptive_lambda:  # VAPO: 1 − 1/(α l)
                lam = min(1.0, max(0.0, 1 - 1 / (s.adaptive_lambda * size)))
            return (k, j + 1), case.values[k][j + 1], s.gamma_token, lam
        after = follower(case.actions, k, s.chain)
        if after is None:
            left = len(case.episode.transitions) - case.actions[k].step
            return None, case.ending(k, s.chain), s.gamma_step**left, 0.0
        passed = case.actions[after].step - case.actions[k].step
        if passed == 0:
            return (after, 0), case.values[after][0], s.gamma_agent, s.lambda_agent
        return (after, 0), case.values[after][0], s.gamma_step**passed, s.lambda_step

    def estimate(critic_lambda: float | None) -> Rows:
        found = case.zeros()
        for k in reversed(range(len(case.actions))):
            for j in reversed(range(len(case.values[k]))):
                after, value, gamma, lam = hop(k, j)
                lam = lam if critic_lambda is None else critic_lambda
                reward = (pay[k] if j + 1 == len(case.values[k]) else 0.0) - case.costs[k][j]
                found[k][j] = reward + gamma * value - case.values[k][j]
                if after:
                    found[k][j] += gamma * lam * found[after[0]][after[1]]
        return found

    def plus_values(rows: Rows) -> Rows:
        return [[a + v for a, v in zip(x, y, strict=True)] for x, y in zip(rows, case.values, strict=True)]

    return Judged(estimate(None), plus_values(estimate(s.lambda_critic)), plus_values(estimate(1.0)))


def follower(actions: Sequence[Action], k: int, chain: str) -> int | None:
    """The action after k: the team's next, the agent's own next, or along the realised dependencies."""
    later = range(k + 1, len(actions))
    if chain == "joint":
        return k + 1 if later else None
    own = next((j for j in later if actions[j].agent == actions[k].agent), None)
    if chain == "agent":
        return own
    for j in later:
        if actions[j].step == actions[k].step and actions[k].id in actions[j].sees:
            return j
    if own is None or actions[own].step == actions[k].step:
        return own
    return min(_roots(actions, own))  # the agent's way into the next step


def _roots(actions: Sequence[Action], k: int) -> set[int]:
    """Those of k's step that k depends on, directly or not, and that depend on nobody."""
    seen = [j for j in range(k) if actions[j].step == actions[k].step and actions[j].id in actions[k].sees]
    return set().union(*(_roots(actions, j) for j in seen)) if seen else {k}


def paid(case: Case, chain: str, gamma: float) -> list[float]:
    """What each action earns: team rewards and its agent's own, discounted where they come in later steps."""
    actions, pay = case.actions, [0.0] * len(case.actions)
    for t, of_step in enumerate(case.pays):
        so_far = [k for k, action in enumerate(actions) if action.step <= t]
        if not so_far:
            continue
        latest = {actions[k].agent: k for k in so_far}
        for k in so_far:
            of_team = k == so_far[-1] if chain == "joint" else latest[actions[k].agent] == k
            if chain == "graph" and of_team:
                after = follower(actions, k, "graph")
                of_team = after is None or actions[after].step != actions[k].step
            if of_team:
                pay[k] += of_step.team * gamma ** (t - actions[k].step)
        for agent, reward in of_step.own.items():
            k = latest.get(agent, -1)
            if chain == "joint" and (k < 0 or actions[k].step < t):
                k = so_far[-1]
            if k >= 0:
                pay[k] += reward * gamma ** (t - actions[k].step)
    return pay


def monte_carlo(case: Case, s: Any) -> Judged:
    """What follows a decision, discounted, and nothing after the end."""
    pay, found = paid(case, s.chain, s.gamma_step), case.zeros()
    for k in reversed(range(len(case.actions))):
        after = follower(case.actions, k, s.chain)
        worth = pay[k]
        if after is not None:
            passed = case.actions[after].step - case.actions[k].step
            worth += (s.gamma_step**passed if passed else s.gamma_agent) * found[after][0]
        for j in reversed(range(len(found[k]))):
            found[k][j] = worth - case.costs[k][j]
            worth = s.gamma_token * found[k][j]
    return Judged(found)


def step_gae(case: Case, s: Any) -> Judged:
    """One advantage an environment step: δ_t = r_t + γ V_{t+1} − V_t, Â_t = δ_t + γ λ min(1, ρ_{t+1}) Â_{t+1} (HAPPO; MAT;
    ρ is A2PO's). Steps without decisions pay the one before."""
    actions = case.actions
    steps = sorted({action.step for action in actions})
    reward, value, rho = dict.fromkeys(steps, 0.0), {}, {}
    for t, pay in enumerate(case.pays):
        before = [step for step in steps if step <= t]
        if before:
            reward[before[-1]] += pay.whole() * s.gamma_step ** (t - before[-1])
    for step in steps:
        mine = [k for k, action in enumerate(actions) if action.step == step]
        reward[step] -= sum(case.cost(k) for k in mine)
        rows = [v for k in mine for v in case.values[k]]
        value[step] = rows[0] if s.value == "first" else sum(rows) / len(rows)
        rho[step] = min(1.0, case.ratios[mine[0]]) if case.ratios else 1.0

    def estimate(lam: float, trace: bool) -> dict[int, float]:
        found: dict[int, float] = {}
        after: int | None = None
        for step in reversed(steps):
            if after is None:
                left = len(case.pays) - step
                ending = case.ending(0, "joint")
                found[step] = reward[step] + s.gamma_step**left * ending - value[step]
            else:
                gamma = s.gamma_step ** (after - step)
                carried = gamma * lam * (rho[after] if trace else 1.0) * found[after]
                found[step] = reward[step] + gamma * value[after] - value[step] + carried
            after = step
        return found

    def rows(of_step: Mapping[int, float], plus: Mapping[int, float]) -> Rows:
        return case.spread([of_step[a.step] + plus.get(a.step, 0.0) for a in actions])

    return Judged(
        rows(estimate(s.lambda_step, True), {}), rows(estimate(s.lambda_critic, False), value),
        rows(estimate(1.0, False), value),
    )  # fmt: skip


# ---- without a critic: compared with others --------------------------------------------------------------------------


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
    def net(self) -> float:
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
        center = sum(other.net for other in group) / len(group)
        spread = math.sqrt(sum((other.net - center) ** 2 for other in group) / (len(group) - 1))
        results.append((entry.net - center) / (spread + EPSILON if scale else 1.0))
    return results


def to_episodes(cases: Sequence[Case], numbers: Sequence[float]) -> list[Judged]:
    return [Judged(case.spread([x] * len(case.actions))) for case, x in zip(cases, numbers, strict=True)]


def of_episodes(cases: Sequence[Case]) -> list[Entry]:
    return [Entry(case.episode.task.id, earned(case), all_costs(case)) for case in cases]


def grpo(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Shao et al. 2024; without scale Dr. GRPO (Liu et al. 2025)."""
    return to_episodes(cases, relative(of_episodes(cases), s.scale))


def rloo(cases: Sequence[Case], s: Any) -> list[Judged]:
    """R − mean of the other attempts (Ahmadian et al. 2024)."""
    entries, results = of_episodes(cases), []
    for number, entry in enumerate(entries):
        others = [o for n, o in enumerate(entries) if o.key == entry.key and n != number]
        rewards = [o.reward for o in [*others, entry]]
        same = max(rewards) - min(rewards) < EQUAL
        results.append(0.0 if not others or same else entry.net - sum(o.net for o in others) / len(others))
    return to_episodes(cases, results)


def batch(cases: Sequence[Case], s: Any) -> list[Judged]:
    """REINFORCE: the return, less its whole KL. REINFORCE++ (Hu et al. 2025): see :func:`to_go`."""
    entries = of_episodes(cases)
    if not s.whiten:
        return to_episodes(cases, [entry.net for entry in entries])
    return to_episodes(cases, relative([Entry("", e.reward, e.cost) for e in entries], scale=True))


def agent_group(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Each agent among its own trajectories at a task (Dr. MAS): one member a trajectory, however often it spoke."""
    rows = [(n, agent) for n, case in enumerate(cases) for agent in sorted({a.agent for a in case.actions})]
    entries = [
        Entry((cases[n].episode.task.id, agent), earned_by(cases[n], agent), all_costs(cases[n], agent))
        for n, agent in rows
    ]
    found = dict(zip(rows, relative(entries, s.scale), strict=True))
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
    found = dict(zip(rows, relative(entries, s.scale), strict=True))
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
    found = dict(zip(keys, relative(entries, s.scale), strict=True))
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
        weight = max(0.0, spearman([local[m, agent] for m in peers], [team[m] for m in peers]))
        mixed = local[n, agent] + weight * team[n]
        cost = all_costs(cases[n], agent)
        entries.append(Entry((cases[n].episode.task.id, agent), mixed, cost))
    found = dict(zip(rows, relative(entries, s.scale), strict=True))
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


# ---- with forks: compared with what was played from the same state ---------------------------------------------------


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
    found = dict(zip(rows, relative(entries, s.scale), strict=True))
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
            mine = fork is None or (s.symmetric and action.id == fork.at)
            origin = fork.origin if fork else case.episode.name
            others = [
                earned(other) - all_costs(other)
                for other in cases
                if other is not case
                and (other.episode.name == origin or other.episode.fork == (origin, action.id))
            ]
            worth = earned(case) - all_costs(case)
            numbers.append(worth - sum(others) / len(others) if mine and others else 0.0)
            trained.append(mine)
        results.append(Judged(case.spread(numbers), trained=trained))
    return results
