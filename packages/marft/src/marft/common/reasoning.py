"""Reasoning in a turn's text: the part that a model writes before its message."""

from __future__ import annotations

import re
from dataclasses import dataclass

THINK_START, THINK_END = "<think>", "</think>"
# gpt-oss: each delimiter has several tokens
CHANNEL_DELIMITERS = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
GEMMA_DELIMITERS = ("<|channel>thought", "<channel|>")  # Gemma 4: a token and a word, and a token
# delimiters of reasoning by model family, used in our chat templates and in others
DELIMITER_PAIRS = (
    (THINK_START, THINK_END),  # Qwen, DeepSeek, GLM, SmolLM, Nemotron, Hunyuan, …
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1, OpenThinker
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    GEMMA_DELIMITERS,
    CHANNEL_DELIMITERS,
)
# delimiters that a model may have as a single token; Gemma's start of reasoning is a token and a word
DELIMITERS = frozenset(mark for family in DELIMITER_PAIRS if family != CHANNEL_DELIMITERS for mark in family) | {
    "<|channel>"
}
# header of a channel's message: its channel, and what follows the channel's name
_CHANNEL_HEADER = re.compile(
    r"\s*+(?:<\|start\|>assistant)?<\|channel\|>(?P<name>\w++)(?P<more>[^<]*+(?:<\|constrain\|>[^<]*+)?)<\|message\|>"
)
_CHANNEL_BREAK = re.compile(
    r"<\|end\|>(?:<\|start\|>assistant)?(?:<\|channel\|>\w++<\|message\|>)?|<\|channel\|>\w++<\|message\|>"
)
_DELIMITER_PATTERN = re.compile(
    "|".join(re.escape(mark) for family in DELIMITER_PAIRS for mark in family), re.IGNORECASE
)
# markers of tool calls in any family's format, and calls without a marker at the start of a text
_CALL_NAME = r"(?:tool|call|function|invoke)"
_CALL_MARKERS = (
    rf"(?P<call_end><[|｜]?/[^<>\s]{{0,20}}?{_CALL_NAME}|<\w{{0,20}}call\|>|<[^<>\s]{{0,20}}call[^<>\s]{{0,20}}end[|｜]>)"
    rf"|(?P<call><[^<>\s/]{{0,20}}?{_CALL_NAME}|\[TOOL_CALLS|\A\s*+(?:\[?\s*+\{{\s*+\"|\[\w++\())"
)
_CLOSING_BY_OPENING = {begins.casefold(): ends.casefold() for begins, ends in DELIMITER_PAIRS}


def find_delimiters(text: str) -> tuple[str, str]:
    """Return the reasoning delimiters at the start of a text, ``<think>`` by default."""
    start = text.lstrip()
    return next((marks for marks in DELIMITER_PAIRS if start.startswith(marks[0])), DELIMITER_PAIRS[0])


def strip_delimiters(text: str) -> str:
    """Return reasoning without its delimiters.

    >>> strip_delimiters("<think>\\nHm.\\n</think>\\n"), strip_delimiters("[THINK]Hm.")
    ('Hm.', 'Hm.')
    """
    begins, ends = find_delimiters(text)
    return _CHANNEL_BREAK.sub("\n", text.strip().removeprefix(begins).removesuffix(ends)).strip()


def split_reasoning(text: str) -> tuple[str, str]:
    """Return a turn's reasoning without its delimiters, and its message.

    >>> split_reasoning("<think>\\nHm.\\n</think>\\n\\nIt is 3.")
    ('Hm.', 'It is 3.')
    >>> split_reasoning("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 3.")
    ('Hm.', 'It is 3.')
    """
    size = measure_reasoning(text)
    return strip_delimiters(text[:size]) if size else "", text[size:]


def may_start_reasoning(text: str) -> bool:
    """Return True for an incomplete prefix of an opening reasoning delimiter.

    >>> may_start_reasoning("<thi"), may_start_reasoning(""), may_start_reasoning("It"), may_start_reasoning("<think>")
    (True, True, False, False)
    """
    start = text.lstrip()
    return any(len(start) < len(begins) and begins.startswith(start) for begins, _ in DELIMITER_PAIRS)


def strip_reasoning(text: str) -> str:
    """Return the parts outside reasoning.

    Reasoning without a closing delimiter extends to the end of the text. Reasoning without an opening delimiter was
    begun by the prompt. After other reasoning, such a delimiter is text.

    >>> strip_reasoning("<think>4?</think>It is 5."), strip_reasoning("4? </think>5"), strip_reasoning("<think>4")
    ('It is 5.', '5', '')
    """
    parts, at, ends = list[str](), 0, ""
    for mark in _DELIMITER_PATTERN.finditer(text):
        name = mark[0].casefold()
        if ends:
            at, ends = (mark.end(), "") if name == ends else (at, ends)
        elif name in _CLOSING_BY_OPENING:
            parts.append(text[at : mark.start()])
            ends = _CLOSING_BY_OPENING[name]
        elif not (parts or at):
            at = mark.end()
    return "".join([*parts, "" if ends else text[at:]])


