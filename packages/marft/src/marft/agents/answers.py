"""Extraction of the answer from an agent's text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from marft.common.thoughts import outside_thoughts
from marft.common.types import Action

_BRACES = re.compile("[{}]")
_SIGNS = "+\\-\u2010-\u2015\u2212"
_NO_WORD_BEFORE, _NO_WORD_AFTER = r"(?<!\w)", r"(?!\w)"
_TIMES = "*×·÷"
_NO_SIGN = rf"(?<![\w.{_SIGNS}~\u2248/^√])(?<!\d[{_TIMES}:])(?<!minus )(?<!negative )(?<!\d [{_SIGNS}{_TIMES}/] )"
_NO_REST = (
    rf"(?!\w|[.,'\u2019]\d|\s?%|[{_SIGNS}{_TIMES}/^:]\d|\s[{_SIGNS}{_TIMES}/]\s\d|\s\d+/\d"
    r"|\s(?:hundred|thousand|million|billion|dozen)\b)"
)
_NO_NUMBER_BEFORE = rf"{_NO_SIGN}(?<!\d,)(?<!\d['\u2019])"
_NO_NUMBER_AFTER = rf"{_NO_REST}(?! \d{{3}}(?!\d))"
_LISTED = re.compile(
    rf"{_NO_SIGN}(?<!\d['\u2019])(?!(?<=\d,)\d{{3}}(?!\d))\d{{1,9}}(?![,'\u2019]\d{{3}}(?!\d))"
    + _NO_REST.replace(",", "", 1),
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{")
_OPENS, _CLOSES = "<answer>", "</answer>"
# "the answer is", "Final answer:", "### Answer", "la respuesta correcta es", "答案是"
_NOUN = (
    r"\b(?:answer|(?:correct|right|best|final)\s+(?:option|choice|letter)|respuesta|réponse|antwort|risposta|resposta|ответ)\b"
    r"|答案|答え|正解|정답"
)
_IS = r"(?:is(?!\w|n['’]t)|=|:|：|es\b|est\b|ist\b|lautet\b|è(?!\w)|é(?!\w)|是|为|為|は|은|는)"
_STATED = re.compile(
    rf"(?:{_NOUN})(?:\s+(?:to|for)\b[^.\n:=]{{1,80}}?)?(?:\s+(?:correct[ao]|corretta|finale?))?[*_]*\s*{_IS}\s*[:：]?"
    r"|^[#*_ \t]*(?:the\s+)?(?:final\s+|correct\s+)?answer[*_ \t]*$"
    r"|选择?\s*[:：]?(?=\s*[(（]?[A-Z](?![A-Za-z]))",
    re.IGNORECASE | re.MULTILINE,
)
# separators between answers given together: with several answers, no single one counts
_TOGETHER = re.compile(
    r"(?:[\s$.,;:/&*]|\\[()\[\],;:! ]"
    r"|\b(?:or|and|maybe|perhaps|possibly|alternatively|either|else|otherwise|oder|und|ou|et|o|y|e)\b|或者?|和|または)*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?:(?<=[^\W_]{2})|(?<=[\d)\]}*\"'”%$]))[.!?](?=\s)(?!\s+(?:[Oo]r|[Aa]nd|[Bb]ut)\b)|[。！？]")
_ASIDE = re.compile(r",\s+(?:but|not|although|though|because|since|as)\b|\s+because\b", re.IGNORECASE)
# phrases that negate an adjacent answer: "it is not 7", "7 is wrong"
_DENIED_BEFORE = re.compile(
    r"(?:(?:\b(?:not|never|neither|nor|cannot|isnt|nicht|kein|pas|rather\s+than|instead\s+of)|n['’]t)"
    r"(?:\s+(?:be|the|a|an|equal|necessarily|simply|choose|pick|select|take|play|go|going|move|moving|want|to|with|do|use))*|不是|并非|不等于|ではなく)[\s*_`$\\(\[{]*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s*_`$)]*(?:(?:is|was|are|were|seems|must\s+be)\s+(?:also\s+|clearly\s+)?(?:wrong|incorrect|false|not\s+(?:correct|right|it|the))"
    r"|(?:is|was)n['’]t\s+(?:correct|right|it|the))\b",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(?<![*\w])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![*\w])(?!\s*:)")
_COPULAS = ("です", "である", "입니다", "이다")
_WRAPPED = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf|mbox|rm|bf|operatorname|boxed|fbox)"
    r"\s*\{([^{}]*)\}"
)
_AROUND = (("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"), ("`", "`"), ('"', '"'), ("“", "”"), ("「", "」"),
           ("‘", "’"), ("'", "'"), ("«", "»"), ("『", "』"), ("【", "】"),
           ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))  # fmt: skip
_SPACING = re.compile(r"\\[,;:! ]|~")
_SWITCHED = re.compile(r"\{?\s*\\(?:bf|it|rm|sf|tt|bfseries|itshape|rmfamily)\b\s*([^{}\\]+?)\}?\s*")  # {\bf B}
_LINE_MARK = re.compile(r"^(?:#{1,6}|>)[ \t]+(?=\S)")  # a heading or block-quote mark
_ANSWER_KEYS = ("answer", "final_answer", "final answer", "finalanswer", "choice", "option", "correct_answer")
_JSON_BLOCK = re.compile(r"```(?:json)?[ \t]*\n\s*(\{.*?\})\s*\n?```", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
NEAR = 40  # characters before an answer in which a negation counts


def text_said(action: Action | None) -> str:
    """Return an action's text for the environment to grade, without reasoning.

    If the length limit cut the text within its answer, an empty ``<answer>`` replaces the answer, so the text
    states none. Without an action, the text is "".
    """
    if action is None or action.only_thought:
        return ""
    text = outside_thoughts(action.text).strip()
    cut = _cut_answer(text) if action.finish == "length" else -1
    return text if cut < 0 else f"{text[:cut]}{_OPENS}{_CLOSES}"


def _cut_answer(text: str) -> int:
    """Return the start index of an unfinished answer at a text's end, or -1 if the text ends outside an answer."""
    opened = text.rfind(_OPENS)
    if opened > text.rfind(_CLOSES):
        return opened
    start, end = _last_statement(text) if find_answer(text) is None else (-1, -1)
    rest = text[end:].strip(" \t*_\n")
    return -1 if "\n" in rest or _SENTENCE.search(f"{rest} ") else start


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed ``\boxed{…}`` with matched braces, or None.

    >>> last_boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    boxes, _ = _boxes(text)
    return text[slice(*boxes[-1])].strip() if boxes else None


