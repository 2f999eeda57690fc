"""Detection of requests, offers and refusals in a service's messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

SAID = {  # user's statement of a fact, by slot
    "email": "My e-mail is {}.",
    "name": "My name is {}.",
    "zip": "My zip code is {}.",
    "user": "My user id is {}.",
    "order": "It is {}.",
    "reservation": "It is {}.",
    "item": "It is the {}.",
    "reason": "The reason: {}.",
    "payment": "Use {}.",
    "new": "I want {}.",
    "address": "The address is {}.",
    "bags": "I take {}.",
    "insurance": "I book {}.",
    "passenger": "It is {}.",
    "date": "The day is {}.",
    "cabin": "The cabin is {}.",
}
WORDS = {
    "email": r"e-?mail",
    "name": r"(?:full |first |last )?names?(?! of)",
    "zip": r"zip(?: ?code)?|postal code",
    "user": r"(?:user|customer|member) ?(?:id|name|number)",
    "order": r"orders?(?: (?:id|number)s?)?|order",
    "reservation": r"reservations?(?: (?:id|number|code)s?)?|booking",
    "item": r"(?:items?|products?)",
    "reason": r"reasons?",
    "payment": r"(?:payment|refund)(?: methods?)?|pay",
    "new": r"(?:variants?|options?)",
    "address": r"address(?:es)?",
    "bags": r"(?:bags?|baggage)",
    "insurance": r"insurance",
    "passenger": r"passengers?",
    "date": r"(?:dates?|days?)",
    "cabin": r"cabin",
}
ASKS = r"(?:which|what(?: is| are)?|whose|how many|your|the|provide|tell me|share|give me|and|for)"
PATTERNS = {slot: re.compile(rf"\b{ASKS} (?:\w+ ){{0,2}}(?:{words})\b") for slot, words in WORDS.items()}
IMPERATIVE = re.compile(
    r"\b(?:please|provide|tell me|share|give me|need to know|could i have|may i have|let me know)\b"
)
REFUSAL = re.compile(r"\b(?:sorry|cannot|can not|can't|unable|not possible|not allowed|unfortunately)\b")
DONE = re.compile(
    r"\b(?:done|cancell?ed|returned|changed|booked|added|requested|updated|processed|exchanged|modified|refunded)\b"
)
MORE = re.compile(r"\b(?:anything|something) else|what else|further help|help you with\b")


def sentences(text: str) -> list[str]:
    """Split text roughly into sentences.

    >>> sentences("Sorry, W1 is delivered. Cancel W2?")
    ['Sorry, W1 is delivered.', 'Cancel W2?']
    """
    return [one for one in re.split(r"(?<=[.?!])\s+|\n+", text.strip()) if one]


def asked_for(said: str) -> list[str]:
    """Return the slots requested in a message.

    >>> asked_for("Which order, and what is your e-mail?")
    ['email', 'order']
    """
    asking = [one for one in sentences(said.lower()) if one.endswith("?") or IMPERATIVE.search(one)]
    return [slot for slot, pattern in PATTERNS.items() if any(pattern.search(one) for one in asking)]


def is_refusal(sentence: str) -> bool:
    """Return True if a sentence is a refusal."""
    return bool(REFUSAL.search(sentence))


def is_done(text: str) -> bool:
    """Return True if a text reports a completed action."""
    return bool(DONE.search(text))


def more_is_offered(text: str) -> bool:
    """Return True if a text asks for further requests."""
    return bool(MORE.search(text))


def names_all(text: str, keys: Sequence[str]) -> bool:
    """Return True if a text contains every key as whole words; case is ignored.

    >>> names_all("cancel w12?", ["W12"]), names_all("cancel w123?", ["W12"])
    (True, False)
    """
    return all(re.search(rf"(?<!\w){re.escape(key.lower())}(?!\w)", text.lower()) for key in keys)
