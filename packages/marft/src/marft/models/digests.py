"""Short digests to identify models independently from their location."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SAMPLES_PER_TENSOR = 64  # values per tensor, evenly spread


@torch.no_grad()
def compute_digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """Return a digest over names, shapes, sampled bfloat16 values from every tensor, and texts.

    >>> compute_digest({"a": torch.ones(3)}) == compute_digest({"a": torch.ones(3, dtype=torch.bfloat16)})
    True
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().reshape(-1)
        indices = np.linspace(0, max(0, len(flat) - 1), min(SAMPLES_PER_TENSOR, len(flat))).astype(np.int64)
        sample = flat[torch.from_numpy(indices).to(flat.device)].to(torch.bfloat16).view(torch.int16).cpu()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    for text in texts:
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the vocabulary and chat template as text: they determine the token ids."""
    return f"{sorted(tokenizer.get_vocab().items())} {tokenizer.chat_template}"
