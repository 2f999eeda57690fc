"""Model sizes from a ``config.json`` on disk or from the table of common models, and operations per token.

N is the number of layer weights, V·D the number of head weights (Kaplan et al. 2020; attention as in Narayanan et al.
2021, halved for causality). The forward takes 2·N. The backward takes 2·N more through a frozen base, or 4·N for
trained weights. Gradient checkpointing adds another 2·N. Attention over a row of T tokens takes 2·T·Q per layer and
token in the forward, and 2.5 times as much in the backward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marft.common.atomic import read_text
from marft.common.errors import UserError
from marft.config.bundled import bundled_models
from marft.config.models import ModelSettings

CONFIG_FILE = "config.json"
SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # dense decoders with supported parameter counts
BACKWARD_FACTOR = 2.5  # multiple of the attention forward (Dao 2023, FlashAttention-2)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a Llama-family decoder.

    >>> tiny = ModelSizes(
    ...     layers=2, hidden_size=8, intermediate_size=16, heads=2, key_heads=1, head_dim=4, vocab_size=32,
    ...     tied_embeddings=True,
    ... )
    >>> tiny.matrix_parameters, tiny.parameters  # of the layers; with embeddings and norms
    (1152, 1448)
    """

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    key_heads: int
    head_dim: int  # dimensions of a head
    vocab_size: int
    tied_embeddings: bool  # whether the embeddings and the head share weights
    query_bias: bool = False  # for queries, keys and values
    output_bias: bool = False  # for the attention output projection
    feed_forward_bias: bool = False
    head_norms: bool = False  # Qwen3's query and key norms
    max_context: int = field(default=0, compare=False)  # maximum context length, in tokens; 0: unknown
    layer_bits: float = field(default=0.0, compare=False)  # bits per layer weight of a packed checkpoint; 0: unpacked

    @property
    def query_dim(self) -> int:
        """Query dimensions per token, summed over heads."""
        return self.heads * self.head_dim

    @property
    def key_dim(self) -> int:
        """Key dimensions per token, summed over heads; the same for values."""
        return self.key_heads * self.head_dim

    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Return the linear layers of a decoder layer: ``(in, out)`` by name."""
        return {
            "q_proj": (self.hidden_size, self.query_dim),
            "k_proj": (self.hidden_size, self.key_dim),
            "v_proj": (self.hidden_size, self.key_dim),
            "o_proj": (self.query_dim, self.hidden_size),
            "gate_proj": (self.hidden_size, self.intermediate_size),
            "up_proj": (self.hidden_size, self.intermediate_size),
            "down_proj": (self.intermediate_size, self.hidden_size),
        }

    @property
    def matrix_parameters(self) -> int:
        """Number of weights in the layer matrices, without the head.

        Each token is multiplied with these weights.
        """
        return self.layers * sum(inside * out for inside, out in self.linear_layers().values())

    @property
    def head_parameters(self) -> int:
        """Number of weights in the LM head."""
        return self.vocab_size * self.hidden_size

    @property
    def small_parameters(self) -> int:
        """Number of norm and bias parameters."""
        biases = (
            (self.query_dim + 2 * self.key_dim) * self.query_bias
            + self.hidden_size * self.output_bias
            + (2 * self.intermediate_size + self.hidden_size) * self.feed_forward_bias
        )
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.head_norms
        return self.layers * (biases + norms) + self.hidden_size

    @property
    def parameters(self) -> int:
        """Total parameter count, equal to ``model.num_parameters()``."""
        embedding_copies = 1 if self.tied_embeddings else 2
        return self.matrix_parameters + self.small_parameters + self.head_parameters * embedding_copies

    def adapter_parameters(self, rank: int, targets: Iterable[str], half: bool = False) -> int:
        """Return the number of LoRA parameters.

        An adapter has ``A`` [r, in] and ``B`` [out, r] on each target layer (Hu et al. 2021).

        Args:
            half: count only ``B``.

        Raises:
            UserError: a target matches no linear layer.
        """
        sizes = self.linear_layers()
        unknown = [target for target in targets if target.rpartition(".")[2] not in sizes]
        if unknown:
            raise UserError(
                f"lora.target_modules: no linear layer is called {unknown[0]!r}; there are {', '.join(sizes)}"
            )
        return self.layers * sum(rank * sum(sizes[target.rpartition(".")[2]][half:]) for target in targets)

    def cache_elements(self) -> int:
        """Return the number of KV cache elements per token."""
        return 2 * self.layers * self.key_dim


def parse_sizes(table: Mapping[str, Any], source: str) -> ModelSizes:
    """Parse the model sizes in a ``config.json``.

    Raises:
        UserError: the model is not a dense decoder of the Llama family, or the configuration is incomplete.
    """
    table = table.get("text_config", table)
    kind = table.get("model_type")
    if kind not in SUPPORTED_TYPES:
        raise UserError(
            f"{source}: sizes are known of {', '.join(SUPPORTED_TYPES)}, not of {kind!r}; --model-config takes the "
            "config.json of a model of about that size in their place"
        )
    try:
        heads, hidden = int(table["num_attention_heads"]), int(table["hidden_size"])
        has_bias = bool(table.get("attention_bias", False))
        return ModelSizes(
            layers=int(table["num_hidden_layers"]),
            hidden_size=hidden,
            intermediate_size=int(table["intermediate_size"]),
            heads=heads,
            key_heads=int(table.get("num_key_value_heads") or heads),
            head_dim=int(table.get("head_dim") or hidden // heads),
            vocab_size=int(table["vocab_size"]),
            tied_embeddings=bool(table.get("tie_word_embeddings", False)),
            query_bias=kind == "qwen2" or has_bias,
            output_bias=kind != "qwen2" and has_bias,
            feed_forward_bias=bool(table.get("mlp_bias", False)),
            head_norms=kind == "qwen3",
            max_context=int(table.get("max_position_embeddings") or 0),
            layer_bits=_packed_bits(table.get("quantization_config")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{source}: {error} is missing or no number; it is no whole config.json") from error


def _packed_bits(quantization: object) -> float:
    """Return the bits per layer weight of a GPTQ, AWQ or bitsandbytes checkpoint; 0 for other checkpoints."""
    if not isinstance(quantization, Mapping):
        return 0.0
    if quantization.get("quant_method") in ("gptq", "awq"):
        return packed_bits(int(quantization.get("group_size") or 0))
    if quantization.get("load_in_4bit"):
        return nf4_bits(64, bool(quantization.get("bnb_4bit_use_double_quant")))
    return 0.0


def packed_bits(group: int) -> float:
    """Return the bits per weight of a GPTQ or AWQ layer: 4, and a group's float16 scale and 8-bit zero.

    >>> packed_bits(128)
    4.1875
    """
    return 4.0 + (24 / group if group > 0 else 0.0)


def nf4_bits(block: int, double_quantization: bool) -> float:
    """Return the bits per weight in NF4: 4, and a block's float32 magnitude, or 8 bits with 256 in a second block.

    >>> nf4_bits(64, False), round(nf4_bits(64, True), 3)
    (4.5, 4.127)
    """
    return 4.0 + (8 + 32 / 256 if double_quantization else 32) / block


# common models: sizes from their Hugging Face configurations, if no config.json is on disk
_QWEN2_VOCAB, _QWEN3_VOCAB, _LLAMA_VOCAB = 151_936, 151_936, 128_256
_LARGE_QWEN2_VOCAB = 152_064  # vocabulary of Qwen2.5 with 7 billion or more parameters


def _qwen2(layers: int, hidden: int, inner: int, heads: int, keys: int, *, large: bool = False) -> ModelSizes:
    return ModelSizes(
        layers,
        hidden,
        inner,
        heads,
        keys,
        hidden // heads,
        _LARGE_QWEN2_VOCAB if large else _QWEN2_VOCAB,
        not large,
        query_bias=True,
    )


def _qwen3(layers: int, hidden: int, inner: int, heads: int, *, tied: bool) -> ModelSizes:
    return ModelSizes(layers, hidden, inner, heads, 8, 128, _QWEN3_VOCAB, tied, head_norms=True)


def _llama(layers: int, hidden: int, inner: int, heads: int, keys: int, vocabulary: int, *, tied: bool) -> ModelSizes:
    return ModelSizes(layers, hidden, inner, heads, keys, hidden // heads, vocabulary, tied)


COMMON_MODELS = {
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
    "llama-3-8b": _llama(32, 4096, 14_336, 32, 8, _LLAMA_VOCAB, tied=False),
    "llama-3-70b": _llama(80, 8192, 28_672, 64, 8, _LLAMA_VOCAB, tied=False),
    "llama-3.2-1b": _llama(16, 2048, 8192, 32, 8, _LLAMA_VOCAB, tied=True),
    "llama-3.2-3b": _llama(28, 3072, 8192, 24, 8, _LLAMA_VOCAB, tied=True),
    "smollm2-135m": _llama(30, 576, 1536, 9, 3, 49_152, tied=True),
    "smollm2-360m": _llama(32, 960, 2560, 15, 5, 49_152, tied=True),
    "smollm2-1.7b": _llama(24, 2048, 8192, 32, 32, 49_152, tied=True),
}


def find_common_sizes(model: str) -> ModelSizes | None:
    """Return the sizes of a common model by its Hugging Face name, ignoring suffixes for fine-tuning.

    A name with GPTQ or AWQ is a packed checkpoint, with 128 weights per group.

    >>> find_common_sizes("Qwen/Qwen2.5-Coder-3B-Instruct") == find_common_sizes("qwen2.5-3b")
    True
    >>> find_common_sizes("somebody/else") is None
    True
    """
    name = model.rstrip("/").rpartition("/")[2].casefold().removeprefix("meta-")
    name = re.sub(r"^(qwen2\.5)-(coder|math)-", r"\1-", name)
    name = re.sub(r"^llama-3\.[13]-", "llama-3-", name)
    match = re.match(r"(.+?-\d+(\.\d+)?[bm])(?![a-z0-9])", name)
    sizes = COMMON_MODELS.get(match.group(1)) if match else None
    if sizes is not None and re.search(r"-(gptq|awq)\b", name):
        return replace(sizes, layer_bits=packed_bits(128))
    return sizes


def find_sizes(name: str, model: ModelSettings, config_path: Path | None = None) -> ModelSizes:
    """Return the sizes of a recipe's model, without reading weights or downloading files.

    Args:
        config_path: path of a ``config.json``, or of its folder, to use instead of the model's own.

    Raises:
        UserError: the sizes are unknown, or a configuration is unreadable.
    """
    if config_path is not None:
        file = config_path / CONFIG_FILE if config_path.is_dir() else config_path
        if not file.exists():
            raise UserError(f"--model-config: there is no {file}; give a model's config.json, or the folder it is in")
        return _read_sizes(file, "--model-config")
    folder = bundled_models().get(model.path, Path(model.path))
    if (folder / CONFIG_FILE).is_file():
        return _read_sizes(folder / CONFIG_FILE, f"models.{name}.path {model.path!r}")
    cached = find_cached_config(model)
    if cached is not None:
        return _read_sizes(cached, f"models.{name}.path {model.path!r}")
    sizes = find_common_sizes(model.path)
    if sizes is None:
        raise UserError(
            f"models.{name}.path: the sizes of {model.path!r} are not known here: it is no folder, not in the hub's "
            f"cache, and none of {', '.join(COMMON_MODELS)}; give its config.json:  --model-config FILE"
        )
    return sizes


def find_cached_config(model: ModelSettings) -> Path | None:
    """Return the ``config.json`` of a Hugging Face model's last download; None if it was not downloaded."""
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(model.path, CONFIG_FILE, revision=model.revision)
    except ValueError:  # the path is not a valid Hugging Face id, and no such folder exists
        return None
    return Path(path) if isinstance(path, str) else None


