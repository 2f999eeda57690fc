"""What a program is given to ask an agent: three words that any client of OpenAI's API takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from marft.config.settings import did_you_mean


class Keywords(TypedDict):
    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class Client:
    """How one agent of one episode is reached.

    >>> Client("http://127.0.0.1:8000/e/secret/actor/v1", "none", "actor").keywords["api_key"]
    'none'

    Args:
        base_url: up to and without ``/chat/completions``.
        model: the policy's name. Any other does as well: the address says who is asked.
        instructions: of the recipe, to be used or not.
        waiting_url: where a ``POST`` says that the program waits for something other than an agent.
    """

    base_url: str
    api_key: str
    model: str
    instructions: str = ""
    waiting_url: str = ""

    @property
    def keywords(self) -> Keywords:
        """``OpenAI(**client.keywords)``."""
        return {"base_url": self.base_url, "api_key": self.api_key}

    @property
    def anthropic(self) -> Keywords:
        """``Anthropic(**client.anthropic)``, which adds ``/v1`` itself."""
        return {"base_url": self.base_url.removesuffix("/v1"), "api_key": self.api_key}


def environment(clients: Mapping[str, Client]) -> dict[str, str]:
    """The same as variables of a command's environment: ``MARFT_<ROLE>_URL``, and the names that SDKs read where there
    is one agent."""
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
    """By role. Whoever asks for another is told which there are."""

    def __missing__(self, role: object) -> Client:
        raise KeyError(f"no agent is called {role!r}{did_you_mean(str(role), self)}")
