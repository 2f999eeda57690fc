"""Splitting text into words, sentences and paragraphs. Pure functions."""

from __future__ import annotations

import re

WORD = re.compile(r"\w+")
TOKEN = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
LEADING = r"Mr|Mrs|Ms|Dr|Prof|St|vs|e\.g|i\.e|P\.S|P\.P\.S"  # abbreviations that never end one
OTHERS = r"Jr|Sr|etc|a\.m|p\.m|No|Inc|Ltd|Co|[A-Z]"  # abbreviations that may end a sentence
BEGINNERS = (
    "A|After|Also|An|And|As|At|Before|But|For|He|Her|Here|His|How|However|I|If|In|It|Its|My|No|Not|Now|On|Or|Our|She|So|"
    "That|The|Their|Then|There|These|They|This|Those|We|What|When|Where|While|Who|Why|Yes|Yet|You|Your"
)  # words that are rarely capitalized within a sentence
NO_END = re.compile(rf"\b(?:{LEADING})\.|\b(?:{OTHERS})\.(?!\s+(?:{BEGINNERS})[\s,'’])")
SENTENCE_END = re.compile(r"(?<![.!?…。！？।])[.!?…。！？।]++[\"'”’)\]*_]*+(?:\s+|$)|[。！？।]+")


def words_of(text: str) -> list[str]:
    r"""Return the words as IFEval counts them (``\w+``).

    >>> words_of("It's a well-known fact.")
    ['It', 's', 'a', 'well', 'known', 'fact']
    """
    return WORD.findall(text)


def capital_words_of(text: str) -> list[str]:
    """Return words in capitals; a hyphenated word counts as a single word.

    >>> capital_words_of("A TOP-TEN list of NASA's")
    ['A', 'TOP-TEN']
    """
    return [word for word in TOKEN.findall(text) if word.isupper()]


def sentences_of(text: str) -> list[str]:
    """Split text into sentences by punctuation.

    Titles, decimal points and line breaks do not end a sentence. Other abbreviations and single capitals end a sentence
    only before a word such as ``He`` or ``The``.

    IFEval uses NLTK's trained splitter, which requires a download. Both are heuristics. They may differ if a sentence
    ends in an abbreviation or begins with a lower-case letter.

    >>> sentences_of("Dr. Who paid 3.50. Really? Yes"), sentences_of("Did he go? No. He stayed.")
    (['Dr. Who paid 3.50.', 'Really?', 'Yes'], ['Did he go?', 'No.', 'He stayed.'])
    """
    kept = NO_END.sub(lambda match: match[0].replace(".", "\0"), text)
    found, at = [], 0
    for end in SENTENCE_END.finditer(kept):
        found.append(kept[at : end.end()])
        at = end.end()
    found.append(kept[at:])
    return [part.replace("\0", ".").strip() for part in found if WORD.search(part)]


def divided_paragraphs(text: str) -> list[str] | None:
    """Split paragraphs at ``***``; return None if an inner paragraph is empty."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not part.strip() for part in parts[1:-1]):
        return None
    return [part for part in parts if part.strip()]
