"""Extraction of the answer from an agent's text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from marft.common.reasoning import strip_reasoning
from marft.common.types import Action

_BRACES = re.compile("[{}]")
_MINUS_SIGNS = "+\\-\u2010-\u2015\u2212"
_NO_WORD_BEFORE, _NO_WORD_AFTER = r"(?<!\w)", r"(?!\w)"
_TIMES = "*×·÷"
_NO_SIGN = (
    rf"(?<![\w.{_MINUS_SIGNS}~\u2248/^√])(?<!\d[{_TIMES}:])(?<!minus )(?<!negative )(?<!\d [{_MINUS_SIGNS}{_TIMES}/] )"
)
_NO_NUMBER_SUFFIX = (
    rf"(?!\w|[.,'\u2019]\d|\s?%|[{_MINUS_SIGNS}{_TIMES}/^:]\d|\s[{_MINUS_SIGNS}{_TIMES}/]\s\d|\s\d+/\d"
    r"|\s(?:hundred|thousand|million|billion|dozen)\b)"
)
_NO_NUMBER_BEFORE = rf"{_NO_SIGN}(?<!\d,)(?<!\d['\u2019])"
_NO_NUMBER_AFTER = rf"{_NO_NUMBER_SUFFIX}(?! \d{{3}}(?!\d))"
_INTEGER = re.compile(
    rf"{_NO_SIGN}(?<!\d['\u2019])(?!(?<=\d,)\d{{3}}(?!\d))\d{{1,9}}(?![,'\u2019]\d{{3}}(?!\d))"
    + _NO_NUMBER_SUFFIX.replace(",", "", 1),
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{")
_OPEN_TAG, _CLOSE_TAG = "<answer>", "</answer>"
# "the answer is", "Final answer:", "### Answer", "la respuesta correcta es", "答案是"
_ANSWER_WORD = (
    r"\b(?:answer|(?:correct|right|best|final)\s+(?:option|choice|letter)|respuesta|réponse|antwort|risposta|resposta|ответ)\b"
    r"|答案|答え|正解|정답"
)
_EQUALS_WORD = r"(?:is(?!\w|n['’]t)|=|:|：|es\b|est\b|ist\b|lautet\b|è(?!\w)|é(?!\w)|是|为|為|は|은|는)"
_ANSWER_STATEMENT = re.compile(
    rf"(?:{_ANSWER_WORD})(?:\s+(?:to|for)\b[^.\n:=]{{1,80}}?)?(?:\s+(?:correct[ao]|corretta|finale?))?[*_]*\s*{_EQUALS_WORD}\s*[:：]?"
    r"|^[#*_ \t]*(?:the\s+)?(?:final\s+|correct\s+)?answer[*_ \t]*$"
    r"|选择?\s*[:：]?(?=\s*[(（]?[A-Z](?![A-Za-z]))",
    re.IGNORECASE | re.MULTILINE,
)
# separators between answers given together: with several answers, no single one counts
_SEPARATOR = re.compile(
    r"(?:[\s$.,;:/&*]|\\[()\[\],;:! ]"
    r"|\b(?:or|and|maybe|perhaps|possibly|alternatively|either|else|otherwise|oder|und|ou|et|o|y|e)\b|或者?|和|または)*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?:(?<=[^\W_]{2})|(?<=[\d)\]}*\"'”%$]))[.!?](?=\s)(?!\s+(?:[Oo]r|[Aa]nd|[Bb]ut)\b)|[。！？]")
_EXPLANATION = re.compile(r",\s+(?:but|not|although|though|because|since|as)\b|\s+because\b", re.IGNORECASE)
# phrases that negate an adjacent answer: "it is not 7", "7 is wrong"
_NEGATED_BEFORE = re.compile(
    r"(?:(?:\b(?:not|never|neither|nor|cannot|isnt|nicht|kein|pas|rather\s+than|instead\s+of)|n['’]t)"
    r"(?:\s+(?:be|the|a|an|equal|necessarily|simply|choose|pick|select|take|play|go|going|move|moving|want|to|with|do|use))*|不是|并非|不等于|ではなく)[\s*_`$\\(\[{]*$",
    re.IGNORECASE,
)
_NEGATED_AFTER = re.compile(
    r"[\s*_`$)]*(?:(?:is|was|are|were|seems|must\s+be)\s+(?:also\s+|clearly\s+)?(?:wrong|incorrect|false|not\s+(?:correct|right|it|the))"
    r"|(?:is|was)n['’]t\s+(?:correct|right|it|the))\b",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(?<![*\w])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![*\w])(?!\s*:)")
_FINAL_WORDS = ("です", "である", "입니다", "이다")
_LATEX_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf|mbox|rm|bf|operatorname|boxed|fbox)"
    r"\s*\{([^{}]*)\}"
)
_DELIMITERS = (("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"), ("`", "`"), ('"', '"'), ("“", "”"), ("「", "」"),
           ("‘", "’"), ("'", "'"), ("«", "»"), ("『", "』"), ("【", "】"),
           ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))  # fmt: skip
_SPACING = re.compile(r"\\[,;:! ]|~")
_LATEX_SWITCH = re.compile(r"\{?\s*\\(?:bf|it|rm|sf|tt|bfseries|itshape|rmfamily)\b\s*([^{}\\]+?)\}?\s*")  # {\bf B}
_LINE_MARK = re.compile(r"^(?:#{1,6}|>)[ \t]+(?=\S)")  # a heading or block-quote mark
_ANSWER_KEYS = ("answer", "final_answer", "final answer", "finalanswer", "choice", "option", "correct_answer")
_JSON_BLOCK = re.compile(r"```(?:json)?[ \t]*\n\s*(\{.*?\})\s*\n?```", re.DOTALL | re.IGNORECASE)
_CODE_BLOCK = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
NEGATION_WINDOW = 40  # characters before an answer in which a negation counts


def graded_text(action: Action | None) -> str:
    """Return an action's text for the environment to grade, without reasoning.

    If the length limit cut the text within its answer, an empty ``<answer>`` replaces the answer, so the text
    states none. Without an action, the text is "".
    """
    if action is None or action.only_thought:
        return ""
    text = strip_reasoning(action.text).strip()
    cut = _find_cut_answer(text) if action.finish == "length" else -1
    return text if cut < 0 else f"{text[:cut]}{_OPEN_TAG}{_CLOSE_TAG}"


def _find_cut_answer(text: str) -> int:
    """Return the start index of an unfinished answer at a text's end, or -1 if the text ends outside an answer."""
    opened = text.rfind(_OPEN_TAG)
    if opened > text.rfind(_CLOSE_TAG):
        return opened
    start, end = _find_last_statement(text) if find_answer(text) is None else (-1, -1)
    remainder = text[end:].strip(" \t*_\n")
    return -1 if "\n" in remainder or _SENTENCE.search(f"{remainder} ") else start


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed ``\boxed{…}`` with matched braces, or None.

    >>> last_boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    boxes, _ = _find_boxes(text)
    return text[slice(*boxes[-1])].strip() if boxes else None


