"""Diagnostics on foreign text: log-probabilities for held-out text, and for actions after swapped inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common.errors import UserError
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Episode, TokenIds
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import Packing, build_sample
from marft.trainer.ranks.interface import Ranks
from marft.trainer.scoring import score_actions

ROW = 256  # tokens of held-out text per row
CHARACTERS = 64  # characters read from the file per requested token, so that the file size does not matter


class Diagnostics:
    """Diagnostics for guards, measured before a step's update.

    Args:
        run: recipe of the run.
        models: models of the run.
        packing: packing of the samples.
        ranks: ranks that share the work.

    Raises:
        UserError: the held-out text cannot be read, or is too short.
    """

    def __init__(self, run: RunSettings, models: PolicyRegistry, packing: Packing, ranks: Ranks) -> None:
        self._settings, self.ranks = run.guards, ranks
        self._packing = replace(packing, teammate_text=False)
        trained = run.trained_policies
        self._tokenizers = {name: models.policies[name].tokenizer for name in trained}
        self._contexts = {name: models.policies[name].context for name in trained}
        final_agents = [agent for agent in run.agents if agent.answers or len(run.agents) == 1]
        self._final_roles = [agent.role for agent in final_agents if agent.policy in trained]
        self._text = [action for name in trained for action in self._read_held_out_text(name)]

    def measure(self, episodes: Sequence[Episode], step: int) -> dict[str, float]:
        """Return metrics of the current policies.

        Args:
            episodes: episodes of the step.
            step: number of finished training steps.
        """
        metrics = self._measure_text_loss() if step % self._settings.held_out_text.every == 0 else {}
        if self._settings.probes and self._settings.dependence:
            for role in self._final_roles:
                values = self._measure_dependence(_pair_actions(episodes, role, self._settings.probes))
                metrics |= {f"agents/{role}/dependence/{name}": value for name, value in values.items()}
        return metrics

    def _measure_text_loss(self) -> dict[str, float]:
        if not self._text:
            return {}
        samples = [build_sample(action) for action in self._text]
        scored = score_actions(replace(self._packing, temperatures={"": 1.0}), samples, self.ranks)
        losses: dict[str, list[np.ndarray]] = {}
        for action in self._text:
            losses.setdefault(action.policy, []).append(-scored[action.key])
        return {
            f"policies/{name}/held_out_loss": float(np.concatenate(token_losses).mean())
            for name, token_losses in losses.items()
        }

    def _read_held_out_text(self, policy: str) -> Iterator[Action]:
        """Yield the held-out text in the form of actions: for each row, the tokens after the first."""
        settings = self._settings.held_out_text
        if not settings.path or not self._settings.capability:
            return
        try:
            text = _read_start(Path(settings.path), settings.tokens * CHARACTERS)
        except (OSError, ValueError) as error:
            raise UserError(f"guards.held_out_text.path: cannot read {settings.path}: {error}") from error
        ids = np.array(self._tokenizers[policy].encode(text, add_special_tokens=False)[: settings.tokens], np.int32)
        if len(ids) < 2:
            raise UserError(f"guards.held_out_text.path: {settings.path} has fewer than two tokens; give a longer text")
        size = min(ROW, self._contexts[policy])
        for number, start in enumerate(range(0, len(ids) - 1, size)):
            yield _text_action(policy, number, ids[start : start + size])

    def _measure_dependence(self, pairs: Sequence[_Pair]) -> dict[str, float]:
        """Return the dependence on inputs in nats per token: the median over action pairs.

        The measure is (log π(a | inputs) − log π(a | inputs of another task)) / tokens. It is computed for the whole
        prompt, and for the messages in the prompt alone. The mean is an upper bound on the information about the inputs
        (CLUB, Cheng et al. 2020). The median is used because a single text that contradicts the other inputs would
        dominate a mean.
        """
        changed: dict[str, list[Action]] = {
            "inputs": [replace(pair.action, prompt=pair.paired.prompt) for pair in pairs],
            "messages": [
                replace(pair.action, prompt=prompt)
                for pair in pairs
                if (prompt := pair.swap_messages(self._tokenizers[pair.action.policy])) is not None
            ],
        }
        changed_actions = [
            replace(action, key=action.key._replace(stream=name))
            for name, actions in changed.items()
            for action in actions
            if len(action.prompt) + len(action.tokens) <= self._contexts[action.policy]
        ]
        samples = [build_sample(action, self._packing.level) for action in changed_actions]
        scored = score_actions(self._packing, samples, self.ranks)
        log_ratios: dict[str, list[float]] = {}
        for action in changed_actions:
            log_ratio = float(action.log_probs.sum()) - float(scored[action.key].sum())
            log_ratios.setdefault(action.key.stream, []).append(log_ratio / action.num_decisions)
        return {name: float(np.median(values)) for name, values in log_ratios.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """Action, paired with the same agent's action at another task."""

    action: Action
    paired: Action
    messages: Mapping[str, str]  # messages visible to the action, by id
    paired_messages: Mapping[str, str]

    def swap_messages(self, tokenizer: PreTrainedTokenizerBase) -> TokenIds | None:
        """Return the action's prompt with the other action's messages.

        The result is None if a message is not in the prompt verbatim, or if the prompt's text does not encode to its
        ids.
        """
        swaps = [(self.messages.get(i, ""), self.paired_messages.get(i, "")) for i in self.action.sees]
        text = str(tokenizer.decode(self.action.prompt))
        if not swaps or tokenizer.encode(text, add_special_tokens=False) != self.action.prompt.tolist():
            return None
        for message, replacement in swaps:
            before, match, after = text.rpartition(message) if message else ("", "", text)
            if not replacement or not match:
                return None
            text = before + replacement + after
        return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)


def _pair_actions(episodes: Sequence[Episode], role: str, count: int) -> list[_Pair]:
    """Return one action per task, for at most ``count`` tasks, each paired with the next task's action.

    A single task gives no pair.
    """
    by_task: dict[str, tuple[Action, Mapping[str, str]]] = {}
    for episode in episodes:
        candidates = [action for action in episode.actions if action.agent == role and _can_swap(action)]
        if candidates and episode.is_scored and episode.task.id not in by_task:
            by_task[episode.task.id] = candidates[-1], {action.id: action.message for action in episode.actions}
    chosen = list(by_task.values())[:count]
    if len(chosen) < 2:
        return []
    return [
        _Pair(action, paired, messages, paired_messages)
        for (action, messages), (paired, paired_messages) in zip(chosen, [*chosen[1:], chosen[0]], strict=True)
    ]


def _can_swap(action: Action) -> bool:
    """Return True if the action has a single prompt and its decisions are tokens."""
    return action.choice is None and not action.restarts and not action.is_forced and len(action.log_probs) > 0


def _read_start(path: Path, characters: int) -> str:
    if path.exists() and not path.is_file():
        raise UserError("it is no file")
    with path.open(encoding="utf-8") as file:
        return file.read(characters)


def _text_action(policy: str, number: int, row: TokenIds) -> Action:
    size = len(row) - 1
    return Action(
        ActionKey("held out", policy, number, 0, "", 0),
        policy,
        number,
        (),
        row[:1],
        row[1:],
        np.full(size, TokenSource.SAMPLED, np.uint8),
        np.zeros(size, np.float32),
        "",
        "stop",
    )
