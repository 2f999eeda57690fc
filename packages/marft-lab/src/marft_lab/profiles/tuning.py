"""Rounds of prompt optimization: proposals, trials and tests for each agent in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

from marft.agents.game import Attempt
from marft.agents.rendering import PromptTooLongError
from marft.common.errors import EpisodeFailedError
from marft.common.faults import described
from marft.common.lineage import Lineage, Version, Worth
from marft.common.seeds import generator
from marft.common.texts import storable
from marft.common.types import ActionKey, Episode, Sampling, Task
from marft.config.run import RunSettings
from marft.evaluation.evaluate import team_in
from marft.rollout.playing import Rollouts
from marft_lab.profiles.judging import Outcomes, halved, worth
from marft_lab.profiles.proposals import Asked, Proposal, Proposer, Told, ranked
from marft_lab.profiles.settings import ProfileSettings

STREAM = "profiles"


class Instructs(Rollouts, Protocol):
    """Rollouts with changed instructions, and requests to policies."""

    def instruct(self, versions: Sequence[Version]) -> None: ...

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]: ...


@dataclass(slots=True)
class Tuner:
    """Prompt tuner; a round is a pure function of the seed, the step, the lineage, the weights and the step's episodes.

    Args:
        rollouts: rollouts of the run.
        settings: settings of prompt optimization.
        tasks: tasks for trials and tests.
        note: callback for warnings.
    """

    rollouts: Instructs
    settings: ProfileSettings
    tasks: Sequence[Task]
    note: Callable[[str], None] = lambda _: None

    @property
    def run(self) -> RunSettings:
        """Settings of the run."""
        return self.rollouts.run

    def begun(self) -> Lineage:
        """Return the initial lineage with the recipe's instructions."""
        told = {agent.role: agent.instructions for agent in self.run.agents}
        return Lineage.begun({role: told[role] for role in self.settings.roles(self.run)})

    def round(self, lineage: Lineage, step: int, episodes: Sequence[Episode]) -> tuple[Lineage, dict[str, float]]:
        """Play a round, activate the resulting instructions, and return the new lineage with metrics.

        Args:
            lineage: lineage before the round.
            step: finished training steps.
            episodes: episodes for proposers.
        """
        before, limit = lineage, self.settings.tokens
        for role in lineage.current:
            if limit and lineage.tokens >= limit:
                break
            lineage = _Turn(self, lineage, role, step).taken(episodes)
            self.rollouts.instruct(lineage.told())
        if before.tokens < limit <= lineage.tokens:
            self.note(f"step {step}: profiles.tokens = {limit} are taken: nothing more is tried")
        lineage = replace(lineage, rounds=lineage.rounds + 1)
        return lineage, _metrics(before, lineage)