def _find_boxes(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return the (start, end) spans inside closed boxes, sorted, and the start of the last unclosed box.

    The latter is -1 if every box is closed.
    """
    boxes = {box.end() for box in _BOX.finditer(text)}
    # open braces without a match yet; matching all braces takes one pass
    spans, opened = list[tuple[int, int]](), list[int]()
    for brace in _BRACES.finditer(text) if boxes else ():
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and (start := opened.pop()) in boxes:
            spans.append((start, brace.start()))
    return sorted(spans), max(boxes.intersection(opened), default=-1)


def find_answer(text: str) -> str | None:
    r"""Return the last ``\boxed{…}`` or ``<answer>…</answer>`` outside reasoning, whichever begins later.

    Without either, return the answer field of a JSON object, if the object is the whole text or the text's last
    code block has one. Adjacent answers that belong together are joined with commas. A truncated answer gives "".
    None means no marked answer.

    >>> find_answer(r"First \boxed{3}, but no: <answer> 7 </answer>"), find_answer(r"<answer>\boxed{7}</answer>")
    ('7', '7')
    >>> find_answer(r"\boxed{3} or \boxed{4}"), find_answer(r"It is \boxed{4"), find_answer(r"<think>\boxed{4}")
    ('3, 4', '', None)
    >>> find_answer('{"reason": "…", "answer": "B"}')
    'B'
    """
    text = strip_reasoning(text)
    boxes, never = _find_boxes(text)
    tags = _find_tags(text)
    opens = text.rfind(_OPEN_TAG)  # generation often stops at the closing tag, so it may be missing
    before = max(never, tags[-1][1] if tags else -1, boxes[-1][1] if boxes else -1)
    if opens > before and (before < 0 or _CLOSE_TAG[:-1] not in text[opens:]):  # half a closing tag closes nothing
        return text[opens + len(_OPEN_TAG) :].strip()
    if not boxes and not tags and never < 0:
        return _parse_json_answer(text)
    last = tags[-1] if tags and (not boxes or tags[-1][0] >= boxes[-1][0] or tags[-1][1] >= boxes[-1][1]) else None
    if never > (last or (boxes or [(-1, -1)])[-1])[0]:
        return ""
    inner = [(start, end) for start, end in boxes if last and last[0] <= start and end <= last[1]]
    return _join_answers(text, inner or (tags if last else boxes))


def _parse_json_answer(text: str) -> str | None:
    """Return the answer named by a JSON object, if the object is the whole text or its last code block.

    Return None without such an object, or if it names several answers.
    """
    block = next(reversed(_JSON_BLOCK.findall(text)), "")
    written = text.strip() if text.lstrip().startswith("{") else block
    try:
        table = json.loads(written) if written else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(table, Mapping):
        return None
    named = [value for key, value in table.items() if str(key).casefold() in _ANSWER_KEYS]
    if len(named) != 1 or isinstance(named[0], Mapping | None):
        return None
    values = named[0] if isinstance(named[0], list) else [named[0]]
    return ", ".join(value if isinstance(value, str) else json.dumps(value) for value in values)


def _find_tags(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) spans inside ``<answer>`` tags."""
    spans, at = list[tuple[int, int]](), 0
    while (closes := text.find(_CLOSE_TAG, at)) >= 0:
        opens = text.rfind(_OPEN_TAG, at, closes)
        if opens >= 0:
            spans.append((opens + len(_OPEN_TAG), closes))
        at = closes + len(_CLOSE_TAG)
    return spans


def _join_answers(text: str, places: Sequence[tuple[int, int]]) -> str:
    """Return the last content, joined to earlier contents separated from it only by commas or "or"."""
    contents, (begins, _) = [text[slice(*places[-1])].strip()], places[-1]
    for start, end in reversed(places[:-1]):
        if end >= begins:  # this span encloses the next
            continue
        between = text[end + 1 : begins].removeprefix("/answer>")
        between = re.sub(r"(?:\\f?box(?:ed)?\s*\{?|<answer>)\s*$", "", between)
        if between.strip(" \t$") and not is_separator(between):
            break
        contents.append(text[start:end].strip())
        begins = start
    return ", ".join(dict.fromkeys(reversed(contents)))


def is_separator(between: str) -> bool:
    """Return true if the text between two answers joins them: commas or a word like "or".

    >>> is_separator("$ or maybe $"), is_separator(". No: it is ")
    (True, False)
    """
    return _SEPARATOR.fullmatch(between) is not None and re.search(r"[^\W_]|[,;/&]", between) is not None


def find_statement(text: str) -> str | None:
    """Return the rest of the line after the last "the answer is" or a similar phrase.

    If the last line begins with ``####`` and comes later, return the text after ``####``. Without either, return
    None.

    >>> find_statement("Hm.\\n**Final answer:** 5 km."), find_statement("3 + 4 = 7\\n#### 7"), find_statement("5")
    ('5 km', '7', None)
    """
    remainder = text_after_statement(text)
    if remainder is None:
        return None
    line = remainder.partition("\n")[0]
    return _strip_ending(_strip_ending(line).rstrip("*_ \t"))


def _strip_ending(line: str) -> str:
    """Return a line without its final period or exclamation mark and without a copula before it."""
    line = line.rstrip()
    line = (line[:-1] if line.endswith((".", "。", "!", "！")) else line).rstrip()
    final_word = next(filter(line.endswith, _FINAL_WORDS), "")
    return line.removesuffix(final_word)


def text_after_statement(text: str) -> str | None:
    """Return the whole text after the last "the answer is", or after ``####`` on the last line; None without either."""
    start, end = _find_last_statement(text)
    if start < 0:
        return None
    return text[end:].strip("# \t") if text.startswith("####", start) else text[end:].lstrip(" \t*_\n")


def _find_last_statement(text: str) -> tuple[int, int]:
    """Return the last span with "the answer is", or with ``####`` on the last line; (-1, -1) without either."""
    last = max((match.span() for match in _ANSWER_STATEMENT.finditer(text)), key=lambda span: span[1], default=(-1, -1))
    stripped = text.rstrip()
    line = stripped.rfind("\n") + 1
    return (line, line + 4) if stripped.startswith("####", line) and last[1] < line else last


def extract_answer(text: str) -> str:
    r"""Return the part of a text that states its answer, outside reasoning.

    This is the last ``\boxed{…}`` or ``<answer>`` tag, else the rest of the line after the last "the answer is" or
    ``####``, else the whole text.

    >>> extract_answer("2 + 3 makes 5.\nThe answer is **5**."), extract_answer(" 5 "), extract_answer("<think>5")
    ('5', '5', '')
    """
    text = strip_reasoning(text)
    answer = find_answer(text)
    if answer is None:
        answer = find_statement(text)
    return text.strip() if answer is None else answer


def has_answer(text: str) -> bool:
    r"""Return true if a text marks its answer: in a box or a tag, or after "the answer is".

    >>> has_answer(r"\boxed{5}"), has_answer("I agree."), has_answer("\\boxed{5")
    (True, False, False)
    """
    text = strip_reasoning(text)
    answer = find_answer(text)
    return bool(answer) if answer is not None else find_statement(text) is not None


def find_bold(text: str) -> str | None:
    """Return the only bold text in the last line, or None if the line has no or several bold texts.

    A bold label that ends with a colon does not count, and a negated answer gives None.

    >>> find_bold("We add.\\nThe total is **$18** for both."), find_bold("**3** or **4**"), find_bold("**Total:** 18")
    ('$18', None, None)
    """
    *_, line = text.rstrip().rpartition("\n")
    matches = [match for match in _BOLD.finditer(line) if not match[1].rstrip().endswith(":")]
    return matches[0][1].strip() if len(matches) == 1 and not is_negated(line, *matches[0].span()) else None


def is_negated(text: str, start: int, end: int) -> bool:
    """Return true if the surrounding text negates the answer at ``text[start:end]``.

    >>> is_negated("It is not **7**.", 10, 15), is_negated("not 6 but 7", 10, 11), is_negated("7 is wrong", 0, 1)
    (True, False, True)
    """
    before = _NEGATED_BEFORE.search(text, max(0, start - NEGATION_WINDOW), start)
    return before is not None or _NEGATED_AFTER.match(text, end) is not None


def strip_explanation(sentence: str) -> str:
    """Return a sentence up to its explanation or contrast ("because …", ", not …").

    >>> [strip_explanation(text) for text in ("5, because 2 + 3 = 5", "5 because 6 is too large", "1, 2")]
    ['5', '5', '1, 2']
    """
    return _EXPLANATION.split(sentence, maxsplit=1)[0]


def answer_candidates(text: str) -> list[str]:
    """Return the candidate answers in words from a text, without markup.

    Candidates are the stated answer to the end of its line and to the end of its sentence. If the text marks no
    answer, the candidates are its bold text, its last line and the whole text.

    >>> answer_candidates("The answer is Paris. It is old."), answer_candidates("Hm.\\n\\n**Paris**")
    (['Paris. It is old', 'Paris'], ['Paris', 'Hm. **Paris**'])
    """
    text = strip_reasoning(text)
    answer = find_answer(text)
    if answer is not None:
        return [strip_markup(answer)]
    line = find_statement(text)
    if line is not None:
        sentence = _SENTENCE.split(line, maxsplit=1)[0]
        candidates = [line, sentence, strip_explanation(sentence)]
    else:
        candidates = [find_bold(text) or "", text.rstrip().rpartition("\n")[2], text]
    return list(filter(None, dict.fromkeys(map(strip_markup, candidates))))


def strip_markup(text: str) -> str:
    r"""Return a text without surrounding LaTeX and Markdown markup and without a final period.

    >>> strip_markup(r"\text{New  York}"), strip_markup("**(B)**."), strip_markup(r"$5\text{ km}$")
    ('New York', '(B)', '5 km')
    """
    code_block = _CODE_BLOCK.fullmatch(text)
    text = _SPACING.sub(" ", (code_block[1] if code_block and "```" not in code_block[1] else text).strip())
    for _ in range(9):
        before, text = text, _LINE_MARK.sub("", _LATEX_COMMAND.sub(r"\1", text).strip(), count=1)
        switched = _LATEX_SWITCH.fullmatch(text)
        text = switched[1] if switched else text
        for opens, closes in _DELIMITERS:
            inside = text[len(opens) : -len(closes)]
            if text.startswith(opens) and text.endswith(closes) and inside.strip() and opens not in inside:
                text = inside.strip()
        text = re.sub(r"(?<=[^.])[.。]$", "", text)
        if text == before:
            break
    text = re.sub(r"\\([$%#&_{}])", r"\1", text)
    return " ".join(text.split())


def match_words(words: str) -> re.Pattern[str]:
    """Return a pattern for words standing alone in a text.

    Digits at the ends of ``words`` do not match inside another number: a negative number, a decimal, a fraction, a
    percentage, a range, a time or a number with thousands separators.

    >>> [bool(match_words("1").search(text)) for text in ("I choose 1.", "(1)", "-1", "1.5", "0.1", "1/2", "1,000")]
    [True, True, False, False, False, False, False]
    """
    before = _NO_NUMBER_BEFORE if words[:1].isdigit() else _NO_WORD_BEFORE
    after = _NO_NUMBER_AFTER if words[-1:].isdigit() else _NO_WORD_AFTER
    return re.compile(f"{before}{re.escape(words)}{after}", re.IGNORECASE)


def find_integers(text: str) -> list[int]:
    """Return the integers in a text, in order.

    Other numbers are skipped, not read in part.

    >>> find_integers("2, then 1, and 7; not -3, 0.5 or 1/2"), find_integers("1,2")
    ([2, 1, 7], [1, 2])
    """
    return [int(number) for number in _INTEGER.findall(text)]


def reference_answer(solution: str) -> str:
    r"""Return the answer in a reference solution.

    This is the last ``\boxed{}``, else the text after ``####`` (GSM8K), else the whole text.

    >>> reference_answer("3 + 4 = 7\n#### 7")
    '7'
    """
    boxed = last_boxed(solution)
    return boxed if boxed is not None else solution.rpartition("####")[2].strip()
