"""Recorded episodes: selection, prompts, JSON form, and the history of a task over the steps.

The functions need no task data, rewards or models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tokenizers import Tokenizer

from marft.common.errors import UserError
from marft.common.texts import single_line
from marft.common.types import Action, Episode
from marft.config.bundled import resolve_path
from marft.config.load import get_table, read_plain_table
from marft.config.settings import did_you_mean
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder, parse_step

MAX_EXAMPLES = 6  # number of episodes that an evaluation keeps in full
Order = Literal["", "worst", "best", "failed"]
ORDERS: tuple[Order, ...] = get_args(Order)
TOKENIZER_FILE = "tokenizer.json"


def action_to_dict(action: Action) -> dict[str, object]:
    """Return an action's tool calls and text for a page or a JSON file."""
    calls = [f"{call.name or 'unreadable call'} {call.arguments} → {call.output}" for call in action.calls]
    return {"agent": action.agent, "step": action.step, "calls": calls, "text": action.text}


def episode_to_dict(episode: Episode) -> dict[str, object]:
    """Return a scored episode for a page or a JSON file."""
    return {
        "task": episode.task.id,
        "observation": episode.transitions[0].observation.full_text,
        "actions": [action_to_dict(action) for action in episode.actions],
        "reward": episode.total_reward,
        "success": episode.success,
    }


def count_known_tokens(action: Action, by_id: Mapping[str, Action]) -> int:
    """Return the number of leading prompt tokens already known from the previous action.

    These tokens repeat the exact IDs of that action and its prompt. The number is 0 if the prompt continues no action,
    or not by its exact IDs.
    """
    before = by_id.get(action.continues[-1]) if action.continues else None
    if before is None or action.restarted:
        return 0
    context, start, stop = before.segments[-1]
    ids = np.concatenate([context, before.tokens[start:stop]])
    return len(ids) if np.array_equal(action.prompt[: len(ids)], ids) else 0


def find_new_actions(action: Action, by_id: Mapping[str, Action]) -> list[str]:
    """Return the actions that an agent saw since it last acted.

    Of its own actions, only the last one is included.
    """
    before = by_id.get(action.continues[-1]) if action.continues else None
    seen_before = {*before.sees, *action.continues[:-1]} if before else set[str]()
    return [seen for seen in action.sees if seen not in seen_before]


def sort_episodes(episodes: Sequence[Episode], order: Order) -> list[Episode]:
    """Return the episodes in recorded order, by reward (scored ones only), or the unscored ones.

    Raises:
        UserError: the order is invalid.
    """
    if order not in ORDERS:
        raise UserError(f"order {order!r} is none of {', '.join(map(repr, ORDERS))}")
    if order == "failed":
        return [episode for episode in episodes if not episode.is_scored]
    if not order:
        return list(episodes)
    scored = [episode for episode in episodes if episode.is_scored]
    return sorted(scored, key=lambda episode: episode.total_reward, reverse=order == "best")


def find_episode(episodes: list[Episode], name: str) -> Episode:
    """Return an episode by its index (``"3"``), or by task and sample (``"chain_sum/17#2"``).

    Raises:
        UserError: no such episode exists.
    """
    indices = [str(index) for index in range(len(episodes))]
    if name in indices:
        return episodes[indices.index(name)]
    matches = [e for e in episodes if name in (f"{e.task.id}#{e.sample}", f"{e.task.id} #{e.sample}")]
    if not matches:
        examples = ", ".join(f"{episode.task.id}#{episode.sample}" for episode in episodes[:4])
        raise UserError(f"no episode {name!r}: there are 0 to {len(episodes) - 1}, by task and sample {examples}, …")
    return matches[0]


def count_failure_reasons(episodes: Sequence[Episode]) -> list[tuple[str, int]]:
    """Return the reasons for unscored episodes with their counts, the most frequent first."""
    reasons = Counter(f"{single_line(e.status)}: {single_line(e.error)}" for e in episodes if not e.is_scored)
    return reasons.most_common()


def extract_answer(episode: Episode, answer_roles: Collection[str]) -> str:
    """Return the answer: the last text of an answering agent, else the last text; "" without actions."""
    texts = [action.text for action in episode.actions if action.agent in answer_roles]
    return (texts or [action.text for action in episode.actions] or [""])[-1]


def read_task_history(folder: RunFolder, task: str) -> list[tuple[int, Episode]]:
    """Return every recorded attempt at a task with its step, oldest first.

    Args:
        task: ``id`` or ``id#sample``.

    Raises:
        UserError: no recorded episode is an attempt at the task.
    """
    folder.find_recorded(0)
    history: list[tuple[int, Episode]] = []
    for path in folder.recorded_steps():
        history += [(parse_step(path), episode) for episode in select_attempts(read_task_episodes(path, task), task)]
    if not history:
        task_ids = {episode.task.id for episode in read_episodes(folder.find_recorded(0))}
        raise UserError(f"no recorded episode is of task {task!r}{did_you_mean(task, task_ids)}")
    return history


def read_task_episodes(path: Path, task: str) -> list[Episode]:
    """Read possible attempts at a task from a file.

    The result may include other tasks' episodes. It has all episodes of the file if ``task`` is "".
    """
    if "#" not in task:
        return read_episodes(path, task)
    return [*read_episodes(path, task), *read_episodes(path, task.rpartition("#")[0])]


def select_attempts(episodes: Sequence[Episode], task: str) -> list[Episode]:
    """Return the attempts at a task, given as ``id`` or ``id#sample``; all episodes if ``task`` is ""."""
    return [e for e in episodes if task in ("", e.task.id, f"{e.task.id}#{e.sample}")]


def diff_texts(before: str, after: str, names: tuple[str, str]) -> list[str]:
    r"""Return a unified diff of two texts, line by line; empty for equal texts.

    >>> diff_texts("a\nb", "a\nc", ("step 1", "step 9"))[2:]
    ['@@ -1,2 +1,2 @@', ' a', '-b', '+c']
    """
    return list(unified_diff(before.split("\n"), after.split("\n"), *names, lineterm=""))


class PromptDecoder:
    """Agents and models in a run's saved recipe.

    The recipe is read as a plain table, so the plugins that it names need not be installed.
    """

    def __init__(self, config: Path) -> None:
        self._table = read_plain_table(config)
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
        models = get_table(self._table, "models")
        model = get_table(models, str(get_table(self._table, "policies", policy).get("model")))
        endpoint = model.get("endpoint")
        if not isinstance(endpoint, dict):
            return model
        local = [name for name in models if not isinstance(get_table(models, name).get("endpoint"), dict)]
        return get_table(models, str(endpoint.get("local_model") or (local[0] if local else "")))


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
