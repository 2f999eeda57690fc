"""Checks for robustness: errors, odd inputs, endless episodes and leaked resources."""

from __future__ import annotations

from collections.abc import Iterator

from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding, some

RAISING = ("raised", "hung")


def playable(evidence: Evidence) -> Iterator[Finding]:
    """Check that ordinary episodes run without errors and timeouts."""
    found = [(play, fault) for play in evidence.plays for fault in play.faults if fault.wrong in RAISING]
    for play, fault in found[:1]:
        said = "raised" if fault.wrong == "raised" else "hung:"
        yield Finding(
            "failure",
            f"{play.name}: {fault.call}() {said} {fault.said}",
            f"put right what {fault.call}() does there: an episode in which that happens is lost",
        )


def unmoved(evidence: Evidence) -> Iterator[Finding]:
    """Check that odd model outputs cause neither errors, timeouts nor invalid results."""
    known = {(fault.wrong, fault.call) for play in evidence.plays for fault in play.faults}
    found = [
        (play, fault)
        for play in evidence.odd
        for fault in play.faults
        if (fault.wrong, fault.call) not in known and fault.wrong != "close"
    ]
    if found:
        play, fault = found[0]
        said = {"raised": "raised", "hung": "hung:"}.get(fault.wrong, "was wrong: it")
        others = f"; and {some([other.player for other, _ in found[1:]])}" if len(found) > 1 else ""
        yield Finding(
            "failure",
            f"{play.name}: {fault.call}() {said} {fault.said}{others}",
            "a model's mistake is no error: tell it in the next observation, and let it cost what the rules say",
        )


def ending(evidence: Evidence) -> Iterator[Finding]:
    """Check that episodes end without an external limit."""
    plays = evidence.played
    if plays and not any(play.ended for play in plays):
        yield Finding(
            "failure",
            f"none of {len(plays)} episodes ended within {evidence.most_steps} steps",
            "return terminated=True when the task is over, and truncated=True when it has taken too long; where it "
            "takes more steps than that, allow them: max_steps of [rollout] in its recipe",
        )
        return
    endless = [play.name for play in [*plays, *evidence.odd] if play.whole and play.steps and not play.ended]
    if endless:
        yield Finding(
            "warning",
            f"{len(endless)} episodes did not end within {evidence.most_steps} steps: {some(endless, 1)}",
            "end an episode that comes to nothing with truncated=True, after a number of steps that is a key",
        )


def closing(evidence: Evidence) -> Iterator[Finding]:
    """Check that sessions close without errors, at the end and before."""
    for play in [*evidence.plays, *evidence.odd]:
        for fault in play.faults:
            if fault.wrong == "close":
                yield Finding(
                    "failure",
                    f"{play.name}: close() raised {fault.said}",
                    "close what was opened, also where nothing was",
                )
                return


def left_open(evidence: Evidence) -> Iterator[Finding]:
    """Check that finished episodes leave no threads, processes or files open."""
    episodes = len(evidence.calm)
    more = [f"{count} {kind}" for kind, count in evidence.left.items() if count >= max(1, episodes // 2)]
    if more:
        yield Finding(
            "failure", f"after {episodes} episodes there are {', '.join(more)} more", "let go of them in close()"
        )