def _read_sizes(path: Path, source: str) -> ModelSizes:
    try:
        table = json.loads(read_text(path))
    except OSError as error:
        raise UserError(f"{source}: cannot read {path}: {error.strerror}; give one that can be read") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: cannot read {path}: {error}; give a model's config.json") from error
    if not isinstance(table, dict):
        raise UserError(f"{source}: {path} holds no table; give a model's config.json")
    return parse_sizes(table, source)


def forward_flops(shape: ModelSizes, length: float, head_share: float = 0.0) -> float:
    """Return the forward operations per token for a row with ``length`` tokens.

    Args:
        head_share: share of the tokens with computed logits.
    """
    attention = 2.0 * length * shape.query_dim * shape.layers
    return 2.0 * shape.matrix_parameters + attention + 2.0 * shape.head_parameters * head_share


def training_flops(
    shape: ModelSizes,
    length: float,
    head_share: float,
    adapter: int,
    *,
    full_training: bool,
    checkpointing: bool = False,
    half_products: bool = False,
) -> float:
    """Return the operations per trained token, forward and backward, for a row with ``length`` tokens.

    The gradient through a frozen head is computed in the forward: one more product, or two on a GPU in half precision
    (:mod:`marft.models.log_probs`). A trained head takes four products.

    Args:
        head_share: share of the tokens with computed logits.
        adapter: number of trained adapter parameters; 0 without an adapter.
        full_training: whether the model's own weights are trained.
        checkpointing: whether activations are recomputed (gradient checkpointing).
        half_products: whether the gradient through a frozen head takes two half-precision products.
    """
    attention = 2.0 * length * shape.query_dim * shape.layers
    layers = 2.0 * shape.matrix_parameters * ((3 if full_training else 2) + checkpointing)
    head_factor = 4 if full_training else 3 if half_products else 2
    return (
        layers
        + 6.0 * adapter
        + attention * (1 + BACKWARD_FACTOR + checkpointing)
        + 2.0 * head_factor * shape.head_parameters * head_share
    )
