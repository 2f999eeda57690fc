"""Rounds of prompt optimization between training steps: proposals, trials and tests for each agent in turn.

The method is successive halving (Jamieson and Talwalkar 2016): many candidates play few tasks, and the better half
plays twice as many. The choice biases its own tasks, so the final test uses separate tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from marft.agents.game import Attempt
from marft.agents.prompt_messages import PromptTooLongError
from marft.common import atomic
from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError
from marft.common.log import get_logger
from marft.common.prompt_history import PromptHistory, PromptScore, PromptVersion
from marft.common.seeds import generator
from marft.common.texts import replace_surrogates
from marft.common.types import ActionKey, Episode, SamplingParams, Task
from marft.config.run import RunSettings
from marft.evaluation.evaluate import team_for_mode
from marft.evaluation.intervals import paired_difference, wilson_interval
from marft.rollout.runner import RolloutRunner
from marft.runs.run_folder import RunFolder
from marft.runs.state import LINEAGE_ADAPTER, State
from marft.trainer.hooks import PromptOptimizer
from marft_lab.prompt_optimization.prompts import AttemptTranscript
from marft_lab.prompt_optimization.proposals import (
    Proposal,
    ProposalRequest,
    rank_versions,
)
from marft_lab.prompt_optimization.settings import PromptOptimizerSettings

logger = get_logger(__name__)
T = TypeVar("T")
Outcomes = dict[str, bool]  # success of each task, by id; tasks without a known outcome are omitted
Play = Callable[[T, Sequence[Task]], Outcomes]
STREAM = "profiles"
FILE_NAME = "profiles.json"  # full lineage for readers; a run resumes from its checkpoints instead


def halving_rounds(candidates: int, tasks: int) -> list[int]:
    """Return the cumulative number of tasks after each round of halving; empty for a single candidate.

    >>> halving_rounds(4, 32), halving_rounds(5, 32), halving_rounds(1, 32)
    ([16, 32], [8, 16, 32], [])

    Args:
        candidates: number of candidates.
        tasks: number of tasks for the last round.
    """
    rounds = (candidates - 1).bit_length()
    return [max(1, tasks >> remaining) for remaining in reversed(range(rounds))]


def select_best(candidates: Sequence[T], tasks: Sequence[Task], play: Play[T]) -> tuple[int, list[Outcomes]]:
    """Return the best candidate's index, and every candidate's outcomes.

    Ties go to the first candidate.

    Args:
        candidates: candidates to compare.
        tasks: tasks for the choice.
        play: function that plays tasks with a candidate.
    """
    outcomes: list[Outcomes] = [{} for _ in candidates]
    remaining, task_count = list(range(len(candidates))), 0
    for size in halving_rounds(len(candidates), len(tasks)):
        for index in remaining:
            outcomes[index] |= play(candidates[index], tasks[task_count:size])
        task_count = size
        remaining = sorted(
            sorted(remaining, key=lambda index: -success_rate(outcomes[index]))[: (len(remaining) + 1) // 2]
        )
    return remaining[0], outcomes


def success_rate(outcomes: Mapping[str, bool]) -> float:
    """Return the fraction of solved tasks; 0 without a known outcome."""
    return sum(outcomes.values()) / len(outcomes) if outcomes else 0.0


def measure_gain(before: Mapping[str, bool], after: Mapping[str, bool]) -> PromptScore | None:
    """Return a candidate's gain over the current version, on tasks with both outcomes; None without common tasks."""
    common = before.keys() & after.keys()
    if not common:
        return None
    gain, (gain_low, gain_high) = paired_difference([before[task] for task in common], [after[task] for task in common])
    solved = sum(after[task] for task in common)
    low, high = wilson_interval(solved, len(common))
    return PromptScore(len(common), solved / len(common), low, high, gain, gain_low, gain_high)


