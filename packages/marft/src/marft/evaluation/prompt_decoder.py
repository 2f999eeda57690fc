"""Decoded prompts for recorded actions, given a local tokenizer for the run's model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from marft.common.types import Action
from marft.models.paths import resolve_path

TOKENIZER_FILE = "tokenizer.json"


class PromptDecoder:
    """Agents and models in a run's saved recipe.

    The recipe is read as a plain table, so the plugins that it names need not be installed.
    """

    def __init__(self, config: Path) -> None:
        try:
            self._table: Mapping[str, object] = tomllib.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            self._table = {}
        self._tokenizers: dict[str, Tokenizer | None] = {}

    @property
    def answer_roles(self) -> set[str]:
        """Roles marked with ``answers`` in the recipe."""
        agents = self._table.get("agents")
        listed = [agent for agent in agents if isinstance(agent, dict)] if isinstance(agents, list) else []
        return {str(agent.get("role")) for agent in listed if agent.get("answers") is True}

    def decode_prompt(self, action: Action, skip: int = 0) -> str | None:
        """Decode an action's prompt with its control tokens. The result is None without a local tokenizer.

        Args:
            skip: number of leading tokens to omit.
        """
        tokenizer = self.get_tokenizer(action.policy)
        return str(tokenizer.decode(action.prompt[skip:].tolist(), skip_special_tokens=False)) if tokenizer else None

    def get_tokenizer(self, policy: str) -> Tokenizer | None:
        """Return a policy's tokenizer. The result is None if the tokenizer is not available locally."""
        if policy not in self._tokenizers:
            self._tokenizers[policy] = _load_tokenizer(self._tokenizer_model(policy))
        return self._tokenizers[policy]

    def _tokenizer_model(self, policy: str) -> Mapping[str, object]:
        """Return the model that provides a policy's tokenizer; for a remote policy, its reader model."""
        models = _get_table(self._table, "models")
        model = _get_table(models, str(_get_table(self._table, "policies", policy).get("model")))
        if not isinstance(model.get("endpoint"), dict):
            return model
        local = [name for name in models if not isinstance(_get_table(models, name).get("endpoint"), dict)]
        return _get_table(models, str(model["endpoint"].get("local_model") or (local[0] if local else "")))


def _get_table(table: Mapping[str, object], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table


def _load_tokenizer(model: Mapping[str, Any]) -> Tokenizer | None:
    """Load a tokenizer from the model's folder or from the local hub cache, without a download."""
    path = resolve_path(str(model.get("path", "")))
    file: object = Path(path) / TOKENIZER_FILE
    if path and not Path(path).exists():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            file = try_to_load_from_cache(path, TOKENIZER_FILE, revision=model.get("revision"))
        except HFValidationError:  # not a repository ID
            return None
    if not isinstance(file, str | Path) or not Path(file).is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001  tokenizers raises Exception itself; without a tokenizer, the texts are shown
        return None
