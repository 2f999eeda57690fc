"""A whole training step: credit, every epoch and minibatch of every policy's turn, the critic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marft.common.types import Action, Episode
from marft.config.run import RunSettings
from tests.dense import orders
from tests.dense.cases import Case, Judged
from tests.dense.credit import judge
from tests.dense.critic import Critic, reading
from tests.dense.losses import Row, k3, policy_loss
from tests.dense.model import Policy, Scores, score
from tests.dense.optimizer import AdamW, clipped, norm_of, rate_at
from tests.dense.pairs import begun
from tests.dense.report import Moved, Report, Tally
from tests.dense.rewards import payments

BACKTRACKS = 5  # HATRPO: halvings before an update is undone


def _succeeded(episode: Episode) -> bool:
    """What the environment says, or, where it does not say, whether anything good came of it."""
    if episode.success is not None:
        return episode.success
    return sum(t.reward + sum(t.agent_rewards.values()) for t in episode.transitions) > 0


def _paid(case: Case) -> dict[tuple[int, str], float]:
    """What was paid, by step and agent, the team being ""; what is 0 is left out."""
    paid = {(t, who): r for t, pay in enumerate(case.pays) for who, r in (("", pay.team), *pay.own.items())}
    return {place: round(reward, 7) for place, reward in paid.items() if round(reward, 7)}


class DenseLearner:
    """Carries from step to step what a learner carries: weights, moments, baselines, whose turn it is."""

    def __init__(self, run: RunSettings, policies: Mapping[str, Policy], critic: Critic | None) -> None:
        self.run, self.s, self.policies, self.critic = run, run.algorithm, policies, critic
        self.trained = list(run.trained_policies)
        self.agents = {agent.role: agent for agent in run.agents}
        o = self.s.optimizer
        self.adams = {name: AdamW(o.beta1, o.beta2, o.epsilon, o.weight_decay) for name in self.trained}
        self.baselines: dict[str, float] = {}
        self.turn, self.turn_began = 0, 0
        self.start: dict[str, Policy] = {}  # what comparisons take log-ratios to

    def learn(self, episodes: Sequence[Episode], step: int, environment_steps: int = 0) -> Report:
        """One training step."""
        warm_up = self.s.critic.warmup_steps if self.critic else 0
        old = self._old_log_probs(episodes)
        base = self._base_log_probs(episodes)
        cases = [self._case(episode, old, base) for episode in episodes]
        judged = self._evaluate_proposals(cases)
        report = Report()
        self.comparing = begun(self, episodes, cases, step) if self.s.objective.reads_pairs else None
        if base and step >= warm_up:
            terms = [k3(o, b) for i in base for o, b in zip(old[i], base[i], strict=True)]
            report.metrics["kl_to_base"] = sum(terms) / len(terms)
        if step >= warm_up:
            self._update_policies(episodes, cases, judged, (old, base), report, step, environment_steps)
        if self.comparing:
            report.metrics = self.comparing.metrics(report.metrics)
        if self.critic:
            self._fit_model(cases, [j.monte_carlo if step < warm_up else j.returns for j in judged], report, step)
        return report

    def _evaluate_proposals(self, cases: Sequence[Case]) -> list[Judged]:
        """What each decision is worth; nothing, where the recipe says so and every episode was paid alike."""
        judged = judge(cases, self.s.credit, self.baselines)
        if self.s.equal_rewards == "zero" and all(_paid(a) == _paid(cases[0]) for a in cases):
            return [replace(verdict, advantages=[[0.0] * len(row) for row in verdict.advantages]) for verdict in judged]
        return judged

    # ---- before anything moves

    def _scores(self, action: Action) -> Scores:
        policy = self.policies[action.policy]
        return score(policy.base, policy.weights(), action, self.agents[action.agent].sampling.temperature)

    def _old_log_probs(self, episodes: Sequence[Episode]) -> dict[int, list[float]]:
        """π_old of trained actions: the policies as the step finds them, whatever the engine has rounded."""
        with torch.no_grad():
            return {
                action.key: self._scores(action).numbers()
                for episode in episodes
                for action in episode.actions
                if action.policy in self.trained
            }

    def _base_log_probs(self, episodes: Sequence[Episode]) -> dict[int, list[float]]:
        """Of trained actions under the untuned base, adapters off."""
        found = {}
        for action in (a for e in episodes for a in e.actions):
            if action.policy in self.trained and self.s.kl.coefficient:
                with torch.no_grad():
                    temperature = self.agents[action.agent].sampling.temperature
                    found[action.key] = score(self.policies[action.policy].base, {}, action, temperature).numbers()
        return found

    def _case(self, episode: Episode, old: Mapping[int, list[float]], base: Mapping[int, list[float]]) -> Case:
        costs = []
        for action in episode.actions:
            row = [0.0] * action.num_decisions
            if self.s.kl.apply_to == "reward" and action.key in base:  # k1 of each decision; nobody else pays
                row = [
                    self.s.kl.coefficient * max(-20.0, min(20.0, o - b))
                    for o, b in zip(old[action.key], base[action.key], strict=True)
                ]
            costs.append(row if self.s.level == "token" else [sum(row)])
        learning = {role for role, agent in self.agents.items() if agent.policy in self.trained}
        limits = {role: agent.sampling.max_new_tokens for role, agent in self.agents.items()}
        learns = [action.policy in self.trained for action in episode.actions]
        case = Case(episode, payments(episode, self.s.reward, limits, learning), costs, learns)
        if self.critic:
            case.values = [
                [self.critic.worth(head, read) for head, read in self._load_network(a)] for a in episode.actions
            ]
            case.final = self._final_values(episode)
        return case

    def _load_network(self, action: Action) -> list[tuple[str, Any]]:
        head = self._head(action.agent, action.policy)
        return [(head, read) for read in reading(action, self.s.level, self.s.critic.kind == "independent")]

    def _head(self, agent: str, policy: str) -> str:
        model = self.run.policies[policy].model
        return f"{model}/{agent}" if self.s.critic.heads == "agent" else model

    def _final_values(self, episode: Episode) -> dict[str, float]:
        """V of the state that a truncated episode ends in, by agent: what its head says where the agent itself would
        read it. Whoever decided first in the last step comes first."""
        assert self.critic is not None
        policies = {action.agent: action.policy for action in episode.actions}
        return {
            agent: self.critic.worth(self._head(agent, policies[agent]), (tuple(ids.tolist()), len(ids) - 1))
            for agent, ids in episode.bootstrap.items()
        }

    def _rows(
        self, episodes: Sequence[Episode], judged: Sequence[Judged], known: tuple[dict[int, list[float]], ...]
    ) -> list[Row]:
        """The trained actions, with advantages normalised over their decisions."""
        old, base = known
        rows = [
            Row(
                action, old[action.key], [float(x) for x in action.log_probs], base.get(action.key, []),
                self._z(action), list(verdict.advantages[k]), _succeeded(episode),
            )
            for episode, verdict in zip(episodes, judged, strict=True)
            for k, action in enumerate(episode.actions)
            if action.policy in self.trained and (not verdict.trained or verdict.trained[k])
        ]  # fmt: skip
        if self.s.normalize_advantages:
            flat = [a for row in rows for a in row.advantages]
            mean = sum(flat) / len(flat)
            deviation = math.sqrt(sum((a - mean) ** 2 for a in flat) / (len(flat) - 1)) if len(flat) > 1 else 0.0
            for row in rows:
                row.advantages = [(a - mean) / (deviation + 1e-8) for a in row.advantages]
        return rows

    def _z(self, action: Action) -> float:
        """Z of eq. 6. A choice is normalised option by option."""
        if self.s.normalization == "none" or action.choice is not None:
            return 1.0
        if self.s.normalization == "tokens":
            return float(action.num_decisions)
        return float(
            max(1, len(action.agent_text.split()) + sum(len(text.split()) for text in action.intermediate_texts))
        )

    # ---- the policies

    def _update_policies(
        self, episodes: Sequence[Episode], cases: Sequence[Case], judged: Sequence[Judged],
        known: tuple[dict[int, list[float]], ...], report: Report, step: int, environment_steps: int,
    ) -> None:  # fmt: skip
        tally, schedule = Tally(), self.s.schedule
        phases: list[tuple[list[str], float]] = [(self.trained, 1.0)]  # who, and the scale of the clip
        if schedule.name == "agent-by-agent":
            phases = [([self._whose_turn(environment_steps)], 1.0)]
        if schedule.name in ("sequential", "a2po"):
            order = orders.turns(self.trained, self.run.seed, step)
            if schedule.name == "a2po":
                order = self._semi_greedy(order, episodes, judged)
            c, n = getattr(schedule, "first_clip", 1.0), len(order)
            phases = [([name], c + (1 - c) * i / n) for i, name in enumerate(order, 1)]
        before: list[str] = []
        for who, scale in phases:
            rows = self._rows(episodes, judged, known)
            if schedule.name == "sequential":
                rows = [replace(row, advantages=[self._move(row.action, episodes, known[0], before) * a
                                                 for a in row.advantages]) for row in rows]  # fmt: skip
            if schedule.name == "a2po":
                rows = self._joined(episodes, cases, known, before, scale)
            moving = [name for phase, _ in phases for name in phase if name in {row.action.policy for row in rows}]
            budget = self.s.team_kl * len([name for name in moving if name in who]) / max(1, len(moving))
            steps = {(e.task.id, e.sample, a.step) for e in episodes for a in e.actions if a.policy in self.trained}
            mine = [row for row in rows if row.action.policy in who]
            self._phase(mine, who, scale, tally, report, step, budget, len(steps))
            before += who
        report.metrics |= tally.metrics()

    def _semi_greedy(self, drawn: Sequence[str], episodes: Sequence[Episode], judged: Sequence[Judged]) -> list[str]:
        """A2PO: by turns the policy with the largest mean |advantage| of those left, and one that is drawn."""
        sizes: dict[str, list[float]] = {name: [] for name in drawn}
        for episode, verdict in zip(episodes, judged, strict=True):
            for action, row in zip(episode.actions, verdict.advantages, strict=True):
                if action.policy in sizes:
                    sizes[action.policy] += [abs(a) for a in row]
        left, order = list(drawn), []
        while left:
            largest = max(left, key=lambda name: sum(sizes[name]) / max(1, len(sizes[name])))
            order.append(left[0] if len(order) % 2 else largest)
            left.remove(order[-1])
        return order

    def _whose_turn(self, environment_steps: int) -> str:
        if environment_steps - self.turn_began >= self.s.schedule.interval:
            self.turn, self.turn_began = self.turn + 1, environment_steps
        return self.trained[self.turn % len(self.trained)]

    def _move(
        self, action: Action, episodes: Sequence[Episode], old: Mapping[int, list[float]], before: Sequence[str]
    ) -> float:
        """M: the product over what the policies before did in the action's step of how much likelier it has become,
        each over its length, cut to [1/limit, limit] (HAPPO: Kuba et al. 2022)."""
        total = 0.0
        for other in next(e for e in episodes if any(a is action for a in e.actions)).actions:
            if other.step == action.step and other.policy in before:
                with torch.no_grad():
                    now = self._scores(other).numbers()
                total += sum(n - o for n, o in zip(now, old[other.key], strict=True)) / len(now)
        bound = math.log(self.s.schedule.ratio_limit)
        return math.exp(max(-bound, min(bound, total)))

    def _joined(
        self, episodes: Sequence[Episode], cases: Sequence[Case], known: tuple[dict[int, list[float]], ...],
        before: Sequence[str], scale: float,
    ) -> list[Row]:  # fmt: skip
        """A2PO (Wang et al. 2023): advantages traced through what has moved; ratios times clip(ρ, 1 ± ε_i / 2)."""
        for case in cases:
            case.ratios = [self._move(a, episodes, known[0], before) for a in case.actions]
        rows = self._rows(episodes, self._evaluate_proposals(cases), known)
        width = scale * self.s.objective.clip / 2
        ratio = {a.key: r for case in cases for a, r in zip(case.actions, case.ratios, strict=True)}
        return [
            replace(row, log_factor=math.log(min(1 + width, max(1 - width, ratio[row.action.key])))) for row in rows
        ]

    def _phase(
        self, rows: Sequence[Row], who: Sequence[str], scale: float, tally: Tally, report: Report, step: int,
        budget: float, steps: int,
    ) -> None:  # fmt: skip
        """``budget``: nats an environment step, of ``steps``, that the phase may move by; 0 is no limit."""
        if not rows:
            return
        limit = getattr(self.s.schedule, "kl_limit", 0.0)
        start = {name: {n: p.clone() for n, p in self.policies[name].parameters.items()} for name in who}
        moments = {name: self.adams[name].copy() for name in who}
        self._run_epochs(rows, scale, tally, report, step)
        if limit:
            self._accept(rows, start, moments, limit, scale, tally)
        if budget:
            self._hold(rows, start, moments, budget, steps, tally)
        tally.reached += self._k3(rows)

    def _run_epochs(self, rows: Sequence[Row], scale: float, tally: Tally, report: Report, step: int) -> None:
        for epoch in range(self.s.epochs):
            for part in self._minibatches(rows, step, epoch):
                if not part:
                    continue
                goes_on = self._process_minibatch(part, scale, tally, report, step)
                if epoch == 0:
                    tally.seen[-1].off = [abs(o - e) for r in part for o, e in zip(r.old, r.engine, strict=True)]
                if not goes_on:
                    tally.stops += 1
                    return

    def _minibatches(self, rows: Sequence[Row], step: int, epoch: int) -> list[list[Row]]:
        if self.comparing:
            return self.comparing.split(rows, self.run.seed, step, epoch)
        parts: list[list[Row]] = [[] for _ in range(self.s.minibatches)]
        for name in sorted({row.action.policy for row in rows}):
            mine = [row for row in rows if row.action.policy == name]
            drawn = orders.policy_minibatches(self.s.minibatches, len(mine), self.run.seed, name, step, epoch)
            for part, indices in zip(parts, drawn, strict=True):
                part += [mine[i] for i in indices]
        return parts

    def _process_minibatch(self, rows: Sequence[Row], scale: float, tally: Tally, report: Report, step: int) -> bool:
        """False where the KL of the whole minibatch stops the phase."""
        weights = {name: self.policies[name].weights() for name in {row.action.policy for row in rows}}
        scores = [
            score(self.policies[r.action.policy].base, weights[r.action.policy], r.action,
                  self.agents[r.action.agent].sampling.temperature)
            for r in rows
        ]  # fmt: skip
        loss, seen = policy_loss(rows, scores, self.s, self._constant_length(), scale)
        if self.comparing:
            loss = loss + self.comparing.loss(rows, scores, self._scores)
        tally.seen.append(seen)
        if self.s.kl_stop and sum(seen.kl) / len(seen.kl) > self.s.kl_stop:
            seen.clipped.clear()  # nothing is stepped on
            seen.weights.clear()
            return False
        tally.losses.append(loss.item())
        who = sorted(weights)
        flat = [p for name in who for p in self.policies[name].parameters.values()]
        found = iter(torch.autograd.grad(loss, flat, allow_unused=True))
        for name in who:
            parameters = self.policies[name].parameters
            gradients = {
                n: g for n, g in zip(parameters, [next(found) for _ in parameters], strict=True) if g is not None
            }
            tally.norms.append(norm_of(gradients))
            cut = clipped(gradients, self.s.optimizer.max_gradient_norm)
            rate = self._rate(name, step)
            report.moved.append(Moved(name, cut, dict.fromkeys(cut, rate)))
            self.adams[name].step(parameters, cut, report.moved[-1].rates)
        return True

    def _rate(self, policy: str, step: int) -> float:
        """Counted from the first step that moves policies: the critic's warm-up does not eat theirs."""
        warm_up = self.s.critic.warmup_steps if self.critic else 0
        fraction = rate_at(self.s.optimizer, step - warm_up, self.run.training.steps - warm_up)
        return (self.run.policies[policy].learning_rate or self.s.optimizer.learning_rate) * fraction

    def _constant_length(self) -> int:
        learning = [agent.sampling.max_new_tokens for agent in self.agents.values() if agent.policy in self.trained]
        return self.s.constant_length or max(learning)

    def _accept(
        self, rows: Sequence[Row], start: Mapping[str, Mapping[str, Tensor]], moments: Mapping[str, AdamW], limit: float,
        scale: float, tally: Tally,
    ) -> None:  # fmt: skip
        """HATRPO's line search (Kuba et al. 2022): the whole update, its half, its quarter …, or nothing. It must stay
        within the trust region and improve the surrogate."""
        end = {name: {n: p.detach().clone() for n, p in self.policies[name].parameters.items()} for name in start}
        self._place(start, end, 0.0)
        before = self._surrogate(rows, scale)
        for halvings in range(BACKTRACKS + 1):
            self._place(start, end, 0.5**halvings)
            if self._kl(rows) <= limit and self._surrogate(rows, scale) < before:
                tally.accepted.append(0.5**halvings)
                return
        self._place(start, end, 0.0)
        self.adams.update(moments)
        tally.accepted.append(0.0)

    def _hold(
        self, rows: Sequence[Row], start: Mapping[str, Mapping[str, Tensor]], moments: Mapping[str, AdamW],
        budget: float, steps: int, tally: Tally,
    ) -> None:  # fmt: skip
        """The team's trust region: the whole update, or the part of it whose KL is 95 % of the budget, were KL a square;
        five tries, or nothing."""
        end = {name: {n: p.detach().clone() for n, p in self.policies[name].parameters.items()} for name in start}
        fraction, tries = 1.0, 0
        while (moved := sum(self._k3(rows)) / steps) > budget and tries < BACKTRACKS:
            fraction, tries = fraction * math.sqrt(0.95 * budget / moved), tries + 1
            self._place(start, end, fraction)
        if moved > budget:
            self._place(start, end, 0.0)
            self.adams.update(moments)
            fraction, moved = 0.0, 0.0
        tally.accepted.append(fraction)
        tally.held.append(moved)

    @torch.no_grad()
    def _surrogate(self, rows: Sequence[Row], scale: float) -> float:
        """The objective alone, over all of a phase."""
        bare = self.s.model_copy(update={
            "entropy_coefficient": 0.0, "nll_coefficient": 0.0, "kl": self.s.kl.model_copy(update={"coefficient": 0.0}),
            "teammate_text": self.s.teammate_text.model_copy(update={"coefficient": 0.0}),
        })  # fmt: skip
        scores = [self._scores(row.action) for row in rows]
        return policy_loss(rows, scores, bare, self._constant_length(), scale)[0].item()

    @torch.no_grad()
    def _place(
        self, start: Mapping[str, Mapping[str, Tensor]], end: Mapping[str, Mapping[str, Tensor]], fraction: float
    ) -> None:
        for name in start:
            for n, p in self.policies[name].parameters.items():
                p.copy_(start[name][n] + fraction * (end[name][n] - start[name][n]))

    def _kl(self, rows: Sequence[Row]) -> float:
        terms = self._k3(rows)
        return sum(terms) / len(terms)

    @torch.no_grad()
    def _k3(self, rows: Sequence[Row]) -> list[float]:
        """Of every token, how far it has moved."""
        return [k3(o, n) for row in rows for o, n in zip(row.old, self._scores(row.action).numbers(), strict=True)]

    # ---- the critic

    def _fit_model(
        self, cases: Sequence[Case], targets: Sequence[list[list[float]]], report: Report, step: int
    ) -> None:
        assert self.critic is not None
        reads = [read for case in cases for action in case.actions for read in self._load_network(action)]
        old = [v for case in cases for row in case.values for v in row]
        flat = [t for of_episode in targets for row in of_episode for t in row]
        c = self.s.critic
        parts = [
            orders.critic_minibatches(c.minibatches, len(flat), self.run.seed, step, epoch) for epoch in range(c.epochs)
        ]
        steps, metrics = self.critic.fit(reads, old, flat, parts)
        report.moved += [Moved("critic", cut, self.critic.rates) for _, cut in steps]
        report.metrics |= metrics