@dataclass(slots=True)
class PromptSearch(PromptOptimizer):
    """Prompt optimizer between training steps.

    A round is a pure function of the seed, the step, the lineage, the weights and the step's episodes.

    Args:
        rollouts: rollouts of the run.
        settings: settings of prompt optimization.
        tasks: tasks for trials and tests.
    """

    rollouts: RolloutRunner
    settings: PromptOptimizerSettings
    tasks: Sequence[Task]

    @property
    def run(self) -> RunSettings:
        """Settings of the run."""
        return self.rollouts.run

    def initial_lineage(self) -> PromptHistory:
        """Return the initial lineage with the recipe's instructions."""
        instructions = {agent.role: agent.instructions for agent in self.run.agents}
        return PromptHistory.start({role: instructions[role] for role in self.settings.roles(self.run)})

    def restore(self, state: State, folder: RunFolder) -> State:
        """Return the state with the restored or initial lineage, and activate its instructions."""
        lineage = state.prompts or self.initial_lineage()
        self.rollouts.set_prompt_versions(lineage.current_versions())
        _write_lineage(folder, lineage)
        return replace(state, prompts=lineage)

    def step(self, state: State, episodes: Sequence[Episode], folder: RunFolder) -> tuple[State, dict[str, float]]:
        """Play a round if due; return the state with the new lineage, and metrics."""
        lineage, metrics = state.prompts, dict[str, float]()
        assert lineage is not None, "restore has begun it"
        if self.settings.is_due(state.step):
            lineage, metrics = self.play_round(lineage, state.step, episodes)
            _write_lineage(folder, lineage)
        return replace(state, prompts=lineage), metrics | version_metrics(lineage)

    def play_round(
        self, lineage: PromptHistory, step: int, episodes: Sequence[Episode]
    ) -> tuple[PromptHistory, dict[str, float]]:
        """Play a round, activate the resulting instructions, and return the new lineage with metrics.

        Args:
            lineage: lineage before the round.
            step: finished training steps.
            episodes: episodes for proposers.
        """
        before, limit = lineage, self.settings.token_budget
        for role in lineage.current:
            if limit and lineage.tokens >= limit:
                break
            lineage = _AgentSearch(self, lineage, role, step).run(episodes)
            self.rollouts.set_prompt_versions(lineage.current_versions())
        if before.tokens < limit <= lineage.tokens:
            logger.warning(f"step {step}: prompt_optimization.token_budget = {limit} are taken: nothing more is tried")
        lineage = replace(lineage, rounds=lineage.rounds + 1)
        return lineage, _round_metrics(before, lineage)


