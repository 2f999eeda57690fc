"""Shapes of common models by name, where no ``config.json`` is on this disk: what those on the hub say."""

from __future__ import annotations

import re

from marft.planning.shapes import Shape

_QWEN2, _QWEN3, _LLAMA = 151_936, 151_936, 128_256
_LARGE = 152_064  # Qwen2.5's vocabulary from 7 billion parameters on


def _qwen2(layers: int, hidden: int, inner: int, heads: int, keys: int, *, large: bool = False) -> Shape:
    return Shape(
        layers, hidden, inner, heads, keys, hidden // heads, _LARGE if large else _QWEN2, not large, query_bias=True
    )


def _qwen3(layers: int, hidden: int, inner: int, heads: int, *, tied: bool) -> Shape:
    return Shape(layers, hidden, inner, heads, 8, 128, _QWEN3, tied, head_norms=True)


def _llama(layers: int, hidden: int, inner: int, heads: int, keys: int, vocabulary: int, *, tied: bool) -> Shape:
    return Shape(layers, hidden, inner, heads, keys, hidden // heads, vocabulary, tied)


KNOWN = {
    "qwen2.5-0.5b": _qwen2(24, 896, 4864, 14, 2),
    "qwen2.5-1.5b": _qwen2(28, 1536, 8960, 12, 2),
    "qwen2.5-3b": _qwen2(36, 2048, 11_008, 16, 2),
    "qwen2.5-7b": _qwen2(28, 3584, 18_944, 28, 4, large=True),
    "qwen2.5-14b": _qwen2(48, 5120, 13_824, 40, 8, large=True),
    "qwen2.5-32b": _qwen2(64, 5120, 27_648, 40, 8, large=True),
    "qwen2.5-72b": _qwen2(80, 8192, 29_568, 64, 8, large=True),
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 12_288, 32, tied=False),
    "qwen3-14b": _qwen3(40, 5120, 17_408, 40, tied=False),
    "qwen3-32b": _qwen3(64, 5120, 25_600, 64, tied=False),
    "llama-3-8b": _llama(32, 4096, 14_336, 32, 8, _LLAMA, tied=False),
    "llama-3-70b": _llama(80, 8192, 28_672, 64, 8, _LLAMA, tied=False),
    "llama-3.2-1b": _llama(16, 2048, 8192, 32, 8, _LLAMA, tied=True),
    "llama-3.2-3b": _llama(28, 3072, 8192, 24, 8, _LLAMA, tied=True),
    "smollm2-135m": _llama(30, 576, 1536, 9, 3, 49_152, tied=True),
    "smollm2-360m": _llama(32, 960, 2560, 15, 5, 49_152, tied=True),
    "smollm2-1.7b": _llama(24, 2048, 8192, 32, 32, 49_152, tied=True),
}


def known_shape(model: str) -> Shape | None:
    """The shape of a model by its name on the hub, whatever was done to its weights.

    >>> known_shape("Qwen/Qwen2.5-Coder-3B-Instruct") == known_shape("qwen2.5-3b")
    True
    >>> known_shape("somebody/else") is None
    True
    """
    name = model.rstrip("/").rpartition("/")[2].casefold().removeprefix("meta-")
    name = re.sub(r"^(qwen2\.5)-(coder|math)-", r"\1-", name)
    name = re.sub(r"^llama-3\.[13]-", "llama-3-", name)
    found = re.match(r"(.+?-\d+(\.\d+)?[bm])(?![a-z0-9])", name)
    return KNOWN.get(found.group(1)) if found else None
