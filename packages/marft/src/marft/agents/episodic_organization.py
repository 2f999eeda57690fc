"""Organization for one episode: the team's own, or a fresh one if the team's organization keeps state."""

from __future__ import annotations

from marft.agents.loop_threads import is_canceled
from marft.agents.task_copies import copy_task
from marft.agents.team import EpisodicOrganization, Organization
from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError
from marft.common.texts import display_name
from marft.common.types import Task


def open_organization(organization: Organization, task: Task, seed: int) -> Organization:
    """Return the organization that acts in an episode.

    Args:
        seed: the episode's seed; a fork uses its source episode's seed.

    Raises:
        EpisodeFailedError: ``open()`` raised, or returned an object without ``act()`` or ``close()``.
    """
    if not isinstance(organization, EpisodicOrganization):
        return organization
    caller = f"the organization {display_name(organization)}: open()"
    try:
        opened: object = organization.open(copy_task(task), seed)
    except BaseException as error:
        if is_canceled():
            raise
        raise EpisodeFailedError("failed", f"{caller} raised {describe_error(error)}") from error
    if not isinstance(opened, EpisodicOrganization):
        raise EpisodeFailedError("failed", f"{caller} gave a {type(opened).__name__}, which lacks act() or close()")
    return opened


def close_organization(team: Organization, episode: Organization) -> bool:
    """Close an episode's own organization; return false if closing raised. The episode's outcome does not change."""
    if episode is team or not isinstance(episode, EpisodicOrganization):
        return True
    try:
        episode.close()
    except BaseException:
        if is_canceled():
            raise
        return False
    return True