class _AgentSearch:
    """An agent's turn in a round."""

    def __init__(self, search: PromptSearch, lineage: PromptHistory, role: str, step: int) -> None:
        self.search, self.lineage, self.role, self.step = search, lineage, role, step
        self.settings, self.rollouts, self.tokens, self.questions = search.settings, search.rollouts, 0, 0
        self.stream = f"{STREAM}/{step}/{role}"

    def run(self, episodes: Sequence[Episode]) -> PromptHistory:
        """Return the lineage after the turn."""
        proposals = self._request_proposals(episodes)
        candidates = self._evaluate_proposals(proposals) if proposals else []
        lineage = self.lineage.add_versions(candidates)
        return replace(lineage, tokens=lineage.tokens + self.tokens)

    def _request_proposals(self, episodes: Sequence[Episode]) -> list[Proposal]:
        current, versions = self.lineage.current_version(self.role), self.lineage.for_role(self.role)
        relevant = [e for e in episodes if e.is_scored and any(action.agent == self.role for action in e.actions)]
        rng = generator(self.search.run.seed, STREAM, "proposals", self.step, self.role)
        request = ProposalRequest(
            role=self.role,
            current=current,
            versions=rank_versions(versions, current),
            failed=[AttemptTranscript.from_episode(episode) for episode in relevant if episode.success is False],
            solved=[AttemptTranscript.from_episode(episode) for episode in relevant if episode.success],
            count=self.settings.candidates,
            rng=rng,
            ask=self._ask_policy,
        )
        try:
            proposals = list(self.settings.proposer.propose(request))
            problem = _find_problem(proposals, [version.number for version in versions])
        except Exception as error:  # noqa: BLE001  a failure of user code only costs its own turn
            problem = f"raised {describe_error(error)}"
        if problem:
            self._log(f"proposer {self.settings.proposer.name!r} {problem}; nothing is tried")
            return []
        return list(self._filter_proposals(proposals, [version.instructions for version in versions]))[
            : self.settings.candidates
        ]

    def _filter_proposals(self, proposals: Iterable[Proposal], known_texts: Iterable[str]) -> Iterator[Proposal]:
        seen = set(known_texts)
        for proposal in proposals:
            text = proposal.instructions.strip()
            if len(text) > self.settings.max_chars:
                self._log(f"a proposal of {len(text)} characters is dropped (prompt_optimization.max_chars)")
            elif text and text not in seen:
                seen.add(text)
                yield replace(proposal, instructions=text)

    def _evaluate_proposals(self, proposals: Sequence[Proposal]) -> list[PromptVersion]:
        selection_tasks, test_tasks = self._sample_tasks(len(proposals) > 1)
        candidates = [self._build_version(number, proposal) for number, proposal in enumerate(proposals)]
        best, candidate_outcomes = select_best(
            candidates, selection_tasks, partial(self._play_version, is_candidate=True)
        )
        current = self.lineage.current_version(self.role)
        baseline = self._play_version(current, [*selection_tasks, *test_tasks], is_candidate=False)
        gains = [measure_gain(baseline, outcomes) for outcomes in candidate_outcomes]
        gains[best] = measure_gain(baseline, self._play_version(candidates[best], test_tasks, is_candidate=True))
        accepted = self._accepts(gains[best])
        self._report_result(candidates[best], gains[best], accepted)
        return [
            replace(candidate, worth=gains[index], accepted=accepted and index == best)
            for index, candidate in enumerate(candidates)
        ]

    def _report_result(self, best: PromptVersion, gain_estimate: PromptScore | None, accepted: bool) -> None:
        """Report the best candidate's result."""
        if gain_estimate is None and not self._sample_tasks(False)[1]:
            self._log("there are no tasks to judge candidates by: all of the validation split are set aside")
        elif gain_estimate is None:
            self._log("of no task is it known whether it was solved (Step.success): no candidate can be judged")
        if gain_estimate is None:
            return
        gain = (
            f"{100 * gain_estimate.gain:+.0f} points "
            f"({100 * gain_estimate.gain_low:+.0f} to {100 * gain_estimate.gain_high:+.0f})"
        )
        status = "is what it is told from here on" if accepted else "is tried and not taken"
        self._log(f"v{best.number} {status}: {gain} on {gain_estimate.tasks} tasks")

    def _sample_tasks(self, needs_selection: bool) -> tuple[list[Task], list[Task]]:
        """Return tasks to choose a candidate and separate tasks to test the candidate, newly drawn for every turn.

        With few tasks both sets are smaller.
        """
        tasks = [task for task in self.search.tasks if task.id not in self.rollouts.excluded_tasks]
        order = generator(self.search.run.seed, STREAM, "tasks", self.step, self.role).permutation(len(tasks))
        max_tasks = self.settings.tasks
        test_count = min(max_tasks, max(1, len(tasks) * 2 // 3) if needs_selection else len(tasks), len(tasks))
        sampled = [tasks[int(index)] for index in order[: test_count + (test_count // 2 if needs_selection else 0)]]
        return sampled[test_count:], sampled[:test_count]

    def _build_version(self, number: int, proposal: Proposal) -> PromptVersion:
        proposer = self.settings.proposer
        policy_versions = ", ".join(f"{name}@{self.rollouts.version(name)}" for name in proposer.prompted_policies)
        source = f"{proposer.name}: {policy_versions}" if policy_versions else proposer.name
        number += len(self.lineage.for_role(self.role))
        return PromptVersion(
            self.role, number, proposal.instructions, proposal.parents, proposal.kind, source, self.step, False
        )

    def _play_version(self, version: PromptVersion, tasks: Sequence[Task], *, is_candidate: bool) -> Outcomes:
        """Return the success of a version on tasks, by id.

        A failed episode is omitted for the current version, and counts as not solved for a tried version. Otherwise
        failing episodes would improve a tried version.
        """
        others = [current for current in self.lineage.current_versions() if current.role != self.role]
        self.rollouts.set_prompt_versions([*others, version])
        attempts = [Attempt(task, self.stream) for task in tasks]
        episodes = self.rollouts.play(attempts, team_for_mode(self.settings.mode, self.rollouts.team))
        self.tokens += count_tokens(episodes)
        return {
            e.task.id: bool(e.success) for e in episodes if (e.success is not None if e.is_scored else is_candidate)
        }

    def _accepts(self, gain_estimate: PromptScore | None) -> bool:
        if gain_estimate is None:
            return False
        if self.settings.accept == "better":
            return gain_estimate.gain_low > 0
        return gain_estimate.gain > 0 and gain_estimate.gain_low >= -self.settings.tolerance

    def _ask_policy(self, policy: str, question: str, sampling: SamplingParams) -> str:
        self.questions += 1
        key = ActionKey(self.stream, "question", self.questions, 0, "proposer", 0)
        try:
            reply, tokens = self.rollouts.ask(policy, question, sampling, key)
        except (EpisodeFailedError, PromptTooLongError) as error:
            self._log(f"policy {policy!r} could not be asked: {error}")
            return ""
        self.tokens += tokens
        return reply

    def _log(self, text: str) -> None:
        logger.warning(f"step {self.step}: prompt_optimization.{self.role}: {text}")


def count_tokens(episodes: Iterable[Episode]) -> int:
    """Return the number of prompt tokens and sampled tokens."""
    return sum(len(action.prompt) + len(action.tokens) for episode in episodes for action in episode.actions)


def _find_problem(proposals: Sequence[object], numbers: Sequence[int]) -> str:
    """Return the problem of invalid proposals; "" for valid proposals."""
    for proposal in proposals:
        if not isinstance(proposal, Proposal) or not (_is_text(proposal.instructions) and _is_text(proposal.kind)):
            return f"gave {proposal!a:.80}, which is no Proposal (marft_lab.prompt_optimization.proposals)"
        if not isinstance(proposal.parents, tuple) or any(type(parent) is not int for parent in proposal.parents):
            return f"gave the parents {proposal.parents!a:.80}, and they are a tuple of numbers"
        if not set(proposal.parents) <= set(numbers):
            return f"names parents {proposal.parents}, and the agent's versions are {', '.join(map(str, numbers))}"
    return ""


def _is_text(text: object) -> bool:
    return isinstance(text, str) and replace_surrogates(text) == text


def _round_metrics(before: PromptHistory, after: PromptHistory) -> dict[str, float]:
    candidates = after.versions[len(before.versions) :]
    accepted = [version for version in candidates if version.accepted]
    gains = [version.worth.gain for version in accepted if version.worth]
    return {
        "prompt_optimization/proposals": float(len(candidates)),
        "prompt_optimization/accepted": float(len(accepted)),
        **({"prompt_optimization/gain": sum(gains) / len(gains)} if gains else {}),
        "prompt_optimization/tokens": float(after.tokens - before.tokens),
    }


def version_metrics(lineage: PromptHistory) -> dict[str, float]:
    """Return the number of each agent's active version, as metrics."""
    return {f"agents/{role}/prompt_version": float(number) for role, number in lineage.current.items()}


def _write_lineage(folder: RunFolder, lineage: PromptHistory) -> None:
    atomic.write_file(folder.path / FILE_NAME, LINEAGE_ADAPTER.dump_json(lineage, indent=1).decode() + "\n")
