"""Reference of in-flight weight updates, with transformers and peft: one forward per token, and one cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import AutoModelForCausalLM, DynamicCache


def log_probs(
    model: Path | str, adapters: Sequence[str], prompt: Sequence[int], tokens: Sequence[int], change: int
) -> NDArray[np.float32]:
    """Return each token's log-prob, [T], if the second adapter replaces the first one before token ``change``.

    Keys and values are computed once, with the weights of their time.
    """
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, adapters[0], adapter_name="0")
    peft.load_adapter(adapters[1], "1")
    cache, ids, found = DynamicCache(), list(prompt), list[float]()
    with torch.no_grad():
        for position, token in enumerate(tokens):
            peft.set_adapter("1" if position >= change else "0")
            logits = peft(input_ids=torch.tensor([ids]), past_key_values=cache).logits[0, -1]
            found.append(float(logits.log_softmax(-1)[token]))
            ids = [token]
    return np.array(found, np.float32)
