"""Prompts of recorded actions as words, where the tokenizer of the run's model is at hand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from marft.common.types import Action
from marft.models.paths import resolve_path

FILE = "tokenizer.json"


class Recorded:
    """What a run's written recipe says of its agents and models, read as a plain table: parts that it names need not be
    there any more."""

    def __init__(self, config: Path) -> None:
        try:
            self._table: Mapping[str, object] = tomllib.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            self._table = {}
        self._tokenizers: dict[str, Tokenizer | None] = {}

    @property
    def answering(self) -> set[str]:
        """Roles of the agents whose text is the team's answer."""
        agents = self._table.get("agents")
        listed = [agent for agent in agents if isinstance(agent, dict)] if isinstance(agents, list) else []
        return {str(agent.get("role")) for agent in listed if agent.get("answers") is True}

    def prompt(self, action: Action, known: int = 0) -> str | None:
        """What an agent saw, control tokens included; None where no tokenizer is at hand.

        Args:
            known: tokens at its beginning that are left out.
        """
        tokenizer = self.tokenizer(action.policy)
        return str(tokenizer.decode(action.prompt[known:].tolist(), skip_special_tokens=False)) if tokenizer else None

    def tokenizer(self, policy: str) -> Tokenizer | None:
        """What a policy is spoken to with; None where it is not at hand."""
        if policy not in self._tokenizers:
            self._tokenizers[policy] = _tokenizer(self._model(policy))
        return self._tokenizers[policy]

    def _model(self, policy: str) -> Mapping[str, object]:
        """The model whose tokenizer a policy is spoken to with: for a remote one its reader's."""
        models = _at(self._table, "models")
        model = _at(models, str(_at(self._table, "policies", policy).get("model")))
        if not isinstance(model.get("endpoint"), dict):
            return model
        local = [name for name in models if not isinstance(_at(models, name).get("endpoint"), dict)]
        return _at(models, str(model["endpoint"].get("reader") or (local[0] if local else "")))


def _at(table: Mapping[str, object], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table


def _tokenizer(model: Mapping[str, Any]) -> Tokenizer | None:
    """From the model's folder, or from what was fetched of the hub before; nothing is fetched for it."""
    path = resolve_path(str(model.get("path", "")))
    file: object = Path(path) / FILE
    if path and not Path(path).exists():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            file = try_to_load_from_cache(path, FILE, revision=model.get("revision"))
        except HFValidationError:  # no id
            return None
    if not isinstance(file, str | Path) or not Path(file).is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001  the package raises Exception itself; without a tokenizer the texts are shown
        return None
