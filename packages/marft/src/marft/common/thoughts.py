"""What of a turn's text is a thought: what a model writes for itself, before what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

BEGINS, ENDS = "<think>", "</think>"
CHANNELS = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")  # gpt-oss: each of several tokens
# how families of models mark their thoughts, and templates of ours and others' ask for them
FAMILIES = (
    (BEGINS, ENDS),  # Qwen, DeepSeek, GLM, SmolLM, Nemotron, Hunyuan, …
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1, OpenThinker
    ("◁think▷", "◁/think▷"),  # Kimi
    CHANNELS,
)
MARKS = frozenset(mark for family in FAMILIES if family != CHANNELS for mark in family)  # a model may have as one token
_MARKS = re.compile("|".join(re.escape(mark) for family in FAMILIES for mark in family), re.IGNORECASE)
_CLOSING = {begins.casefold(): ends.casefold() for begins, ends in FAMILIES}


def family_of(text: str) -> tuple[str, str]:
    """Return the marks of the thought that a text begins with; ``<think>`` where it begins with none."""
    opens = text.lstrip()
    return next((marks for marks in FAMILIES if opens.startswith(marks[0])), FAMILIES[0])


def bare_thought(text: str) -> str:
    """Return a thought without the marks around it.

    >>> bare_thought("<think>\\nHm.\\n</think>\\n"), bare_thought("[THINK]Hm.")
    ('Hm.', 'Hm.')
    """
    begins, ends = family_of(text)
    return text.strip().removeprefix(begins).removesuffix(ends).strip()


def may_begin(text: str) -> bool:
    """Return whether a text is the beginning of a mark that begins a thought, and not yet all of it.

    >>> may_begin("<thi"), may_begin(""), may_begin("It"), may_begin("<think>")
    (True, True, False, False)
    """
    opens = text.lstrip()
    return any(len(opens) < len(begins) and begins.startswith(opens) for begins, _ in FAMILIES)


def outside_thoughts(text: str) -> str:
    """Return what a text says outside of thoughts. A thought without an end goes on to the end of the text; one
    without a beginning was begun by the prompt.

    >>> outside_thoughts("<think>4?</think>It is 5."), outside_thoughts("4? </think>5"), outside_thoughts("<think>4")
    ('It is 5.', '5', '')
    """
    said, at, ends = list[str](), 0, ""
    for mark in _MARKS.finditer(text):
        name = mark[0].casefold()
        if ends:
            at, ends = (mark.end(), "") if name == ends else (at, ends)
        elif name in _CLOSING:
            said.append(text[at : mark.start()])
            ends = _CLOSING[name]
        else:
            said, at = [], mark.end()
    return "".join([*said, "" if ends else text[at:]])


def thought(text: str, begun: bool = False) -> int:
    """How many of a text's first characters are a thought, and the space after it.

    A thought that has no end is all there is: nothing was said yet.

    >>> text = "<think>\\nHm.\\n</think>\\n\\nIt is 3."
    >>> text[thought(text):]
    'It is 3.'
    >>> thought("It is 3."), thought("Hm", begun=True), thought("[THINK]Hm"), thought("Hm[/THINK]3", begun=True)
    (0, 2, 9, 10)

    Args:
        begun: whether the text goes on from a thought that the prompt begins.
    """
    begins, ends = family_of(text)
    if begun and ends not in text:
        ends = next((mark for _, mark in FAMILIES if mark in text), ends)
    end = text.rfind(ends)
    if end >= 0:
        said = text[end + len(ends) :]
        return len(text) - len(said.lstrip())
    return len(text) if begun or text.lstrip().startswith(begins) else 0


def first_thought(text: str, begun: bool) -> int:
    """How many of a text's first characters are a thought that it begins with, up to the first mark that ends one: what
    comes after that may hold such marks as it likes, in the arguments of a call.

    >>> first_thought("<think>Hm.</think>{}", False), first_thought("<think>Hm.", False), first_thought("{}", False)
    (18, 10, 0)
    """
    if not (begun or text.lstrip().startswith(BEGINS)):
        return 0
    end = text.find(ENDS)
    return len(text) if end < 0 else end + len(ENDS)


def thinking_after(text: str, begun: bool) -> bool:
    """Whether a thought goes on where a text ends."""
    begins, ends = text.rfind(BEGINS), text.rfind(ENDS)
    return begun if begins == ends else begins > ends


@dataclass(frozen=True, slots=True)
class Said:
    """A mark that counts where it is said, and not in a thought.

    >>> Said("</call>", begun=False).find("<think><call>1</call></think><call>2</call>")
    36

    Args:
        begun: whether texts go on from a thought that the prompt begins.
    """

    text: str
    begun: bool

    def find(self, text: str) -> int:
        """Where a text says it first; -1 where it does not."""
        at, thinking = 0, self.begun
        while True:
            if thinking:
                end = text.find(ENDS, at)
                if end < 0:
                    return -1
                at = end + len(ENDS)
            found, begins = text.find(self.text, at), text.find(BEGINS, at)
            if found < 0 or begins < 0 or found < begins:
                return found
            at, thinking = begins + len(BEGINS), True
