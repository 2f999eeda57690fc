"""The organization of one episode: the team's own or, where that keeps a state, one opened for the episode alone."""

from __future__ import annotations

from marft.agents.loop_threads import cancelled
from marft.agents.tasks import own_copy
from marft.agents.team import EpisodicOrganization, Organization
from marft.common.errors import EpisodeFailedError
from marft.common.faults import described
from marft.common.texts import name_of
from marft.common.types import Task


def open_for(organization: Organization, task: Task, seed: int) -> Organization:
    """What acts in an episode.

    Args:
        seed: of the episode; a fork has that of the episode that it was forked from.

    Raises:
        EpisodeFailedError: the organization raised, or gave something that cannot act.
    """
    if not isinstance(organization, EpisodicOrganization):
        return organization
    who = f"the organization {name_of(organization)}: opened()"
    try:
        found: object = organization.opened(own_copy(task), seed)
    except BaseException as error:
        if cancelled():
            raise
        raise EpisodeFailedError("failed", f"{who} raised {described(error)}") from error
    if not isinstance(found, EpisodicOrganization):
        raise EpisodeFailedError("failed", f"{who} gave a {type(found).__name__}, which lacks act() or close()")
    return found


def close_after(team: Organization, episode: Organization) -> bool:
    """Close what was opened for an episode → whether that went well: the episode's own outcome stands."""
    if episode is team or not isinstance(episode, EpisodicOrganization):
        return True
    try:
        episode.close()
    except BaseException:
        if cancelled():
            raise
        return False
    return True
