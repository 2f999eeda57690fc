"""Text codec for world models: conversion between texts and observations or joint actions."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from marft.common.types import Action, Episode, Observation
from marft_lab.world_models.interface import Lived, Outcome, Situation

MARK = "\0"  # first character of the text of a structured observation


def observation_text(observation: Observation) -> str:
    """Return an observation as a single text; an observation with text only stays unchanged.

    >>> observation_text(Observation("Rain.")), observation_text(Observation("Rain.", turn=("cook",)))
    ('Rain.', '\\x00{"options": {}, "text": "Rain.", "turn": ["cook"], "views": {}}')
    """
    plain = observation.text and not observation.text.startswith(MARK)
    if plain and not (observation.views or observation.turn or observation.options):
        return observation.text
    table = {
        "text": observation.text, "views": dict(observation.views), "turn": list(observation.turn),
        "options": {role: list(texts) for role, texts in observation.options.items()},
    }  # fmt: skip
    return MARK + json.dumps(table, ensure_ascii=False, sort_keys=True)


def observation_of(text: str) -> Observation:
    """Parse an observation's text."""
    if not text.startswith(MARK):
        return Observation(text)
    table: dict[str, Any] = json.loads(text[1:])
    options = {role: tuple(texts) for role, texts in table["options"].items()}
    return Observation(table["text"], table["views"], tuple(table["turn"]), options)


def action_text(actions: Sequence[Action], reads: Collection[str]) -> str:
    """Return a step's joint action as JSON text: the last text of each relevant agent.

    Args:
        actions: actions of the step, in the order of requests.
        reads: roles whose texts affect the environment; empty for all.
    """
    said = {action.agent: action.text.strip() for action in actions if not reads or action.agent in reads}
    return json.dumps(said, ensure_ascii=False, sort_keys=True)


def lived_in(episode: Episode, reads: Collection[str], memory: int) -> list[Lived]:
    """Return the transitions of an episode with known outcomes.

    The last step of a truncated episode is left out, because its next observation is unknown. A failed episode has no
    transitions.

    Args:
        episode: episode.
        reads: roles whose texts affect the environment; empty for all.
        memory: maximum observations in a history.
    """
    if not episode.scored:
        return []
    seen = [observation_text(transition.observation) for transition in episode.transitions]
    said = [
        action_text([action for action in episode.actions if action.step == step], reads) for step in range(len(seen))
    ]
    ends = episode.status == "terminated"
    lived = []
    for step, transition in enumerate(episode.transitions[: len(seen) if ends else -1]):
        last = step == len(seen) - 1
        since = max(0, step + 1 - memory)
        outcome = Outcome(
            "" if last else seen[step + 1],
            transition.reward,
            tuple(sorted(transition.agent_rewards.items())),
            episode.success if last else None,
        )
        situation = Situation(tuple(seen[since : step + 1]), tuple(said[since:step]))
        lived.append(Lived(situation, said[step], outcome, first=step == 0))
    return lived


def gone_on(situation: Situation, action: str, following: str, memory: int) -> Situation:
    """Return the history after a step that did not end the episode."""
    observed, done = (*situation.observed, following), (*situation.done, action)
    return Situation(observed[-memory:], done[len(done) - (len(observed[-memory:]) - 1) :])
