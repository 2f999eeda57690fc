"""Stop ids derived from the chat template, because some models end turns with other tokens than their EOS token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from marft.models.chat_templates import RENDER_ERRORS

PROBE_ANSWER = "Yes."
PROBE_QUESTION = {"role": "user", "content": "?"}
PROBE_CHAT = [PROBE_QUESTION, {"role": "assistant", "content": PROBE_ANSWER}]


def find_stop_ids(
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    declared: Sequence[int | Sequence[int] | None],
    vocabulary: int,
) -> tuple[int, ...]:
    """Return the stop ids for turns: the chat template's end-of-turn token, the EOS token, and declared ids.

    A given (not sampled) turn ends with the first of them. No other setting is read from generation_config.

    Args:
        declared: EOS ids from config and generation_config.
        vocabulary: number of tokens in the model's vocabulary; a tokenizer may have more.

    Raises:
        TypeError: a declared value is not a token id.
    """
    ids: list[int] = []
    eos_id: int | Sequence[int] | None = tokenizer.eos_token_id
    for value in (eos_id, *declared):
        ids += [] if value is None else [value] if isinstance(value, int) else value
    if not all(type(id) is int for id in ids):
        raise TypeError(f"it says {ids}")
    end = find_end_of_turn(tokenizer, options, ids)
    return tuple(dict.fromkeys(i for i in ([] if end is None else [end]) + ids if 0 <= i < vocabulary))


def find_end_of_turn(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], declared: Sequence[int]
) -> int | None:
    """Return the special token between an assistant message and the next turn; None without a special token.

    If the template adds no special token, the first token of the next turn ends the turn. The model must declare that
    token as an EOS token.
    """
    try:
        last, followed = (
            str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False, **options))
            for chat in (PROBE_CHAT, [*PROBE_CHAT, PROBE_QUESTION])
        )
    except RENDER_ERRORS:
        return None
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    special_ids = [id for id in _ids_after_answer(tokenizer, last) if id in special]
    if special_ids:
        return int(special_ids[0])
    after = _ids_after_answer(tokenizer, followed)[:1]
    return int(after[0]) if after and after[0] in declared else None


def _ids_after_answer(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    _, answer, after = text.partition(PROBE_ANSWER)
    return list(tokenizer.encode(after, add_special_tokens=False)) if answer else []
