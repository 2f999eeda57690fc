"""What is wrong with a recipe whose environment says who acts, in a team that does not ask it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.config.run import RunSettings

UNASKED = ("parallel", "debate", "mixture-of-agents", "reflective")  # beside those in which everybody acts once


def turn_problems(run: RunSettings) -> Iterable[str]:
    """Organizations in which agents act although it is not their turn, and teams that go round their environment."""
    environment, team = run.environment, run.team
    opposed = len(environment.opposed) > 1 or bool(environment.against)
    unasked = getattr(team, "each_once", False) or team.name in UNASKED
    if unasked and (opposed or (environment.says_whose_turn and len(run.agents) > 1)):
        yield (
            f"team: in organization {team.name!r} agents act although it is not their turn; use organization = 'turns'"
        )
    elif unasked and environment.offers_options:
        yield (
            f"team: in organization {team.name!r} nobody chooses from what environment {environment.name!r} offers; "
            "use organization = 'turns'"
        )
    if team.name != "turns" or getattr(team, "sees", "nothing") == "nothing":
        return
    if opposed:
        yield (
            "team.sees: opponents would read each other's whole turns, thoughts and advice with them; set sees = "
            "'nothing': the environment shows the moves"
        )
    elif environment.carries_words:
        yield (
            f"team.sees: environment {environment.name!r} passes on what agents say, by its rules, and they would read "
            "each other's whole turns beside it; set sees = 'nothing'"
        )
