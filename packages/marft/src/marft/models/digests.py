"""Short digests that tell whether models are those of before, wherever they lie now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SAMPLES = 64  # numbers of each tensor, spread evenly


@torch.no_grad()
def digest_of(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """Of names, shapes, some numbers of every tensor as bfloat16, and texts.

    >>> digest_of({"a": torch.ones(3)}) == digest_of({"a": torch.ones(3, dtype=torch.bfloat16)})
    True
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().reshape(-1)
        indices = np.linspace(0, max(0, len(flat) - 1), min(SAMPLES, len(flat))).astype(np.int64)
        sample = flat[torch.from_numpy(indices).to(flat.device)].to(torch.bfloat16).view(torch.int16).cpu()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    for text in texts:
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()


def template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The vocabulary and the chat template: what text becomes."""
    return f"{sorted(tokenizer.get_vocab().items())} {tokenizer.chat_template}"
