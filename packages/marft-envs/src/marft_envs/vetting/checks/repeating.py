"""Checks for determinism: an episode depends only on its task, its seed and its actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding, some
from marft_envs.vetting.fresh import HASHES, Fresh
from marft_envs.vetting.loading import SPLITS, written
from marft_envs.vetting.plays import Play, difference
from marft_envs.vetting.terms import in_words

SEEDED = "draw from a random.Random(seed) of the session's own, with the seed that start(task, seed) is given"


def same_again(evidence: Evidence) -> Iterator[Finding]:
    """Check that the same task, seed and actions give the same result, also in a new process."""
    apart = _apart(evidence)
    if apart:
        yield Finding("failure", *apart)
        return
    alone = not isinstance(evidence.fresh, str)  # if two processes agree, the cause is in earlier episodes
    found = "" if alone else _first(evidence.calm, evidence.again)
    if found:
        yield Finding(
            "failure",
            f"the same seed and actions come to something else the second time: {found}",
            f"{SEEDED}, not from the clock or the system, and keep nothing from one episode to the next",
        )


def nothing_shared(evidence: Evidence) -> Iterator[Finding]:
    """Check that episodes do not depend on earlier or concurrent episodes."""
    remedy = "keep what an episode changes in its session: not in the module, the class, the environment or the task"
    wrote = list(dict.fromkeys(play.task.id for play in evidence.plays if play.wrote))
    if wrote:
        yield Finding(
            "warning",
            f"sessions write into Task.data ({some(wrote)}): each attempt has its own copy, and changes are lost",
            "copy what a session changes, or keep it in the session",
        )
    if evidence.writers:
        yield Finding(
            "warning",
            f"reward terms write into Task.data: {in_words(evidence.writers)}; each term has its own copy, and changes "
            "are lost",
            "copy what a term changes: what it gives must depend on the episode alone",
        )
    again = _first(evidence.calm, evidence.again)
    if again:
        if not isinstance(evidence.fresh, str) and not _apart(evidence):
            yield Finding("failure", f"an episode comes to something else once others were played: {again}", remedy)
        return
    together = _first(evidence.calm, evidence.together)
    if together:
        yield Finding("failure", f"episodes that are played at the same time disturb each other: {together}", remedy)


def own_numbers(evidence: Evidence) -> Iterator[Finding]:
    """Check that sessions draw no numbers from the global random generators."""
    if _first(evidence.calm, evidence.again):
        return  # already not repeatable
    found = _first(evidence.again, evidence.reseeded)
    if found:
        yield Finding(
            "failure", f"it draws from random, numpy.random or torch, which all of a process shares: {found}", SEEDED
        )


def _apart(evidence: Evidence) -> tuple[str, str] | None:
    """Return the difference between two new processes or their tasks and ours, with its remedy; None if equal."""
    if isinstance(evidence.fresh, str):
        return None
    first, second = evidence.fresh
    here = {split: written(evidence.loaded.tasks.get(split, ())) for split in SPLITS}
    for split in SPLITS:
        lists = [here[split], list(first.tasks[split]), list(second.tasks[split])]
        if lists[0] != lists[1] or lists[1] != lists[2]:
            other = next(one for one in lists if one != lists[0])
            return (
                f"another process has other {split} tasks: {difference(lists[0], other)}",
                "draw tasks from a random.Random of the environment's own seed, and sort what comes from sets, "
                f"hash() and folders (PYTHONHASHSEED was {' and '.join(HASHES)})",
            )
    found = _between(evidence.calm, first, second)
    if found:
        return f"two processes come to something else with the same seed and actions: {found}", (
            f"{SEEDED}, not from the clock or the system, and sort what comes from sets and hash()"
        )
    return None


def _between(plays: Sequence[Play], first: Fresh, second: Fresh) -> str:
    for play, one, other in zip(plays, first.outcomes, second.outcomes, strict=False):
        if one != other:
            return f"{play.name}: {difference(one, other)}"
    return ""


def _first(plays: Sequence[Play], others: Sequence[Play]) -> str:
    """Return the first episode with another outcome, and the difference; "" if none."""
    for play, other in zip(plays, others, strict=True):
        if play.outcome != other.outcome:
            return f"{play.name}: {difference(play.outcome, other.outcome)}"
    return ""
