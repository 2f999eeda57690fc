"""Repeated questions: requests for information from already received messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, by_agent

QUESTION = re.compile(r"[^.!?\n]*\?")
WORD = re.compile(r"\w+")
FUNCTION_WORDS = frozenset(
    WORD.findall(
        """a about again also am an and any anyone are as at be been but by can could did do does done for from get give
        had has have he her here him his how i if in into is it its just know let like may maybe me might mine more must
        my need no not now of off ok okay on one or our out over please say says said she should shall so some tell than
        thank thanks that the their them then there these they this those to too up us use was we were what whatever
        when where whether which who whom whose why will with would yes you your"""
    )
)  # English words that occur in questions but name nothing


@lru_cache(256)  # a message has many readers
def content_words(text: str) -> frozenset[str]:
    """Return the content words of a text, without English function words.

    >>> sorted(content_words("Which port does the server use?"))
    ['port', 'server']
    """
    return frozenset(WORD.findall(text.casefold())) - FUNCTION_WORDS


def asks_again(text: str, told: Iterable[str], shown: str = "") -> bool:
    """Return True if a message covers the content words in one of the text's questions.

    >>> asks_again("Which port?", ["The port is 8080."]), asks_again("Which host?", ["The port is 8080."])
    (True, False)

    Args:
        told: messages of other agents that the author has read.
        shown: text shown by the environment; a question in it counts as quoted, not as asked.
    """
    asked = [question.strip() for question in QUESTION.findall(text)]
    named = [words for question in asked if question not in shown and (words := content_words(question))]
    return any(words <= said for said in map(content_words, told) for words in named)


def re_ask_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``asking again / receiving``, the share of receiving actions with a repeated question.

    An action is receiving if its agent has read a message of another agent. It asks again if all content words of one
    of its questions are in one such message. The check is lexical: a paraphrased question is not detected.
    """
    by_id: Mapping[str, Action] = {action.id: action for action in episode.actions}

    def asked(action: Action) -> tuple[float, float]:
        senders = [by_id[seen] for seen in action.sees if by_id[seen].agent != action.agent]
        if not senders:
            return 0.0, 0.0
        if "?" not in action.message:
            return 0.0, 1.0
        at = action.step
        shown = episode.transitions[at].observation.seen_by(action.agent) if at < len(episode.transitions) else ""
        return asks_again(action.message, (sender.message for sender in senders), shown), 1.0

    return by_agent(episode.actions, asked)
