"""Splitting text into words, sentences and paragraphs. Pure functions."""

from __future__ import annotations

import re

WORD = re.compile(r"\w+")
TOKEN = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
LEADING_ABBREVIATIONS = r"Mr|Mrs|Ms|Dr|Prof|St|vs|e\.g|i\.e|P\.S|P\.P\.S"  # abbreviations that never end one
OTHER_ABBREVIATIONS = r"Jr|Sr|etc|a\.m|p\.m|No|Inc|Ltd|Co|[A-Z]"  # abbreviations that may end a sentence
SENTENCE_STARTERS = (
    "A|After|Also|An|And|As|At|Before|But|For|He|Her|Here|His|How|However|I|If|In|It|Its|My|No|Not|Now|On|Or|Our|She|So|"
    "That|The|Their|Then|There|These|They|This|Those|We|What|When|Where|While|Who|Why|Yes|Yet|You|Your"
)  # words that are rarely capitalized within a sentence
NO_SENTENCE_END = re.compile(
    rf"\b(?:{LEADING_ABBREVIATIONS})\.|\b(?:{OTHER_ABBREVIATIONS})\.(?!\s+(?:{SENTENCE_STARTERS})[\s,'’])"
)
SENTENCE_END = re.compile(r"(?<![.!?…。！？।])[.!?…。！？।]++[\"'”’)\]*_]*+(?:\s+|$)|[。！？।]+")


def split_words(text: str) -> list[str]:
    r"""Return the words as IFEval counts them (``\w+``).

    >>> split_words("It's a well-known fact.")
    ['It', 's', 'a', 'well', 'known', 'fact']
    """
    return WORD.findall(text)


def find_capital_words(text: str) -> list[str]:
    """Return words in capitals; a hyphenated word counts as a single word.

    >>> find_capital_words("A TOP-TEN list of NASA's")
    ['A', 'TOP-TEN']
    """
    return [word for word in TOKEN.findall(text) if word.isupper()]


def split_sentences(text: str) -> list[str]:
    """Split text into sentences by punctuation.

    Titles, decimal points and line breaks do not end a sentence. Other abbreviations and single capitals end a sentence
    only before a word such as ``He`` or ``The``.

    IFEval uses NLTK's trained splitter, which requires a download. Both are heuristics. They may differ if a sentence
    ends in an abbreviation or begins with a lower-case letter.

    >>> split_sentences("Dr. Who paid 3.50. Really? Yes"), split_sentences("Did he go? No. He stayed.")
    (['Dr. Who paid 3.50.', 'Really?', 'Yes'], ['Did he go?', 'No.', 'He stayed.'])
    """
    masked = NO_SENTENCE_END.sub(lambda match: match[0].replace(".", "\0"), text)
    sentences, at = [], 0
    for end in SENTENCE_END.finditer(masked):
        sentences.append(masked[at : end.end()])
        at = end.end()
    sentences.append(masked[at:])
    return [part.replace("\0", ".").strip() for part in sentences if WORD.search(part)]


def split_paragraphs(text: str) -> list[str] | None:
    """Split paragraphs at ``***``; return None if an inner paragraph is empty."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not part.strip() for part in parts[1:-1]):
        return None
    return [part for part in parts if part.strip()]
