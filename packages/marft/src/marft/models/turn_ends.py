"""What ends a turn: read off the chat template, for not every model ends its turns with its end of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from marft.models.templates import CANNOT_RENDER

SAID = "Yes."
ASKED = {"role": "user", "content": "?"}
TURN = [ASKED, {"role": "assistant", "content": SAID}]


def stop_ids(
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    declared: Sequence[int | Sequence[int] | None],
    known: int,
) -> tuple[int, ...]:
    """Tokens that end a turn: the chat template's, which is what a turn that is given, not sampled, ends with; then the
    tokenizer's end of text and those that the model declares. Nothing else is taken from generation_config.

    Args:
        declared: of config and generation_config.
        known: how many tokens the model has; a tokenizer may have more.

    Raises:
        TypeError: what is declared are no ids.
    """
    ids: list[int] = []
    own: int | Sequence[int] | None = tokenizer.eos_token_id
    for value in (own, *declared):
        ids += [] if value is None else [value] if isinstance(value, int) else value
    if not all(type(id) is int for id in ids):
        raise TypeError(f"it says {ids}")
    end = end_of_turn(tokenizer, options, ids)
    return tuple(dict.fromkeys(i for i in ([] if end is None else [end]) + ids if 0 <= i < known))


def end_of_turn(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], declared: Sequence[int]) -> int | None:
    """The token that a chat template puts after what an assistant said; None where it puts none that is one.

    Where it puts nothing there, the next turn's first token ends this one, if the model declares it so.
    """
    try:
        last, followed = (
            str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False, **options))
            for chat in (TURN, [*TURN, ASKED])
        )
    except CANNOT_RENDER:
        return None
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    found = [id for id in _ids_after_said(tokenizer, last) if id in special]
    if found:
        return int(found[0])
    after = _ids_after_said(tokenizer, followed)[:1]
    return int(after[0]) if after and after[0] in declared else None


def _ids_after_said(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    _, said, after = text.partition(SAID)
    return list(tokenizer.encode(after, add_special_tokens=False)) if said else []
