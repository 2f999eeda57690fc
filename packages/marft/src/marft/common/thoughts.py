"""Reasoning in a turn's text: the part that a model writes before its message."""

from __future__ import annotations

import re
from dataclasses import dataclass

BEGINS, ENDS = "<think>", "</think>"
# gpt-oss: each delimiter has several tokens
CHANNELS = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
# delimiters of reasoning by model family, used in our chat templates and in others
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
# delimiters that a model may have as a single token
MARKS = frozenset(mark for family in FAMILIES if family != CHANNELS for mark in family)
_MARKS = re.compile("|".join(re.escape(mark) for family in FAMILIES for mark in family), re.IGNORECASE)
_CLOSING = {begins.casefold(): ends.casefold() for begins, ends in FAMILIES}


def family_of(text: str) -> tuple[str, str]:
    """Return the reasoning delimiters at the start of a text, ``<think>`` by default."""
    opens = text.lstrip()
    return next((marks for marks in FAMILIES if opens.startswith(marks[0])), FAMILIES[0])


def bare_thought(text: str) -> str:
    """Return reasoning without its delimiters.

    >>> bare_thought("<think>\\nHm.\\n</think>\\n"), bare_thought("[THINK]Hm.")
    ('Hm.', 'Hm.')
    """
    begins, ends = family_of(text)
    return text.strip().removeprefix(begins).removesuffix(ends).strip()


def may_begin(text: str) -> bool:
    """Return True for an incomplete prefix of an opening reasoning delimiter.

    >>> may_begin("<thi"), may_begin(""), may_begin("It"), may_begin("<think>")
    (True, True, False, False)
    """
    opens = text.lstrip()
    return any(len(opens) < len(begins) and begins.startswith(opens) for begins, _ in FAMILIES)


def outside_thoughts(text: str) -> str:
    """Return the parts outside reasoning.

    Reasoning without a closing delimiter extends to the end of the text. Reasoning without an opening delimiter was
    begun by the prompt.

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
    """Return the length, in characters, of reasoning at the start, including the whitespace after it.

    Unfinished reasoning covers the whole text.

    >>> text = "<think>\\nHm.\\n</think>\\n\\nIt is 3."
    >>> text[thought(text):]
    'It is 3.'
    >>> thought("It is 3."), thought("Hm", begun=True), thought("[THINK]Hm"), thought("Hm[/THINK]3", begun=True)
    (0, 2, 9, 10)

    Args:
        begun: the text continues reasoning that the prompt began.
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
    """Return the length of reasoning at the start, up to the first closing delimiter.

    The text after it may contain more delimiters, for example in the arguments of a tool call.

    >>> first_thought("<think>Hm.</think>{}", False), first_thought("<think>Hm.", False), first_thought("{}", False)
    (18, 10, 0)

    Args:
        begun: the text continues reasoning that the prompt began.
    """
    if not (begun or text.lstrip().startswith(BEGINS)):
        return 0
    end = text.find(ENDS)
    return len(text) if end < 0 else end + len(ENDS)


def thinking_after(text: str, begun: bool) -> bool:
    """Return True if a text ends inside reasoning."""
    begins, ends = text.rfind(BEGINS), text.rfind(ENDS)
    return begun if begins == ends else begins > ends


@dataclass(frozen=True, slots=True)
class Said:
    """Stop string that counts only outside reasoning.

    >>> Said("</call>", begun=False).find("<think><call>1</call></think><call>2</call>")
    36

    Args:
        text: the string.
        begun: texts continue reasoning that the prompt began.
    """

    text: str
    begun: bool

    def find(self, text: str) -> int:
        """Return the first position outside reasoning, -1 if absent."""
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
