"""Credit along chains of decisions, by recursion (formulas §2, §3). Rewards are those of :mod:`tests.dense.rewards`; costs
are the KL in the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marft.common.types import Action
from tests.dense.cases import Case, Judged, Rows, roots_of


def gae(case: Case, s: Any) -> Judged:
    """δ = r + γ V' − V, Â = δ + γ λ Â' (MARFT Algorithm 3; at token level the token Bellman backup)."""
    pay = paid(case, s.successor, s.gamma_step)

    def hop(k: int, j: int) -> tuple[tuple[int, int] | None, float, float, float]:
        """What follows decision (k, j): itself, its value, γ and λ on the way there."""
        size = len(case.values[k])
        if j + 1 < size:
            lam = s.lambda_token
            if s.adaptive_lambda:  # VAPO: 1 − 1/(α l)
                lam = min(1.0, max(0.0, 1 - 1 / (s.adaptive_lambda * size)))
            return (k, j + 1), case.values[k][j + 1], s.gamma_token, lam
        after = follower(case.actions, k, s.successor)
        if after is None:
            left = len(case.episode.transitions) - case.actions[k].step
            return None, case.stop_checker(k, s.successor), s.gamma_step**left, 0.0
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
    return min(roots_of(actions, own))  # the agent's way into the next step


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
    pay, found = paid(case, s.successor, s.gamma_step), case.zeros()
    for k in reversed(range(len(case.actions))):
        after = follower(case.actions, k, s.successor)
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
                ending = case.stop_checker(0, "joint") if s.value == "first" else case.mean_ending()
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