def measure_reasoning(text: str, in_reasoning: bool | None = None) -> int:
    """Return the length, in characters, of reasoning at the start, including the whitespace after it.

    Reasoning ends at the first closing delimiter, or with the last block that follows. A later closing delimiter
    without an opening one is text. Unfinished reasoning covers the whole text.

    >>> text = "<think>\\nHm.\\n</think>\\n\\nIt is 3, not </think>."
    >>> text[measure_reasoning(text):]
    'It is 3, not </think>.'
    >>> measure_reasoning("It is 3."), measure_reasoning("[THINK]Hm")
    (0, 9)
    >>> measure_reasoning("Hm", in_reasoning=True), measure_reasoning("Hm[/THINK]3", in_reasoning=True)
    (2, 10)
    >>> measure_reasoning('<tool_call>{"name": "say", "arguments": {"text": "</think>"}}</tool_call>')
    0

    Args:
        in_reasoning: whether the text continues reasoning that the prompt began. None: unknown.
    """
    if text.lstrip().startswith(("<|channel|>", "<|start|>")):
        return _measure_channels(text)
    begins, ends = find_delimiters(text)
    if in_reasoning and ends not in text:
        ends = next((mark for _, mark in DELIMITER_PAIRS if mark in text), ends)
    inside = in_reasoning or text.lstrip().startswith(begins)
    closing = text.find(ends) if inside else 0
    if closing < 0:
        return len(text)
    end = closing + len(ends) if inside else 0
    if ends in text[end:]:
        end = _find_last_end(text, end, (begins, ends), quotes_calls=in_reasoning is None)
    return len(text) - len(text[end:].lstrip()) if end else 0


def _find_last_end(text: str, start: int, delimiters: tuple[str, str], quotes_calls: bool) -> int:
    """Return the end offset of the last reasoning after ``start``, or ``start``. Delimiters inside a call do not count.

    Args:
        start: offset outside reasoning. At 0, a closing delimiter without an opening one ends reasoning.
        quotes_calls: whether that reasoning may contain whole calls.
    """
    begins, ends = delimiters
    end, in_call, has_call = start, False, False
    for mark in re.compile(f"(?P<begins>{re.escape(begins)})|{re.escape(ends)}|{_CALL_MARKERS}").finditer(text, start):
        if mark.start() < end:  # inside reasoning
            continue
        if mark["call"] is not None or mark["call_end"]:
            in_call, has_call = not mark["call_end"], True
        elif mark["begins"] and not in_call:
            closing = text.find(ends, mark.end())
            if closing < 0:
                return end
            end = closing + len(ends)
        elif not (mark["begins"] or in_call or end) and (quotes_calls or not has_call):
            end = mark.end()
    return end


def _measure_channels(text: str) -> int:
    """Return the length of a gpt-oss turn up to its first message that is neither reasoning nor a call.

    The length includes that message's header. A call begins with its header, and an incomplete header may become one.
    """
    at = 0
    while (header := _CHANNEL_HEADER.match(text, at)) is not None:
        if "to=" in header["more"]:
            return at
        if header["name"] != "analysis":
            return header.end()
        end = text.find("<|end|>", header.end())
        if end < 0:
            return len(text)
        at = end + len("<|end|>")
    return at


def measure_first_reasoning(
    text: str, in_reasoning: bool, delimiters: tuple[str, str] = (THINK_START, THINK_END)
) -> int:
    """Return the length of reasoning at the start, up to the first closing delimiter.

    The text after it may contain more delimiters, for example in the arguments of a tool call.

    >>> [measure_first_reasoning(text, False) for text in ("<think>Hm.</think>{}", "<think>Hm.", "{}")]
    [18, 10, 0]

    Args:
        in_reasoning: the text continues reasoning that the prompt began.
        delimiters: the model's delimiters of reasoning.
    """
    begins, ends = delimiters
    if not (in_reasoning or text.lstrip().startswith(begins)):
        return 0
    end = text.find(ends)
    return len(text) if end < 0 else end + len(ends)


def ends_in_reasoning(text: str, in_reasoning: bool, delimiters: tuple[str, str] = (THINK_START, THINK_END)) -> bool:
    """Return True if a text ends inside reasoning."""
    begins, ends = map(text.rfind, delimiters)
    return in_reasoning if begins == ends else begins > ends


@dataclass(frozen=True, slots=True)
class StopString:
    """Stop string that counts only outside reasoning.

    >>> StopString("</call>", in_reasoning=False).find("<think><call>1</call></think><call>2</call>")
    36

    Args:
        text: the string.
        in_reasoning: texts continue reasoning that the prompt began.
        begins: start delimiter of reasoning.
        ends: end delimiter of reasoning.
    """

    text: str
    in_reasoning: bool
    begins: str = THINK_START
    ends: str = THINK_END

    def find(self, text: str) -> int:
        """Return the first position outside reasoning, -1 if absent."""
        at, inside = 0, self.in_reasoning
        while True:
            if inside:
                end = text.find(self.ends, at)
                if end < 0:
                    return -1
                at = end + len(self.ends)
            position, begins = text.find(self.text, at), text.find(self.begins, at)
            if position < 0 or begins < 0 or position < begins:
                return position
            at, inside = begins + len(self.begins), True
