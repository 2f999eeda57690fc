"""Check for reward terms in a recipe, on scripted episodes: changes to the data of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from marft.agents.loop_threads import OverdueError, RaisedError
from marft.agents.tasks import own_copy
from marft.common.types import Episode, Status, Transition
from marft_envs.vetting.loading import written
from marft_envs.vetting.plays import Play
from marft_envs.vetting.stage import STREAM, Stage

MOST_SCORED = 12  # maximum scored episodes


async def writers(stage: Stage, plays: Sequence[Play]) -> dict[str, list[str]]:
    """Return the reward terms that write into ``Task.data``, each with the tasks whose data it changed.

    Terms that call an endpoint are skipped. Errors in a term are ignored, because terms are written for model outputs.
    """
    found: dict[str, list[str]] = {}
    hung = set[str]()
    for play in [play for play in plays if play.whole and play.steps][:MOST_SCORED]:
        for name, term in stage.subject.terms.items():
            if term.own_timeout or name in hung:
                continue
            given = replace(_episode(stage, play), task=own_copy(play.task))
            thread = stage.threads.acquire()
            late = False
            try:
                await thread.call_theirs(term.score, given, timeout=stage.limits.call_seconds)
            except OverdueError:
                late = True
                hung.add(name)
            except RaisedError:
                pass
            finally:
                await stage.threads.release(thread, suspect=late)
            if not late and written([given.task]) != written([play.task]):
                found.setdefault(name, []).append(play.task.id)
    return found


def _episode(stage: Stage, play: Play) -> Episode:
    """Return an episode record as in a run, with replies as actions."""
    observations = play.shown[: len(play.steps)]
    transitions = [
        Transition(observation, step.reward, step.agent_rewards)
        for observation, step in zip(observations, play.steps, strict=True)
    ]
    actions = [
        action
        for place, said in enumerate(play.said[: len(play.steps)])
        for action in stage.joint(play.task, place, said).actions
    ]
    status: Status = "terminated" if play.ended else "truncated"
    return Episode(play.task, STREAM, 0, tuple(actions), status, tuple(transitions), play.success)


def in_words(found: Mapping[str, Sequence[str]]) -> str:
    """Describe terms and their tasks: ``'brevity' (sum/0, sum/1)``."""
    return ", ".join(f"{name!r} ({', '.join(list(dict.fromkeys(tasks))[:3])})" for name, tasks in found.items())
