"""Text codec for world models: conversion between texts and observations or joint actions."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from marft.common.types import Action, Episode, Observation
from marft_lab.world_models.interface import History, ObservedTransition, Outcome

MARK = "\0"  # first character of the text of a structured observation


def encode_observation(observation: Observation) -> str:
    """Return an observation as a single text; an observation with text only stays unchanged.

    >>> encode_observation(Observation("Rain.")), encode_observation(Observation("Rain.", turn=("cook",)))
    ('Rain.', '\\x00{"options": {}, "text": "Rain.", "turn": ["cook"], "views": {}}')
    """
    plain = observation.text and not observation.text.startswith(MARK)
    if plain and not (observation.views or observation.turn or observation.options):
        return observation.text
    table = {
        "text": observation.text,
        "views": dict(observation.views),
        "turn": list(observation.turn),
        "options": {role: list(texts) for role, texts in observation.options.items()},
    }
    return MARK + json.dumps(table, ensure_ascii=False, sort_keys=True)


def decode_observation(text: str) -> Observation:
    """Parse an observation's text."""
    if not text.startswith(MARK):
        return Observation(text)
    table: dict[str, Any] = json.loads(text[1:])
    options = {role: tuple(texts) for role, texts in table["options"].items()}
    return Observation(table["text"], table["views"], tuple(table["turn"]), options)


def action_text(actions: Sequence[Action], input_roles: Collection[str]) -> str:
    """Return a step's joint action as JSON text: the last text of each relevant agent.

    Args:
        actions: actions of the step, in the order of requests.
        input_roles: roles whose texts affect the environment; empty for all.
    """
    texts = {action.agent: action.text.strip() for action in actions if not input_roles or action.agent in input_roles}
    return json.dumps(texts, ensure_ascii=False, sort_keys=True)


def extract_transitions(
    episode: Episode, input_roles: Collection[str], history_length: int
) -> list[ObservedTransition]:
    """Return the transitions of an episode with known outcomes.

    The last step of a truncated episode is left out, because its next observation is unknown. A failed episode has no
    transitions.

    Args:
        episode: episode.
        input_roles: roles whose texts affect the environment; empty for all.
        history_length: maximum observations in a history.
    """
    if not episode.is_scored:
        return []
    seen = [encode_observation(transition.observation) for transition in episode.transitions]
    action_texts = [
        action_text([action for action in episode.actions if action.step == step], input_roles)
        for step in range(len(seen))
    ]
    ends = episode.status == "terminated"
    transitions = []
    for step, transition in enumerate(episode.transitions[: len(seen) if ends else -1]):
        last = step == len(seen) - 1
        start = max(0, step + 1 - history_length)
        outcome = Outcome(
            "" if last else seen[step + 1],
            transition.reward,
            tuple(sorted(transition.agent_rewards.items())),
            episode.success if last else None,
        )
        history = History(tuple(seen[start : step + 1]), tuple(action_texts[start:step]))
        transitions.append(ObservedTransition(history, action_texts[step], outcome, is_first=step == 0))
    return transitions


def extend_history(history: History, action: str, next_observation: str, history_length: int) -> History:
    """Return the history after a step that did not end the episode."""
    observations, actions = (*history.observations, next_observation), (*history.actions, action)
    return History(observations[-history_length:], actions[len(actions) - (len(observations[-history_length:]) - 1) :])
