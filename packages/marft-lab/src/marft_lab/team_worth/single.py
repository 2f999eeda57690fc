"""Single-agent comparison at the team's token budget: as many attempts per task as the team's tokens pay for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft_lab.team_worth.arms import BASE, Arm, Player
from marft_lab.team_worth.bench import Bench
from marft_lab.team_worth.scores import Row, by_task, row_of, scores_of, scores_of_chosen, tokens_of
from marft_lab.team_worth.voting import Canonical, affordable, best, stated, voted

PART = "single"


def answering_role(run: RunSettings) -> str:
    """Return the role of the answering agent: the organization's answering role, or the last agent that answers."""
    answering = [agent.role for agent in run.agents if agent.answers]
    return run.team.answering_role(answering) or answering[-1]


def problem_of(run: RunSettings) -> str:
    """Return the reason why a team has no single-agent arm; "" for a team with such an arm."""
    if run.team.own_words:
        return "the team is a program, whose agents have no prompts but those that it makes: none can be asked alone"
    return ""


def arms_of(run: RunSettings, weights: Mapping[str, str]) -> dict[str, Arm]:
    """Return the arms of the answering agent as a single agent, with trained weights and with the base's weights."""
    role = answering_role(run)
    policy = next(agent.policy for agent in run.agents if agent.role == role)
    arms = {f"{role} alone": Arm(weights, alone=role)}
    if weights.get(policy, BASE) != BASE:
        arms[f"{role} alone, untuned"] = Arm(dict.fromkeys(weights, BASE), alone=role)
    return arms


def single(bench: Bench) -> list[Row]:
    """Compare each single-agent arm with the team."""
    role = answering_role(bench.run)
    return [
        row
        for name, arm in arms_of(bench.run, bench.arm.weights).items()
        for row in held_against(bench, bench.player, arm, name, role)
    ]


def held_against(bench: Bench, player: Player, arm: Arm, name: str, role: str) -> list[Row]:
    """Compare a single agent with the team: one attempt, the best attempt within the token budget, and a majority vote.

    Args:
        bench: context of the comparison.
        player: player of the arm.
        arm: arm of the single agent.
        name: name of the rows.
        role: role of the agent.
    """
    budget = _mean_tokens(bench.episodes)
    few = player.play(replace(arm, samples=bench.arm.samples))
    cost = _mean_tokens(few)
    paid = int(budget // cost) if cost else 1
    wanted = min(bench.options.attempts, paid)
    more = wanted - bench.arm.samples
    bench.expect(f"{PART} {name}", max(wanted, bench.arm.samples) * len(player.tasks))
    late = player.play(replace(arm, first=bench.arm.samples, samples=more)) if more > 0 else []
    groups = {task: sorted(some, key=lambda e: e.sample) for task, some in by_task([*few, *late]).items()}
    costs = [[tokens_of(episode) for episode in some] for some in groups.values()]
    count = affordable(costs, budget) if wanted else 0
    if cost and not count:
        bench.note(PART, f"one attempt of {name} takes more tokens than the team's: it has one all the same")
    elif paid > wanted:
        bench.note(PART, f"{name}: the team's tokens would pay for {paid} attempts, and it has {wanted} (--attempts)")
    rows = [row_of(PART, name, scores_of([*few, *late]), bench.team)]
    if count < 2:
        return rows
    canonical = _canonical(bench.run, player.tasks)
    first = {task: some[:count] for task, some in groups.items()}
    failed = sum(not episode.scored for episode in [*few, *late])
    ways: dict[str, Callable[[Sequence[Episode]], Episode]] = {f"best of {count} (verifier)": best}
    if all(len(episode.transitions) == 1 for some in first.values() for episode in some):
        ways[f"majority of {count}"] = lambda some: voted(some, role, canonical, (bench.run.seed, some[0].task.id))
    else:
        bench.note(PART, "no majority is taken: an episode of several steps has no one answer")
    for way, choose in ways.items():
        chosen: Mapping[str, Episode] = {task: choose(some) for task, some in first.items()}
        rows.append(row_of(PART, f"{name}, {way}", scores_of_chosen(chosen, first, failed, count), bench.team))
    return rows


def _mean_tokens(episodes: Sequence[Episode]) -> float:
    """Return the tokens per attempt, as the mean over tasks of each task's mean."""
    groups = by_task(episodes).values()
    return sum(sum(map(tokens_of, some)) / len(some) for some in groups) / len(groups) if groups else 0.0


def _canonical(run: RunSettings, tasks: Sequence[Task]) -> Canonical:
    """Return the environment's ``canonical(task, text)``, or a default."""
    own: Canonical | None = getattr(run.environment, "canonical", None)
    if own is None:
        return stated
    whole = {task.id: task for task in tasks}  # tasks of recorded episodes lack their data
    return lambda task, text: own(whole[task.id], text)
