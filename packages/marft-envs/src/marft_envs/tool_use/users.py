"""Simulated users: by script or from a list of messages, and prompts for agents that play a user.

A scripted user detects requests, offers and refusals in a service's messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from marft_envs.tool_use.goals import Goal, Identity, contains_all
from marft_envs.tool_use.toolbox import RecordView

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


STOP = "###STOP###"  # marker at the end of the user's last message
# further markers with which a user of τ²-bench ends a conversation
TRANSFER, OUT_OF_SCOPE = "###TRANSFER###", "###OUT-OF-SCOPE###"
DEFAULT_PATIENCE = 2
USER = "user"  # role of the agent that plays the user


class ScriptedUser:
    """User that follows fixed rules.

    The user states its goals and answers questions. It agrees only to offers that match a goal. It repeats unfinished
    goals, up to ``patience`` times. The same messages always get the same replies.

    Args:
        identity: identity of the user.
        goals: goals of the user.
        batches: indices of the goals that are stated together, in order.
        patience: maximum number of repeated requests before the user gives up.
    """

    def __init__(
        self, identity: Identity, goals: Sequence[Goal], batches: Sequence[Sequence[int]], patience: int
    ) -> None:
        self.identity, self.goals, self.batches = identity, goals, batches
        self.remaining_patience = patience
        self.batch_index = 0
        self.confirmed_goals = set[int]()
        self.finished_goals = set[int]()
        self._own_text = ""
        self.confirmed = False  # True if the last reply was an agreement

    @property
    def is_satisfied(self) -> bool:
        """Return True if the user has not run out of patience."""
        return self.remaining_patience >= 0

    def first_message(self) -> str:
        """Return the first message: identity, if stated, and first goals."""
        self._own_text = " ".join(filter(None, [self.identity.says, self._goal_statements(self.batches[0])]))
        return self._own_text

    def reply(self, message: str) -> str:
        """Return the reply to a message."""
        answer = self._make_reply(message)
        self._own_text += f"\n{answer}"
        return answer

    def _make_reply(self, message: str) -> str:
        self.confirmed = False
        open_goals = [index for index in self.batches[self.batch_index] if index not in self.finished_goals]
        text = message.lower()
        self._mark_finished(open_goals, text)
        slots = [slot for slot in requested_slots(message) if self._slot_facts(slot, open_goals)]
        new_slots = [slot for slot in slots if not contains_all(self._own_text, self._slot_facts(slot, open_goals))]
        if new_slots:
            return self._state_facts(new_slots, open_goals)
        offered_goals = [] if offers_more_help(text) else self._offered_goals(open_goals, text)
        if offered_goals and "?" in message:
            self.confirmed_goals |= set(offered_goals)
            self.confirmed = True
            return "Yes."
        if slots:
            return self._state_facts(slots, open_goals)
        if "?" not in message or offers_more_help(text):
            self._mark_reported(open_goals, text)
        return self._next_message(message)

    def _mark_finished(self, open_goals: Sequence[int], text: str) -> None:
        """Mark refused goals and answered questions as finished."""
        for sentence in split_sentences(text):
            named_goals = {index for index in open_goals if contains_all(sentence, self.goals[index].keys)}
            if is_refusal(sentence):
                self.finished_goals |= named_goals
            elif not sentence.endswith("?"):
                self.finished_goals |= {index for index in named_goals if not self.goals[index].offer}

    def _offered_goals(self, open_goals: Sequence[int], text: str) -> list[int]:
        offerable = [index for index in open_goals if index not in self.finished_goals and self.goals[index].offer]
        return [index for index in offerable if contains_all(text, self.goals[index].keys)]

    def _mark_reported(self, open_goals: Sequence[int], text: str) -> None:
        """Mark goals as finished if the user agreed to them or the message reports them as done."""
        for index in open_goals:
            if index in self.confirmed_goals or (
                reports_completion(text) and contains_all(text, self.goals[index].keys)
            ):
                self.finished_goals.add(index)

    def _next_message(self, message: str) -> str:
        open_goals = [index for index in self.batches[self.batch_index] if index not in self.finished_goals]
        if open_goals:
            self.remaining_patience -= 1
            return (
                f"I still want this: {self._goal_statements(open_goals)}"
                if self.remaining_patience >= 0
                else f"Never mind. {STOP}"
            )
        if self.batch_index + 1 == len(self.batches):
            return f"{'No, thanks.' if '?' in message else 'Thanks.'} {STOP}"
        self.batch_index += 1
        return f"Also: {self._goal_statements(self.batches[self.batch_index])}"

    def _goal_statements(self, indexes: Sequence[int]) -> str:
        return " ".join(self.goals[index].says for index in indexes)

    def _slot_facts(self, slot: str, open_goals: Sequence[int]) -> list[str]:
        """Return the known facts for a slot; several if several goals have the slot."""
        facts = [self.identity.facts.get(slot, ""), *(self.goals[index].facts.get(slot, "") for index in open_goals)]
        return list(dict.fromkeys(filter(None, facts)))

    def _state_facts(self, slots: Sequence[str], open_goals: Sequence[int]) -> str:
        return " ".join(FACT_SENTENCES[slot].format(" and ".join(self._slot_facts(slot, open_goals))) for slot in slots)


class FixedMessagesUser:
    """User that sends a fixed list of messages, independent of the replies."""

    confirmed = True  # never waits for agreement
    is_satisfied = True  # never gives up

    def __init__(self, messages: Sequence[str]) -> None:
        self._remaining = list(messages)

    def first_message(self) -> str:
        """Return the first message."""
        return self._remaining.pop(0)

    def reply(self, message: str) -> str:  # noqa: ARG002
        """Return the next message; ``STOP`` after the last."""
        return self._remaining.pop(0) if self._remaining else STOP


User = ScriptedUser | FixedMessagesUser


def make_scripted_user(data: RecordView, patience: int) -> ScriptedUser:
    """Create the scripted user for a generated task."""
    goals = [Goal(**goal) for goal in data["goals"]]
    return ScriptedUser(Identity(**data["identity"]), goals, data["batches"], patience)


def user_prompt(words: str, end_markers: Sequence[str]) -> str:
    """Return the prompt for an agent that plays the user in a published task.

    Args:
        words: instruction of the task.
        end_markers: markers that may end the conversation, including ``STOP``.
    """
    lines = [
        words,
        "",
        "You are the customer, and talk to a service. Write what the customer says next, one line at a time, in your "
        "own words. Tell only what you are asked for or what is needed next, never all at once. Invent nothing: what "
        "is not said above you do not know. Stay in character.",
        f"Once all that you want is done, write {STOP} and nothing else.",
    ]
    if TRANSFER in end_markers:
        lines.append(f"Once you are handed over to somebody else, write {TRANSFER}.")
    if OUT_OF_SCOPE in end_markers:
        lines.append(f"Where what is said above does not tell you how to go on, write {OUT_OF_SCOPE}.")
    return "\n".join(lines)


def generated_user_prompt(data: RecordView) -> str:
    """Return the prompt for an agent that plays the user in a generated task."""
    goals, identity = [Goal(**goal) for goal in data["goals"]], Identity(**data["identity"])
    lines = ["You are a customer, and talk to a service."]
    lines += [FACT_SENTENCES[slot].format(fact) for slot, fact in identity.facts.items()]
    for number, batch in enumerate(data["batches"]):
        introduction = "You want this:" if number == 0 else "Once that is done, you also want this:"
        batch_goals = [goals[index] for index in batch]
        lines.append(f"{introduction} {' '.join(goal.says for goal in batch_goals)}")
        lines += [FACT_SENTENCES[slot].format(goal.facts[slot]) for goal in batch_goals for slot in goal.withheld]
    lines.append(
        "Say one thing at a time and only what you know. Agree with a clear yes to what you want, and to nothing else. "
        f"Once all is done, or cannot be, end your message with {STOP}"
    )
    return "\n".join(lines)
