"""Recipe checks for environments that control turns, with teams that ignore them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.config.run import RunSettings

# organizations that ignore turns, besides those in which every agent acts once
TURN_IGNORING = ("parallel", "debate", "mixture-of-agents", "reflective")


def turn_problems(run: RunSettings) -> Iterable[str]:
    """Yield organizations that ignore the environment's turns, and teams that bypass the environment's messages."""
    environment, team = run.environment, run.team
    has_opponents = len(environment.opposing_sides) > 1 or bool(environment.opponent_roles)
    ignores_turns = getattr(team, "single_action_each", False) or team.name in TURN_IGNORING
    if ignores_turns and (has_opponents or (environment.controls_turns and len(run.agents) > 1)):
        yield (
            f"team: in organization {team.name!r} agents act although it is not their turn; use organization = 'turns'"
        )
    elif ignores_turns and environment.offers_options:
        yield (
            f"team: in organization {team.name!r} nobody chooses from what environment {environment.name!r} offers; "
            "use organization = 'turns'"
        )
    if team.name != "turns" or getattr(team, "visible", "none") == "none":
        return
    if has_opponents:
        yield (
            "team.visible: opponents would read each other's whole turns, thoughts and advice with them; set visible "
            "= 'none': the environment shows the moves"
        )
    elif environment.relays_messages:
        yield (
            f"team.visible: environment {environment.name!r} passes on what agents say, by its rules, and they would "
            "read each other's whole turns beside it; set visible = 'none'"
        )
