"""Whether agents ask for what they were told."""

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
)  # of English: they ask, and name nothing


@lru_cache(256)  # a message has many readers
def content_words(text: str) -> frozenset[str]:
    """The words of a text that name something.

    >>> sorted(content_words("Which port does the server use?"))
    ['port', 'server']
    """
    return frozenset(WORD.findall(text.casefold())) - FUNCTION_WORDS


def asks_again(text: str, told: Iterable[str], shown: str = "") -> bool:
    """Whether one of a text's questions names only what one message has said.

    >>> asks_again("Which port?", ["The port is 8080."]), asks_again("Which host?", ["The port is 8080."])
    (True, False)

    Args:
        told: messages of others that its author has read.
        shown: what the environment showed: a question that stands in there is quoted, and not asked.
    """
    asked = [question.strip() for question in QUESTION.findall(text)]
    named = [words for question in asked if question not in shown and (words := content_words(question))]
    return any(words <= said for said in map(content_words, told) for words in named)


def re_ask_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """``asking again / receiving``: of the actions that have read a message of another agent, those with a question all
    of whose words, but for English function words, are in one message that its author has read. It is lexical: a
    question in words of its own is not found."""
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
