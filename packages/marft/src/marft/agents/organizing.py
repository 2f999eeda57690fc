"""Organization for one episode: the team's own, or a fresh one if the team's organization keeps state."""

from __future__ import annotations

from marft.agents.loop_threads import cancelled
from marft.agents.tasks import own_copy
from marft.agents.team import EpisodicOrganization, Organization
from marft.common.errors import EpisodeFailedError
from marft.common.faults import described
from marft.common.texts import name_of
from marft.common.types import Task


def open_for(organization: Organization, task: Task, seed: int) -> Organization:
    """Return the organization that acts in an episode.

    Args:
        seed: the episode's seed; a fork uses its source episode's seed.

    Raises:
        EpisodeFailedError: ``opened()`` raised, or returned an object without ``act()`` or ``close()``.
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
    """Close an episode's own organization; return false if closing raised. The episode's outcome does not change."""
    if episode is team or not isinstance(episode, EpisodicOrganization):
        return True
    try:
        episode.close()
    except BaseException:
        if cancelled():
            raise
        return False
    return True
