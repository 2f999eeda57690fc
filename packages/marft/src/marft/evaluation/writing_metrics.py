"""Text statistics of agents, computed without a model: repetition, scripts, kinds of characters and token shares."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from marft.common.errors import EpisodeFailedError
from marft.common.types import Action, Episode
from marft.config.patterns import contains_match
from marft.evaluation.guards.history import CHARACTER_KINDS

JAPANESE = ("HIRAGANA", "KATAKANA")  # scripts that are mixed with characters named CJK in Unicode
WIDTHS = ("FULLWIDTH", "HALFWIDTH")
NGRAM_SIZE = 4


def other_script(pairs: Iterable[tuple[str, str]]) -> float | None:
    """Return the share of letters in scripts absent from the task. The result is None without letters.

    Args:
        pairs: the text of the task, and the text written for it.

    >>> other_script([("Add 2 and 3.", "also fünf, or пять")])
    0.2857142857142857
    """
    letters = num_other = 0
    for task_text, text in pairs:
        used = set(count_scripts(task_text))
        for script, count in count_scripts(text).items():
            letters += count
            num_other += count * (script not in used)
    return num_other / letters if letters else None


def count_scripts(text: str) -> Counter[str]:
    """Count the letters by script.

    The script is the first word of a character's Unicode name, except for width prefixes and Japanese.

    >>> count_scripts("Δx 漢字")
    Counter({'CJK': 2, 'GREEK': 1, 'LATIN': 1})
    """
    counts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := _script_of(character):
            counts[script] += count
    return counts


@cache
def _script_of(character: str) -> str:
    """Return the script of a letter; "" for other characters and for letters without a name."""
    if not character.isalpha():
        return ""
    words = unicodedata.name(character, "").split()
    word = next((word for word in words if word not in WIDTHS), "")
    return "CJK" if word in JAPANESE else word


def repetition(actions: Sequence[Action]) -> float | None:
    """Return 1 − |distinct 4-grams| / |4-grams| of actions' own tokens (seq-rep-4, Welleck et al. 2020).

    It is the mean over the actions with at least one 4-gram, or None without any.
    """
    shares = []
    for action in actions:
        tokens = action.tokens[action.own_mask].tolist()
        ngrams = list(zip(*(tokens[start:] for start in range(NGRAM_SIZE)), strict=False))
        if ngrams:
            shares.append(1.0 - len(set(ngrams)) / len(ngrams))
    return sum(shares) / len(shares) if shares else None


def character_shares(texts: Sequence[str]) -> dict[str, float]:
    """Return the share of each character kind; the shares add up to 1, and the result is empty without characters.

    >>> for kind, share in character_shares(["a 12", "b: 345"]).items():
    ...     print(kind, share)
    characters/letters 0.2
    characters/digits 0.5
    characters/spaces 0.2
    characters/breaks 0.0
    characters/marks 0.1
    """
    counts: Counter[str] = Counter()
    for character, count in Counter("".join(texts)).items():
        counts[_character_kind(character)] += count
    return {f"characters/{kind}": counts[kind] / counts.total() for kind in CHARACTER_KINDS} if counts else {}


def format_rates(episodes: Sequence[Episode], formats: Mapping[str, str]) -> dict[str, float]:
    """Return the share of each agent's actions that match the declared pattern (``guards.formats``).

    A text does not match if the search exceeds its timeout.

    Args:
        formats: a regular expression for each role.
    """
    rates = {}
    for role, pattern in formats.items():
        texts = [action.text for episode in episodes for action in episode.actions if action.agent == role]
        if texts:
            rates[f"agents/{role}/format_rate"] = sum(_matches_format(pattern, text) for text in texts) / len(texts)
    return rates


def _matches_format(pattern: str, text: str) -> bool:
    try:
        return contains_match(pattern, text)
    except EpisodeFailedError:
        return False


def _character_kind(character: str) -> str:
    if character.isalpha():
        return "letters"
    if character.isdecimal():
        return "digits"
    if character in "\n\r":
        return "breaks"
    return "spaces" if character.isspace() else "marks"


def compute_text_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return metrics under ``agents/<role>/``; metrics without text are absent."""
    actions_by_role = {role: [(e, a) for e in episodes for a in e.actions if a.agent == role] for role in roles}
    tokens = {role: sum(int(a.own_mask.sum()) for _, a in actions) for role, actions in actions_by_role.items()}
    total = sum(tokens.values())
    metrics: dict[str, float] = {}
    for role, own_actions in actions_by_role.items():
        values: dict[str, float | None] = {
            "repetition": repetition([action for _, action in own_actions]),
            "other_script": other_script(
                (_visible_text(episode, action), action.agent_text) for episode, action in own_actions
            ),
            "token_share": tokens[role] / total if total and len(roles) > 1 else None,
        }
        values |= character_shares([action.agent_text for _, action in own_actions])
        metrics |= {f"agents/{role}/{name}": value for name, value in values.items() if value is not None}
    return metrics


def _visible_text(episode: Episode, action: Action) -> str:
    """Return the text shown by the environment before the action."""
    steps = [transition.observation.for_role(action.agent) for transition in episode.transitions[: action.step + 1]]
    return "\n".join([episode.task.prompt, *steps])
