"""Repeated questions: requests for information from already received messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratios, sum_by_agent

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


def repeats_question(text: str, messages: Iterable[str], observation: str = "") -> bool:
    """Return True if a message covers the content words in one of the text's questions.

    >>> repeats_question("Which port?", ["The port is 8080."]), repeats_question("Which host?", ["The port is 8080."])
    (True, False)

    Args:
        messages: messages of other agents that the author has read.
        observation: text shown by the environment; a question in it counts as quoted, not as asked.
    """
    questions = [question.strip() for question in QUESTION.findall(text)]
    question_words = [
        words for question in questions if question not in observation and (words := content_words(question))
    ]
    return any(words <= message_words for message_words in map(content_words, messages) for words in question_words)


def re_ask_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``asking again / receiving``, the share of receiving actions with a repeated question.

    An action is receiving if its agent has read a message of another agent. It asks again if all content words of one
    of its questions are in one such message. The check is lexical: a paraphrased question is not detected.
    """
    by_id: Mapping[str, Action] = {action.id: action for action in episode.actions}

    def count_repeats(action: Action) -> tuple[float, float]:
        senders = [by_id[seen] for seen in action.sees if by_id[seen].agent != action.agent]
        if not senders:
            return 0.0, 0.0
        if "?" not in action.message:
            return 0.0, 1.0
        step = action.step
        observation = (
            episode.transitions[step].observation.for_role(action.agent) if step < len(episode.transitions) else ""
        )
        return repeats_question(action.message, (sender.message for sender in senders), observation), 1.0

    return sum_by_agent(episode.actions, count_repeats)
