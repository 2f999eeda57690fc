"""Which messages a chat template takes, and a chat in such messages alone.

Not every model was taught system messages, and some take messages of user and assistant by turns alone. Nothing is left
out for it: what no message of its own can say is said in the one beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from marft.game.rendering import ChatMessage

CANNOT_RENDER = (TemplateError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
BETWEEN = "\n\n"  # texts that are said in one message
ONE, OTHER = "probe-of-one-text", "probe-of-another"


@dataclass(frozen=True, slots=True)
class Roles:
    """What a chat template takes.

    Args:
        system: it shows a system message, once.
        repeated: it shows two messages of a user, one after the other.
    """

    system: bool = True
    repeated: bool = True


_known: WeakKeyDictionary[PreTrainedTokenizerBase, dict[str, Roles]] = WeakKeyDictionary()


def roles_of(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> Roles:
    """What a tokenizer's chat template takes: found by rendering probes, once."""
    known, key = _known.setdefault(tokenizer, {}), repr((tokenizer.chat_template, sorted(options.items())))
    if key not in known:

        def shows(first: str) -> bool:
            chat = [{"role": first, "content": ONE}, {"role": "user", "content": OTHER}]
            try:
                text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options))
            except CANNOT_RENDER:
                return False
            return text.count(ONE) == text.count(OTHER) == 1 and text.index(ONE) < text.index(OTHER)

        known[key] = Roles(shows("system"), shows("user"))
    return known[key]


def taken(messages: Sequence[ChatMessage], roles: Roles) -> list[dict[str, Any]]:
    """A chat as a template takes it: where it has no system message, that begins the user's message which follows;
    where turns must alternate, messages of one role that follow on each other become one.

    >>> taken([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}], Roles(system=False))
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi.'}]
    """
    chat, before = list[dict[str, Any]](), ""
    for message in map(dict, messages):
        if message["role"] == "system" and not roles.system:
            before = _joined(before, message["content"])
            continue
        if before and message["role"] == "user":
            message, before = {**message, "content": _joined(before, message["content"])}, ""
        if chat and not roles.repeated and _continues(chat[-1], message):
            message = {**message, "content": _joined(chat.pop()["content"], message["content"])}
        chat.append(message)
    return [*chat, {"role": "user", "content": before}] if before else chat


def _continues(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two messages of a chat can be one."""
    return one["role"] == other["role"] in ("user", "assistant") and not (one.keys() | other.keys()) - {
        "role",
        "content",
    }


def _joined(one: object, other: object) -> str:
    return BETWEEN.join(str(text) for text in (one, other) if text)
