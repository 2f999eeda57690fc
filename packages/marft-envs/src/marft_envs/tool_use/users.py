"""Simulated users: by script or from a list of messages, and prompts for agents that play a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from marft_envs.tool_use.goals import Goal, Identity
from marft_envs.tool_use.slots import SAID, asked_for, is_done, is_refusal, more_is_offered, names_all, sentences

STOP = "###STOP###"  # marker at the end of the user's last message
# further markers with which a user of τ²-bench ends a conversation
TRANSFER, OUT_OF_SCOPE = "###TRANSFER###", "###OUT-OF-SCOPE###"
PATIENCE = 2


class User(Protocol):
    """Interface for simulated users."""

    def opening(self) -> str:
        """Return the first message."""
        ...

    def answer(self, said: str) -> str:
        """Return the reply to the team's message; the last reply ends with ``STOP``."""
        ...

    @property
    def agreed(self) -> bool:
        """Return True if the last message agrees to the team's offer."""
        ...

    @property
    def served(self) -> bool:
        """Return True if the user has not given up."""
        ...


class Scripted:
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
        self.left = patience
        self.batch = 0
        self.confirmed = set[int]()
        self.over = set[int]()
        self._said = ""
        self._agreed = False

    @property
    def agreed(self) -> bool:
        """Return True if the last reply was an agreement."""
        return self._agreed

    @property
    def served(self) -> bool:
        """Return True if the user has not run out of patience."""
        return self.left >= 0

    def opening(self) -> str:
        """Return the first message: identity, if stated, and first goals."""
        self._said = " ".join(filter(None, [self.identity.says, self._wishes(self.batches[0])]))
        return self._said

    def answer(self, said: str) -> str:
        """Return the reply to a message."""
        answer = self._answer(said)
        self._said += f"\n{answer}"
        return answer

    def _answer(self, said: str) -> str:
        self._agreed = False
        here = [index for index in self.batches[self.batch] if index not in self.over]
        text = said.lower()
        self._settled(here, text)
        asked = [slot for slot in asked_for(said) if self._facts(slot, here)]
        new = [slot for slot in asked if not names_all(self._said, self._facts(slot, here))]
        if new:
            return self._tell(new, here)
        offered = [] if more_is_offered(text) else self._offered(here, text)
        if offered and "?" in said:
            self.confirmed |= set(offered)
            self._agreed = True
            return "Yes."
        if asked:
            return self._tell(asked, here)
        if "?" not in said or more_is_offered(text):
            self._reported(here, text)
        return self._next(said)

    def _settled(self, here: Sequence[int], text: str) -> None:
        """Mark refused goals and answered questions as finished."""
        for sentence in sentences(text):
            named = {index for index in here if names_all(sentence, self.goals[index].keys)}
            if is_refusal(sentence):
                self.over |= named
            elif not sentence.endswith("?"):
                self.over |= {index for index in named if not self.goals[index].offer}

    def _offered(self, here: Sequence[int], text: str) -> list[int]:
        left = [index for index in here if index not in self.over and self.goals[index].offer]
        return [index for index in left if names_all(text, self.goals[index].keys)]

    def _reported(self, here: Sequence[int], text: str) -> None:
        """Mark goals as finished if the user agreed to them or the message reports them as done."""
        for index in here:
            if index in self.confirmed or (is_done(text) and names_all(text, self.goals[index].keys)):
                self.over.add(index)

    def _next(self, said: str) -> str:
        here = [index for index in self.batches[self.batch] if index not in self.over]
        if here:
            self.left -= 1
            return f"I still want this: {self._wishes(here)}" if self.left >= 0 else f"Never mind. {STOP}"
        if self.batch + 1 == len(self.batches):
            return f"{'No, thanks.' if '?' in said else 'Thanks.'} {STOP}"
        self.batch += 1
        return f"Also: {self._wishes(self.batches[self.batch])}"

    def _wishes(self, indexes: Sequence[int]) -> str:
        return " ".join(self.goals[index].says for index in indexes)

    def _facts(self, slot: str, here: Sequence[int]) -> list[str]:
        """Return the known facts for a slot; several if several goals have the slot."""
        known = [self.identity.facts.get(slot, ""), *(self.goals[index].facts.get(slot, "") for index in here)]
        return list(dict.fromkeys(filter(None, known)))

    def _tell(self, slots: Sequence[str], here: Sequence[int]) -> str:
        return " ".join(SAID[slot].format(" and ".join(self._facts(slot, here))) for slot in slots)


class Messages:
    """User that sends a fixed list of messages, independent of the replies."""

    agreed = True  # never waits for agreement
    served = True  # never gives up

    def __init__(self, messages: Sequence[str]) -> None:
        self._left = list(messages)

    def opening(self) -> str:
        """Return the first message."""
        return self._left.pop(0)

    def answer(self, said: str) -> str:  # noqa: ARG002
        """Return the next message; ``STOP`` after the last."""
        return self._left.pop(0) if self._left else STOP


def scripted(data: Mapping[str, Any], patience: int) -> Scripted:
    """Create the scripted user for a generated task."""
    goals = [Goal(**goal) for goal in data["goals"]]
    return Scripted(Identity(**data["identity"]), goals, data["batches"], patience)


def brief(words: str, endings: Sequence[str]) -> str:
    """Return the prompt for an agent that plays the user in a published task.

    Args:
        words: instruction of the task.
        endings: markers that may end the conversation, including ``STOP``.
    """
    lines = [
        words,
        "",
        "You are the customer, and talk to a service. Write what the customer says next, one line at a time, in your "
        "own words. Tell only what you are asked for or what is needed next, never all at once. Invent nothing: what "
        "is not said above you do not know. Stay in character.",
        f"Once all that you want is done, write {STOP} and nothing else.",
    ]
    if TRANSFER in endings:
        lines.append(f"Once you are handed over to somebody else, write {TRANSFER}.")
    if OUT_OF_SCOPE in endings:
        lines.append(f"Where what is said above does not tell you how to go on, write {OUT_OF_SCOPE}.")
    return "\n".join(lines)


def instruction(data: Mapping[str, Any]) -> str:
    """Return the prompt for an agent that plays the user in a generated task."""
    goals, identity = [Goal(**goal) for goal in data["goals"]], Identity(**data["identity"])
    lines = ["You are a customer, and talk to a service."]
    lines += [SAID[slot].format(fact) for slot, fact in identity.facts.items()]
    for number, batch in enumerate(data["batches"]):
        begins = "You want this:" if number == 0 else "Once that is done, you also want this:"
        wishes = [goals[index] for index in batch]
        lines.append(f"{begins} {' '.join(goal.says for goal in wishes)}")
        lines += [SAID[slot].format(goal.facts[slot]) for goal in wishes for slot in goal.withheld]
    lines.append(
        "Say one thing at a time and only what you know. Agree with a clear yes to what you want, and to nothing else. "
        f"Once all is done, or cannot be, end your message with {STOP}"
    )
    return "\n".join(lines)