class _Turn:
    """An agent's turn in a round."""

    def __init__(self, tuner: Tuner, lineage: Lineage, role: str, step: int) -> None:
        self.tuner, self.lineage, self.role, self.step = tuner, lineage, role, step
        self.settings, self.rollouts, self.tokens, self.questions = tuner.settings, tuner.rollouts, 0, 0
        self.stream = f"{STREAM}/{step}/{role}"

    def taken(self, episodes: Sequence[Episode]) -> Lineage:
        """Return the lineage after the turn."""
        proposals = self._proposals(episodes)
        tried = self._judged(proposals) if proposals else []
        lineage = self.lineage.tried(tried)
        return replace(lineage, tokens=lineage.tokens + self.tokens)

    def _proposals(self, episodes: Sequence[Episode]) -> list[Proposal]:
        now, versions = self.lineage.now(self.role), self.lineage.of(self.role)
        read = [e for e in episodes if e.scored and any(action.agent == self.role for action in e.actions)]
        rng = generator(self.tuner.run.seed, STREAM, "proposals", self.step, self.role)
        asked = Asked(
            role=self.role,
            current=now,
            versions=ranked(versions, now),
            failed=[Told.of(episode) for episode in read if episode.success is False],
            solved=[Told.of(episode) for episode in read if episode.success],
            count=self.settings.candidates,
            rng=rng,
            ask=self._ask,
        )
        try:
            found = list(cast("Proposer", self.settings.proposer).propose(asked))
            problem = _problem(found, [version.number for version in versions])
        except Exception as error:  # noqa: BLE001  a failure of user code only costs its own turn
            problem = f"raised {described(error)}"
        if problem:
            self._note(f"proposer {self.settings.proposer.name!r} {problem}; nothing is tried")
            return []
        return list(self._usable(found, [version.instructions for version in versions]))[: self.settings.candidates]

    def _usable(self, found: Iterable[Proposal], known: Iterable[str]) -> Iterator[Proposal]:
        seen = set(known)
        for proposal in found:
            text = proposal.instructions.strip()
            if len(text) > self.settings.longest:
                self._note(f"a proposal of {len(text)} characters is dropped (profiles.longest)")
            elif text and text not in seen:
                seen.add(text)
                yield replace(proposal, instructions=text)

    def _judged(self, proposals: Sequence[Proposal]) -> list[Version]:
        choosing, testing = self._tasks(len(proposals) > 1)
        candidates = [self._version(number, proposal) for number, proposal in enumerate(proposals)]
        best, found = halved(candidates, choosing, partial(self._outcomes, tried=True))
        now = self.lineage.now(self.role)
        known = self._outcomes(now, [*choosing, *testing], tried=False)
        worths = [worth(known, outcomes) for outcomes in found]
        worths[best] = worth(known, self._outcomes(candidates[best], testing, tried=True))
        kept = self._accepts(worths[best])
        self._tell(candidates[best], worths[best], kept)
        return [
            replace(one, worth=worths[place], accepted=kept and place == best) for place, one in enumerate(candidates)
        ]

    def _tell(self, best: Version, found: Worth | None, kept: bool) -> None:
        """Report the best candidate's result."""
        if found is None and not self._tasks(False)[1]:
            self._note("there are no tasks to judge candidates by: all of the validation split are set aside")
        elif found is None:
            self._note("of no task is it known whether it was solved (Step.success): no candidate can be judged")
        if found is None:
            return
        gain = f"{100 * found.gain:+.0f} points ({100 * found.gain_low:+.0f} to {100 * found.gain_high:+.0f})"
        what = "is what it is told from here on" if kept else "is tried and not taken"
        self._note(f"v{best.number} {what}: {gain} on {found.tasks} tasks")

    def _tasks(self, several: bool) -> tuple[list[Task], list[Task]]:
        """Return tasks to choose a candidate and separate tasks to test the candidate, newly drawn for every turn.

        With few tasks both sets are smaller.
        """
        tasks = [task for task in self.tuner.tasks if task.id not in self.rollouts.set_aside]
        order = generator(self.tuner.run.seed, STREAM, "tasks", self.step, self.role).permutation(len(tasks))
        wanted = self.settings.tasks
        testing = min(wanted, max(1, len(tasks) * 2 // 3) if several else len(tasks), len(tasks))
        drawn = [tasks[int(place)] for place in order[: testing + (testing // 2 if several else 0)]]
        return drawn[testing:], drawn[:testing]

    def _version(self, number: int, proposal: Proposal) -> Version:
        proposer = self.settings.proposer
        asks = ", ".join(f"{name}@{self.rollouts.version(name)}" for name in proposer.asks)
        by = f"{proposer.name}: {asks}" if asks else proposer.name
        number += len(self.lineage.of(self.role))
        return Version(self.role, number, proposal.instructions, proposal.parents, proposal.how, by, self.step, False)

    def _outcomes(self, version: Version, tasks: Sequence[Task], *, tried: bool) -> Outcomes:
        """Return the success of a version on tasks, by id.

        A failed episode is omitted for the current version, and counts as not solved for a tried version. Otherwise
        failing episodes would improve a tried version.
        """
        others = [told for told in self.lineage.told() if told.role != self.role]
        self.rollouts.instruct([*others, version])
        attempts = [Attempt(task, self.stream) for task in tasks]
        episodes = self.rollouts.play(attempts, team_in(self.settings.mode, self.rollouts.team))
        self.tokens += tokens_of(episodes)
        return {e.task.id: bool(e.success) for e in episodes if (e.success is not None if e.scored else tried)}

    def _accepts(self, found: Worth | None) -> bool:
        if found is None:
            return False
        if self.settings.accept == "better":
            return found.gain_low > 0
        return found.gain > 0 and found.gain_low >= -self.settings.tolerance

    def _ask(self, policy: str, question: str, sampling: Sampling) -> str:
        self.questions += 1
        key = ActionKey(self.stream, "question", self.questions, 0, "proposer", 0)
        try:
            said, tokens = self.rollouts.ask(policy, question, sampling, key)
        except (EpisodeFailedError, PromptTooLongError) as error:
            self._note(f"policy {policy!r} could not be asked: {error}")
            return ""
        self.tokens += tokens
        return said

    def _note(self, text: str) -> None:
        self.tuner.note(f"step {self.step}: profiles.{self.role}: {text}")


def tokens_of(episodes: Iterable[Episode]) -> int:
    """Return the number of prompt tokens and sampled tokens."""
    return sum(len(action.prompt) + len(action.tokens) for episode in episodes for action in episode.actions)


def _problem(found: Sequence[object], numbers: Sequence[int]) -> str:
    """Return the problem of invalid proposals; "" for valid proposals."""
    for one in found:
        if not isinstance(one, Proposal) or not (_is_text(one.instructions) and _is_text(one.how)):
            return f"gave {one!a:.80}, which is no Proposal (marft_lab.profiles.proposals)"
        if not isinstance(one.parents, tuple) or any(type(parent) is not int for parent in one.parents):
            return f"gave the parents {one.parents!a:.80}, and they are a tuple of numbers"
        if not set(one.parents) <= set(numbers):
            return f"names parents {one.parents}, and the agent's versions are {', '.join(map(str, numbers))}"
    return ""


def _is_text(text: object) -> bool:
    return isinstance(text, str) and storable(text) == text


def _metrics(before: Lineage, after: Lineage) -> dict[str, float]:
    tried = after.versions[len(before.versions) :]
    accepted = [version for version in tried if version.accepted]
    gains = [version.worth.gain for version in accepted if version.worth]
    return {
        "profiles/tried": float(len(tried)),
        "profiles/accepted": float(len(accepted)),
        **({"profiles/gain": sum(gains) / len(gains)} if gains else {}),
        "profiles/tokens": float(after.tokens - before.tokens),
    }


def versions_told(lineage: Lineage) -> dict[str, float]:
    """Return the number of each agent's active version, as metrics."""
    return {f"agents/{role}/profile_version": float(number) for role, number in lineage.current.items()}
