"""A2A agent card for a team."""

from __future__ import annotations

from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from marft.common.version import __version__
from marft_serve.serving.settings import ServedTeam
from marft_serve.serving.team_handler import TEAM_ALIAS, TeamHandler

PROTOCOL_VERSIONS = ("1.0", "0.3")  # supported protocol versions, in order of preference
TEXT_MODES = ("text/plain",)


def build_agent_card(handler: TeamHandler, served_team: ServedTeam, token: bool, url: str) -> AgentCard:
    """Return the agent card for a team.

    Args:
        handler: the request handler of the team.
        served_team: the team.
        token: True if requests need a token.
        url: URL for tasks.
    """
    name = handler.team_names[0]
    usage = (
        "Give it a task in words; it works on it once, in one go, and its answer is a text. Each message is a task of "
        "its own: earlier ones of the same context are not read."
    )
    skill = AgentSkill(
        id=TEAM_ALIAS,
        name=f"Ask the team {name}",
        description=usage,
        tags=["marft", "multi-agent"],
        input_modes=TEXT_MODES,
        output_modes=TEXT_MODES,
    )
    card = AgentCard(
        name=name,
        description=f"{describe_team(served_team)} {usage}",
        version=_get_checkpoint_name(served_team) or __version__,
        skills=[skill],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=TEXT_MODES,
        default_output_modes=TEXT_MODES,
    )
    for version in PROTOCOL_VERSIONS:
        card.supported_interfaces.add(url=url, protocol_binding="JSONRPC", protocol_version=version)
    if token:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_schemes["key"].api_key_security_scheme.location = "header"
        card.security_schemes["key"].api_key_security_scheme.name = "x-api-key"
        for scheme in ("bearer", "key"):  # one of the two is enough
            card.security_requirements.add().schemes[scheme].SetInParent()
    return card


def describe_team(served_team: ServedTeam) -> str:
    """Return a description with the team's agents, organization, weights and accuracy."""
    agents = [agent.role + (" (answers)" if agent.answers else "") for agent in served_team.run.agents]
    organization = served_team.run.model_dump(mode="json", include={"team"})["team"]["organization"]
    sentences = [
        f"A team of language models that was trained with MARFT: {', '.join(agents)}.",
        f"Organization: {organization}.",
    ]
    weights = _get_checkpoint_name(served_team)
    if weights:
        sentences.append(f"Weights: {weights}.")
    return " ".join([*sentences, *_describe_accuracies(served_team)])


def _get_checkpoint_name(served_team: ServedTeam) -> str:
    if served_team.export is not None:
        return served_team.export.manifest.checkpoint.name
    return served_team.checkpoint.name if served_team.checkpoint is not None else ""


def _describe_accuracies(served_team: ServedTeam) -> list[str]:
    """Return sentences with the accuracies in an export's manifest."""
    if served_team.export is None:
        return []
    weights = _get_checkpoint_name(served_team)
    return [
        f"Accuracy on {evaluation['tasks']} held-out tasks: "
        f"{100 * evaluation['accuracy']:.1f} % ({evaluation['mode']})."
        for evaluation in served_team.export.manifest.evaluations
        if evaluation["checkpoint"] == weights
        and evaluation.get("accuracy") is not None
        and not evaluation["shuffled_messages"]
    ]