def _boxes(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return the (start, end) spans inside closed boxes, sorted, and the start of the last unclosed box.

    The latter is -1 if every box is closed.
    """
    boxes = {box.end() for box in _BOX.finditer(text)}
    # open braces without a match yet; matching all braces takes one pass
    found, opened = list[tuple[int, int]](), list[int]()
    for brace in _BRACES.finditer(text) if boxes else ():
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and (start := opened.pop()) in boxes:
            found.append((start, brace.start()))
    return sorted(found), max(boxes.intersection(opened), default=-1)


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
    text = outside_thoughts(text)
    boxes, never = _boxes(text)
    tags = _tags(text)
    opens = text.rfind(_OPENS)  # generation often stops at the closing tag, so it may be missing
    before = max(never, tags[-1][1] if tags else -1, boxes[-1][1] if boxes else -1)
    if opens > before and (before < 0 or _CLOSES[:-1] not in text[opens:]):  # half a closing tag closes nothing
        return text[opens + len(_OPENS) :].strip()
    if not boxes and not tags and never < 0:
        return _answer_in_json(text)
    last = tags[-1] if tags and (not boxes or tags[-1][0] >= boxes[-1][0] or tags[-1][1] >= boxes[-1][1]) else None
    if never > (last or (boxes or [(-1, -1)])[-1])[0]:
        return ""
    inner = [(start, end) for start, end in boxes if last and last[0] <= start and end <= last[1]]
    return _together(text, inner or (tags if last else boxes))


def _answer_in_json(text: str) -> str | None:
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


def _tags(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) spans inside ``<answer>`` tags."""
    found, at = list[tuple[int, int]](), 0
    while (closes := text.find(_CLOSES, at)) >= 0:
        opens = text.rfind(_OPENS, at, closes)
        if opens >= 0:
            found.append((opens + len(_OPENS), closes))
        at = closes + len(_CLOSES)
    return found


def _together(text: str, places: Sequence[tuple[int, int]]) -> str:
    """Return the last content, joined to earlier contents separated from it only by commas or "or"."""
    given, (begins, _) = [text[slice(*places[-1])].strip()], places[-1]
    for start, end in reversed(places[:-1]):
        if end >= begins:  # this span encloses the next
            continue
        between = text[end + 1 : begins].removeprefix("/answer>")
        between = re.sub(r"(?:\\f?box(?:ed)?\s*\{?|<answer>)\s*$", "", between)
        if between.strip(" \t$") and not given_together(between):
            break
        given.append(text[start:end].strip())
        begins = start
    return ", ".join(dict.fromkeys(reversed(given)))


def given_together(between: str) -> bool:
    """Return true if the text between two answers joins them: commas or a word like "or".

    >>> given_together("$ or maybe $"), given_together(". No: it is ")
    (True, False)
    """
    return _TOGETHER.fullmatch(between) is not None and re.search(r"[^\W_]|[,;/&]", between) is not None


def statement_in(text: str) -> str | None:
    """Return the rest of the line after the last "the answer is" or a similar phrase.

    If the last line begins with ``####`` and comes later, return the text after ``####``. Without either, return
    None.

    >>> statement_in("Hm.\\n**Final answer:** 5 km."), statement_in("3 + 4 = 7\\n#### 7"), statement_in("5")
    ('5 km', '7', None)
    """
    rest = rest_stated(text)
    if rest is None:
        return None
    line = rest.partition("\n")[0]
    return _without_ending(_without_ending(line).rstrip("*_ \t"))


def _without_ending(line: str) -> str:
    """Return a line without its final period or exclamation mark and without a copula before it."""
    line = line.rstrip()
    line = (line[:-1] if line.endswith((".", "。", "!", "！")) else line).rstrip()
    copula = next(filter(line.endswith, _COPULAS), "")
    return line.removesuffix(copula)


def rest_stated(text: str) -> str | None:
    """Return the whole text after the last "the answer is", or after ``####`` on the last line; None without either."""
    start, end = _last_statement(text)
    if start < 0:
        return None
    return text[end:].strip("# \t") if text.startswith("####", start) else text[end:].lstrip(" \t*_\n")


def _last_statement(text: str) -> tuple[int, int]:
    """Return the last span with "the answer is", or with ``####`` on the last line; (-1, -1) without either."""
    last = max((match.span() for match in _STATED.finditer(text)), key=lambda span: span[1], default=(-1, -1))
    whole = text.rstrip()
    line = whole.rfind("\n") + 1
    return (line, line + 4) if whole.startswith("####", line) and last[1] < line else last


def stated_answer(text: str) -> str:
    r"""Return the part of a text that states its answer, outside reasoning.

    This is the last ``\boxed{…}`` or ``<answer>`` tag, else the rest of the line after the last "the answer is" or
    ``####``, else the whole text.

    >>> stated_answer("2 + 3 makes 5.\nThe answer is **5**."), stated_answer(" 5 "), stated_answer("<think>5")
    ('5', '5', '')
    """
    text = outside_thoughts(text)
    found = find_answer(text)
    if found is None:
        found = statement_in(text)
    return text.strip() if found is None else found


def states_answer(text: str) -> bool:
    r"""Return true if a text marks its answer: in a box or a tag, or after "the answer is".

    >>> states_answer(r"\boxed{5}"), states_answer("I agree."), states_answer("\\boxed{5")
    (True, False, False)
    """
    text = outside_thoughts(text)
    found = find_answer(text)
    return bool(found) if found is not None else statement_in(text) is not None


def bold_in(text: str) -> str | None:
    """Return the only bold text in the last line, or None if the line has no or several bold texts.

    A bold label that ends with a colon does not count, and a negated answer gives None.

    >>> bold_in("We add.\\nThe total is **$18** for both."), bold_in("**3** or **4**"), bold_in("**Total:** 18")
    ('$18', None, None)
    """
    *_, line = text.rstrip().rpartition("\n")
    found = [one for one in _BOLD.finditer(line) if not one[1].rstrip().endswith(":")]
    return found[0][1].strip() if len(found) == 1 and not denied(line, *found[0].span()) else None


def denied(text: str, start: int, end: int) -> bool:
    """Return true if the surrounding text negates the answer at ``text[start:end]``.

    >>> denied("It is not **7**.", 10, 15), denied("not 6 but 7", 10, 11), denied("7 is wrong", 0, 1)
    (True, False, True)
    """
    before = _DENIED_BEFORE.search(text, max(0, start - NEAR), start)
    return before is not None or _DENIED_AFTER.match(text, end) is not None


def without_aside(sentence: str) -> str:
    """Return a sentence up to its explanation or contrast ("because …", ", not …").

    >>> without_aside("5, because 2 + 3 = 5"), without_aside("5 because 6 is too large"), without_aside("1, 2")
    ('5', '5', '1, 2')
    """
    return _ASIDE.split(sentence, maxsplit=1)[0]


def wordings(text: str) -> list[str]:
    """Return the candidate answers in words from a text, without markup.

    Candidates are the stated answer to the end of its line and to the end of its sentence. If the text marks no
    answer, the candidates are its bold text, its last line and the whole text.

    >>> wordings("The answer is Paris. It is old."), wordings("Hm.\\n\\n**Paris**")
    (['Paris. It is old', 'Paris'], ['Paris', 'Hm. **Paris**'])
    """
    text = outside_thoughts(text)
    found = find_answer(text)
    if found is not None:
        return [undecorated(found)]
    line = statement_in(text)
    if line is not None:
        sentence = _SENTENCE.split(line, maxsplit=1)[0]
        given = [line, sentence, without_aside(sentence)]
    else:
        given = [bold_in(text) or "", text.rstrip().rpartition("\n")[2], text]
    return list(filter(None, dict.fromkeys(map(undecorated, given))))


def undecorated(text: str) -> str:
    r"""Return a text without surrounding LaTeX and Markdown markup and without a final period.

    >>> undecorated(r"\text{New  York}"), undecorated("**(B)**."), undecorated(r"$5\text{ km}$")
    ('New York', '(B)', '5 km')
    """
    fenced = _FENCED.fullmatch(text)
    text = _SPACING.sub(" ", (fenced[1] if fenced and "```" not in fenced[1] else text).strip())
    for _ in range(9):
        before, text = text, _LINE_MARK.sub("", _WRAPPED.sub(r"\1", text).strip(), count=1)
        switched = _SWITCHED.fullmatch(text)
        text = switched[1] if switched else text
        for opens, closes in _AROUND:
            inside = text[len(opens) : -len(closes)]
            if text.startswith(opens) and text.endswith(closes) and inside.strip() and opens not in inside:
                text = inside.strip()
        text = re.sub(r"(?<=[^.])[.。]$", "", text)
        if text == before:
            break
    text = re.sub(r"\\([$%#&_{}])", r"\1", text)
    return " ".join(text.split())


def named(words: str) -> re.Pattern[str]:
    """Return a pattern for words standing alone in a text.

    Digits at the ends of ``words`` do not match inside another number: a negative number, a decimal, a fraction, a
    percentage, a range, a time or a number with thousands separators.

    >>> [bool(named("1").search(text)) for text in ("I choose 1.", "(1)", "-1", "1.5", "0.1", "1/2", "1,000")]
    [True, True, False, False, False, False, False]
    """
    before = _NO_NUMBER_BEFORE if words[:1].isdigit() else _NO_WORD_BEFORE
    after = _NO_NUMBER_AFTER if words[-1:].isdigit() else _NO_WORD_AFTER
    return re.compile(f"{before}{re.escape(words)}{after}", re.IGNORECASE)


def whole_numbers(text: str) -> list[int]:
    """Return the integers in a text, in order.

    Other numbers are skipped, not read in part.

    >>> whole_numbers("2, then 1, and 7; not -3, 0.5 or 1/2"), whole_numbers("1,2")
    ([2, 1, 7], [1, 2])
    """
    return [int(number) for number in _LISTED.findall(text)]


def answer_in(solution: str) -> str:
    r"""Return the answer in a reference solution.

    This is the last ``\boxed{}``, else the text after ``####`` (GSM8K), else the whole text.

    >>> answer_in("3 + 4 = 7\n#### 7")
    '7'
    """
    boxed = last_boxed(solution)
    return boxed if boxed is not None else solution.rpartition("####")[2].strip()
