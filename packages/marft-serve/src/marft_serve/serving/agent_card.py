"""A2A agent card for a team."""

from __future__ import annotations

from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from marft.common.version import __version__
from marft_serve.serving.asking import TEAM, Asking
from marft_serve.serving.settings import Served

VERSIONS = ("1.0", "0.3")  # supported protocol versions, in order of preference
MODES = ("text/plain",)


def agent_card(asking: Asking, served: Served, token: bool, url: str) -> AgentCard:
    """Return the agent card for a team.

    Args:
        asking: the request handler of the team.
        served: the team.
        token: True if requests need a token.
        url: URL for tasks.
    """
    name = asking.teams[0]
    works = (
        "Give it a task in words; it works on it once, in one go, and its answer is a text. Each message is a task of "
        "its own: earlier ones of the same context are not read."
    )
    skill = AgentSkill(
        id=TEAM, name=f"Ask the team {name}", description=works, tags=["marft", "multi-agent"], input_modes=MODES,
        output_modes=MODES,
    )  # fmt: skip
    card = AgentCard(
        name=name, description=f"{described(served)} {works}", version=_weights(served) or __version__, skills=[skill],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False), default_input_modes=MODES,
        default_output_modes=MODES,
    )  # fmt: skip
    for version in VERSIONS:
        card.supported_interfaces.add(url=url, protocol_binding="JSONRPC", protocol_version=version)
    if token:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_schemes["key"].api_key_security_scheme.location = "header"
        card.security_schemes["key"].api_key_security_scheme.name = "x-api-key"
        for scheme in ("bearer", "key"):  # one of the two is enough
            card.security_requirements.add().schemes[scheme].SetInParent()
    return card


def described(served: Served) -> str:
    """Return a description with the team's agents, organization, weights and accuracy."""
    agents = [agent.role + (" (answers)" if agent.answers else "") for agent in served.run.agents]
    organization = served.run.model_dump(mode="json", include={"team"})["team"]["organization"]
    sentences = [
        f"A team of language models that was trained with MARFT: {', '.join(agents)}.",
        f"Organization: {organization}.",
    ]
    weights = _weights(served)
    if weights:
        sentences.append(f"Weights: {weights}.")
    return " ".join([*sentences, *_figures(served)])


def _weights(served: Served) -> str:
    if served.export is not None:
        return served.export.manifest.checkpoint.name
    return served.checkpoint.name if served.checkpoint is not None else ""


def _figures(served: Served) -> list[str]:
    """Return sentences with the accuracies in an export's manifest."""
    if served.export is None:
        return []
    weights = _weights(served)
    return [
        f"Accuracy on {one['tasks']} held-out tasks: {100 * one['accuracy']:.1f} % ({one['mode']})."
        for one in served.export.manifest.evaluations
        if one["checkpoint"] == weights and one.get("accuracy") is not None and not one["shuffled_messages"]
    ]
