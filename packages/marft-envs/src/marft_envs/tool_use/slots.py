"""Detection of requests, offers and refusals in a service's messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

FACT_SENTENCES = {  # user's statement of a fact, by slot
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
SLOT_WORDS = {
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
QUESTION_WORDS = r"(?:which|what(?: is| are)?|whose|how many|your|the|provide|tell me|share|give me|and|for)"
SLOT_PATTERNS = {
    slot: re.compile(rf"\b{QUESTION_WORDS} (?:\w+ ){{0,2}}(?:{words})\b") for slot, words in SLOT_WORDS.items()
}
REQUEST_PHRASE = re.compile(
    r"\b(?:please|provide|tell me|share|give me|need to know|could i have|may i have|let me know)\b"
)
REFUSAL_PHRASE = re.compile(r"\b(?:sorry|cannot|can not|can't|unable|not possible|not allowed|unfortunately)\b")
COMPLETION_PHRASE = re.compile(
    r"\b(?:done|cancell?ed|returned|changed|booked|added|requested|updated|processed|exchanged|modified|refunded)\b"
)
OFFER_PHRASE = re.compile(r"\b(?:anything|something) else|what else|further help|help you with\b")


def split_sentences(text: str) -> list[str]:
    """Split text roughly into sentences.

    >>> split_sentences("Sorry, W1 is delivered. Cancel W2?")
    ['Sorry, W1 is delivered.', 'Cancel W2?']
    """
    return [sentence for sentence in re.split(r"(?<=[.?!])\s+|\n+", text.strip()) if sentence]


def requested_slots(message: str) -> list[str]:
    """Return the slots requested in a message.

    >>> requested_slots("Which order, and what is your e-mail?")
    ['email', 'order']
    """
    questions = [
        sentence
        for sentence in split_sentences(message.lower())
        if sentence.endswith("?") or REQUEST_PHRASE.search(sentence)
    ]
    return [slot for slot, pattern in SLOT_PATTERNS.items() if any(pattern.search(sentence) for sentence in questions)]


def is_refusal(sentence: str) -> bool:
    """Return True if a sentence is a refusal."""
    return bool(REFUSAL_PHRASE.search(sentence))


def reports_completion(text: str) -> bool:
    """Return True if a text reports a completed action."""
    return bool(COMPLETION_PHRASE.search(text))


def offers_more_help(text: str) -> bool:
    """Return True if a text asks for further requests."""
    return bool(OFFER_PHRASE.search(text))


def contains_all(text: str, keys: Sequence[str]) -> bool:
    """Return True if a text contains every key as whole words; case is ignored.

    >>> contains_all("cancel w12?", ["W12"]), contains_all("cancel w123?", ["W12"])
    (True, False)
    """
    return all(re.search(rf"(?<!\w){re.escape(key.lower())}(?!\w)", text.lower()) for key in keys)
