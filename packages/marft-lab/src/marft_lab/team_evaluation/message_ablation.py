"""Message ablation: no messages, messages of another task, or paraphrased messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from marft.common.types import Episode
from marft.evaluation.evaluate import shuffle_episodes
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.paraphrases import paraphrase_messages
from marft_lab.team_evaluation.scores import ResultRow
from marft_lab.team_evaluation.variants import Messages

PART = "ablation"


def run_message_ablation(context: ComparisonContext) -> tuple[list[ResultRow], list[tuple[str, str]]]:
    """Compare the team with missing, exchanged or paraphrased messages.

    Returns:
        The rows of all variants, and some messages with their paraphrases.
    """
    if context.run.team.writes_prompts:
        context.note(PART, "the team is a program, which passes messages on itself: they cannot be changed")
        return [], []
    if not context.read_roles:
        context.note(PART, "nobody reads anything of anybody else: there are no messages to change")
        return [], []
    variants = {"silence": replace(context.variant, muted_roles=tuple(context.roles))}
    has_several = len(context.read_roles) > 1
    if len(context.player.tasks) > 1:
        donors = assign_donors(context.episodes, context.run.seed)
        variants["shuffled"] = replace(context.variant, messages=donor_messages(donors, context.read_roles))
        for role in context.read_roles if has_several else ():
            variants[f"{role} shuffled"] = replace(context.variant, messages=donor_messages(donors, [role]))
    else:
        context.note(PART, "messages of another task need two tasks")
    paraphrases, examples = paraphrase_messages(context)
    for role in context.read_roles if paraphrases else ():
        variants[f"{role} paraphrased"] = replace(
            context.variant, messages=replace_messages(context.episodes, role, paraphrases)
        )
    return context.build_rows(PART, variants), examples


def assign_donors(episodes: Sequence[Episode], seed: int) -> dict[tuple[str, int], Episode]:
    """Return a donor episode of another task for each episode, by task and sample.

    Each donor is used once: the donors form a random cycle over each sample's episodes.
    """
    donors: dict[tuple[str, int], Episode] = {}
    for sample in sorted({episode.sample for episode in episodes}):
        sample_episodes = [episode for episode in episodes if episode.sample == sample]
        for episode, donor in zip(sample_episodes, shuffle_episodes(sample_episodes, seed + sample), strict=True):
            donors[episode.task.id, sample] = donor
    return donors


def donor_messages(donors: Mapping[tuple[str, int], Episode], roles: Sequence[str]) -> Messages:
    """Return donor episodes' messages from given roles."""
    return {
        key: {action.id: action.message for action in donor.actions if action.agent in roles}
        for key, donor in donors.items()
    }


def replace_messages(episodes: Sequence[Episode], role: str, replacements: Mapping[tuple[str, str], str]) -> Messages:
    """Return an agent's messages with replacements.

    Args:
        episodes: episodes of the team.
        role: role of the agent.
        replacements: replacement by role and message.
    """
    return {
        (episode.task.id, episode.sample): {
            action.id: replacements[role, action.message]
            for action in episode.actions
            if action.agent == role and (role, action.message) in replacements
        }
        for episode in episodes
    }
