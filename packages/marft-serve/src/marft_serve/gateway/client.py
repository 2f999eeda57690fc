"""Connection data for a program's requests to an agent; works with every OpenAI-compatible client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from marft.config.settings import did_you_mean

WAITING = "waiting"  # last part of the path of ``waiting_url``


class Keywords(TypedDict):
    """Keyword arguments for an SDK client."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class Client:
    """Address and model name for an agent in one episode.

    >>> Client("http://127.0.0.1:8000/e/secret/actor/v1", "none", "actor").keywords["api_key"]
    'none'

    Args:
        base_url: base URL of the API, without ``/chat/completions``.
        api_key: any text; the gateway ignores it.
        model: name of the policy. Any other name works too, because the URL selects the agent.
        instructions: the agent's instructions in the recipe; optional to use.
        waiting_url: URL for a ``POST`` that reports that the program is waiting for something other than an agent.
    """

    base_url: str
    api_key: str
    model: str
    instructions: str = ""
    waiting_url: str = ""

    @property
    def keywords(self) -> Keywords:
        """Keyword arguments for ``OpenAI(**client.keywords)``."""
        return {"base_url": self.base_url, "api_key": self.api_key}

    @property
    def anthropic(self) -> Keywords:
        """Keyword arguments for ``Anthropic(**client.anthropic)``; Anthropic's SDK adds ``/v1`` itself."""
        return {"base_url": self.base_url.removesuffix("/v1"), "api_key": self.api_key}


def build_environment(clients: Mapping[str, Client]) -> dict[str, str]:
    """Return the clients in the form of environment variables for a command.

    Each agent has ``MARFT_<ROLE>_URL``, ``MARFT_<ROLE>_MODEL`` and ``MARFT_<ROLE>_INSTRUCTIONS``. A team of one
    agent also sets the variables that the SDKs read.
    """
    variables = dict[str, str]()
    for role, client in clients.items():
        variables |= {
            f"MARFT_{role.upper()}_URL": client.base_url,
            f"MARFT_{role.upper()}_MODEL": client.model,
            f"MARFT_{role.upper()}_INSTRUCTIONS": client.instructions,
            "MARFT_API_KEY": client.api_key,
            "MARFT_WAITING_URL": client.waiting_url,
        }
    if len(clients) == 1:
        (client,) = clients.values()
        variables |= {
            "OPENAI_BASE_URL": client.base_url,
            "OPENAI_API_KEY": client.api_key,
            "ANTHROPIC_BASE_URL": client.anthropic["base_url"],
            "ANTHROPIC_API_KEY": client.api_key,
        }
    return variables


class Clients(dict[str, Client]):
    """Clients by role; an unknown role raises an error with a suggestion."""

    def __missing__(self, role: object) -> Client:
        raise KeyError(f"no agent is called {role!r}{did_you_mean(str(role), self)}")
