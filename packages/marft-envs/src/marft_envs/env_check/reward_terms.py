"""Check for reward terms in a recipe, on scripted episodes: changes to the data of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from marft.agents.loop_threads import CallTimeoutError, UserCodeError
from marft.agents.task_copies import copy_task
from marft.common.types import Episode, Status, Transition
from marft_envs.env_check.episode_player import STREAM, EpisodePlayer
from marft_envs.env_check.loading import serialize_tasks
from marft_envs.env_check.records import EpisodeRecord

MAX_SCORED = 12  # maximum scored episodes


async def find_writing_terms(player: EpisodePlayer, records: Sequence[EpisodeRecord]) -> dict[str, list[str]]:
    """Return the reward terms that write into ``Task.data``, each with the tasks whose data it changed.

    Terms that call an endpoint are skipped. Errors in a term are ignored, because terms are written for model outputs.
    """
    writing_terms: dict[str, list[str]] = {}
    timed_out = set[str]()
    for record in [record for record in records if record.is_valid and record.steps][:MAX_SCORED]:
        for name, term in player.target.terms.items():
            if term.own_timeout or name in timed_out:
                continue
            episode = replace(_make_episode(player, record), task=copy_task(record.task))
            thread = player.threads.acquire()
            overdue = False
            try:
                await thread.call_user_code(term.score, episode, timeout=player.limits.call_seconds)
            except CallTimeoutError:
                overdue = True
                timed_out.add(name)
            except UserCodeError:
                pass
            finally:
                await player.threads.release(thread, failed=overdue)
            if not overdue and serialize_tasks([episode.task]) != serialize_tasks([record.task]):
                writing_terms.setdefault(name, []).append(record.task.id)
    return writing_terms


def _make_episode(player: EpisodePlayer, record: EpisodeRecord) -> Episode:
    """Return an episode record as in a run, with replies as actions."""
    observations = record.observations[: len(record.steps)]
    transitions = [
        Transition(observation, step.reward, step.agent_rewards)
        for observation, step in zip(observations, record.steps, strict=True)
    ]
    actions = [
        action
        for place, replies in enumerate(record.replies[: len(record.steps)])
        for action in player.build_joint_action(record.task, place, replies).actions
    ]
    status: Status = "terminated" if record.ended else "truncated"
    return Episode(record.task, STREAM, 0, tuple(actions), status, tuple(transitions), record.success)


def format_terms(terms: Mapping[str, Sequence[str]]) -> str:
    """Describe terms and their tasks: ``'brevity' (sum/0, sum/1)``."""
    return ", ".join(f"{name!r} ({', '.join(list(dict.fromkeys(tasks))[:3])})" for name, tasks in terms.items())
