"""Character-kind shares of agents' texts, and match rates for required formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from marft.common.errors import EpisodeFailedError
from marft.common.types import Episode
from marft.config.patterns import contains_match
from marft.evaluation.guards.history import CHARACTER_KINDS


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
