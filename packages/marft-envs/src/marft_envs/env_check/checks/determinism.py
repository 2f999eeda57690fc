"""Checks for determinism: an episode depends only on its task, its seed and its actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.loading import SPLITS, serialize_tasks
from marft_envs.env_check.process_replay import HASH_SEEDS, ProcessResult
from marft_envs.env_check.records import EpisodeRecord, first_difference
from marft_envs.env_check.report import Finding, summarize
from marft_envs.env_check.reward_terms import format_terms

SEED_HINT = "draw from a random.Random(seed) of the session's own, with the seed that start(task, seed) is given"


def check_repeatable(data: CheckData) -> Iterator[Finding]:
    """Check that the same task, seed and actions give the same result, also in a new process."""
    process_difference = _compare_processes(data)
    if process_difference:
        yield Finding("failure", *process_difference)
        return
    alone = not isinstance(data.process_results, str)  # if two processes agree, the cause is in earlier episodes
    difference = "" if alone else _first_difference(data.repeatable, data.repeated)
    if difference:
        yield Finding(
            "failure",
            f"the same seed and actions come to something else the second time: {difference}",
            f"{SEED_HINT}, not from the clock or the system, and keep nothing from one episode to the next",
        )


def check_isolation(data: CheckData) -> Iterator[Finding]:
    """Check that episodes do not depend on earlier or concurrent episodes."""
    hint = "keep what an episode changes in its session: not in the module, the class, the environment or the task"
    writing_tasks = list(dict.fromkeys(record.task.id for record in data.records if record.wrote_task))
    if writing_tasks:
        yield Finding(
            "warning",
            f"sessions write into Task.data ({summarize(writing_tasks)}): each attempt has its own copy, and changes "
            "are lost",
            "copy what a session changes, or keep it in the session",
        )
    if data.writing_terms:
        yield Finding(
            "warning",
            f"reward terms write into Task.data: {format_terms(data.writing_terms)}; each term has its own copy, and "
            "changes are lost",
            "copy what a term changes: what it gives must depend on the episode alone",
        )
    again = _first_difference(data.repeatable, data.repeated)
    if again:
        if not isinstance(data.process_results, str) and not _compare_processes(data):
            yield Finding("failure", f"an episode comes to something else once others were played: {again}", hint)
        return
    together = _first_difference(data.repeatable, data.concurrent)
    if together:
        yield Finding("failure", f"episodes that are played at the same time disturb each other: {together}", hint)


def check_random_streams(data: CheckData) -> Iterator[Finding]:
    """Check that sessions draw no numbers from the global random generators."""
    if _first_difference(data.repeatable, data.repeated):
        return  # already not repeatable
    difference = _first_difference(data.repeated, data.reseeded)
    if difference:
        yield Finding(
            "failure",
            f"it draws from random, numpy.random or torch, which all of a process shares: {difference}",
            SEED_HINT,
        )


def _compare_processes(data: CheckData) -> tuple[str, str] | None:
    """Return the difference between two new processes or their tasks and ours, with its remedy; None if equal."""
    if isinstance(data.process_results, str):
        return None
    first, second = data.process_results
    own_tasks = {split: serialize_tasks(data.loaded.tasks.get(split, ())) for split in SPLITS}
    for split in SPLITS:
        lists = [own_tasks[split], list(first.tasks[split]), list(second.tasks[split])]
        if lists[0] != lists[1] or lists[1] != lists[2]:
            other = next(tasks for tasks in lists if tasks != lists[0])
            return (
                f"another process has other {split} tasks: {first_difference(lists[0], other)}",
                "draw tasks from a random.Random of the environment's own seed, and sort what comes from sets, "
                f"hash() and folders (PYTHONHASHSEED was {' and '.join(HASH_SEEDS)})",
            )
    outcome_difference = _compare_outcomes(data.repeatable, first, second)
    if outcome_difference:
        return f"two processes come to something else with the same seed and actions: {outcome_difference}", (
            f"{SEED_HINT}, not from the clock or the system, and sort what comes from sets and hash()"
        )
    return None


def _compare_outcomes(records: Sequence[EpisodeRecord], first: ProcessResult, second: ProcessResult) -> str:
    for record, first_outcome, second_outcome in zip(records, first.outcomes, second.outcomes, strict=False):
        if first_outcome != second_outcome:
            return f"{record.name}: {first_difference(first_outcome, second_outcome)}"
    return ""


def _first_difference(records: Sequence[EpisodeRecord], others: Sequence[EpisodeRecord]) -> str:
    """Return the first episode with another outcome, and the difference; "" if none."""
    for record, other in zip(records, others, strict=True):
        if record.outcome != other.outcome:
            return f"{record.name}: {first_difference(record.outcome, other.outcome)}"
    return ""
