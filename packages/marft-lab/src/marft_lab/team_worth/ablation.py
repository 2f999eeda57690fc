"""Message ablation: no messages, messages of another task, or paraphrased messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from marft.common.types import Episode
from marft.evaluation.evaluate import shuffle
from marft_lab.team_worth.arms import Messages
from marft_lab.team_worth.bench import Bench
from marft_lab.team_worth.paraphrasing import paraphrased
from marft_lab.team_worth.scores import Row

PART = "ablation"


def ablation(bench: Bench) -> tuple[list[Row], list[tuple[str, str]]]:
    """Compare the team with missing, exchanged or paraphrased messages.

    Returns:
        The rows of all variants, and some messages with their paraphrases.
    """
    if bench.run.team.own_words:
        bench.note(PART, "the team is a program, which passes messages on itself: they cannot be changed")
        return [], []
    if not bench.heard:
        bench.note(PART, "nobody reads anything of anybody else: there are no messages to change")
        return [], []
    arms = {"silence": replace(bench.arm, unheard=tuple(bench.roles))}
    several = len(bench.heard) > 1
    if len(bench.player.tasks) > 1:
        donors = donors_of(bench.episodes, bench.run.seed)
        arms["shuffled"] = replace(bench.arm, messages=messages_of(donors, bench.heard))
        for role in bench.heard if several else ():
            arms[f"{role} shuffled"] = replace(bench.arm, messages=messages_of(donors, [role]))
    else:
        bench.note(PART, "messages of another task need two tasks")
    worded, shown = paraphrased(bench)
    for role in bench.heard if worded else ():
        arms[f"{role} paraphrased"] = replace(bench.arm, messages=reworded(bench.episodes, role, worded))
    return bench.rows(PART, arms), shown


def donors_of(episodes: Sequence[Episode], seed: int) -> dict[tuple[str, int], Episode]:
    """Return a donor episode of another task for each episode, by task and sample.

    Each donor is used once: the donors form a random cycle over each sample's episodes.
    """
    donors: dict[tuple[str, int], Episode] = {}
    for sample in sorted({episode.sample for episode in episodes}):
        mine = [episode for episode in episodes if episode.sample == sample]
        for episode, donor in zip(mine, shuffle(mine, seed + sample), strict=True):
            donors[episode.task.id, sample] = donor
    return donors


def messages_of(donors: Mapping[tuple[str, int], Episode], roles: Sequence[str]) -> Messages:
    """Return donor episodes' messages from given roles."""
    return {
        key: {action.id: action.message for action in donor.actions if action.agent in roles}
        for key, donor in donors.items()
    }


def reworded(episodes: Sequence[Episode], role: str, words: Mapping[tuple[str, str], str]) -> Messages:
    """Return an agent's messages with replacements.

    Args:
        episodes: episodes of the team.
        role: role of the agent.
        words: replacement by role and message.
    """
    return {
        (episode.task.id, episode.sample): {
            action.id: words[role, action.message]
            for action in episode.actions
            if action.agent == role and (role, action.message) in words
        }
        for episode in episodes
    }
