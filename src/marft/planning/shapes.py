"""What of a model's configuration decides its sizes, and how many numbers it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # dense decoders whose parameters are counted here


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of the Llama family.

    >>> tiny = Shape(layers=2, hidden=8, intermediate=16, heads=2, key_heads=1, head=4, vocabulary=32, tied=True)
    >>> tiny.matrix_parameters, tiny.parameters  # of the layers; with embeddings and norms
    (1152, 1448)
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head: int  # dimensions of one
    vocabulary: int
    tied: bool  # whether embeddings are the head
    query_bias: bool = False  # on queries, keys, values
    output_bias: bool = False  # on what attention gives
    feed_forward_bias: bool = False
    head_norms: bool = False  # Qwen3's, of queries and keys
    context: int = field(default=0, compare=False)  # tokens that it is made for; 0: not known

    @property
    def queries(self) -> int:
        """Numbers of a token's queries."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Numbers of a token's keys; its values have as many."""
        return self.key_heads * self.head

    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """The linear layers of one decoder layer: ``(in, out)`` by name."""
        return {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, self.keys),
            "v_proj": (self.hidden, self.keys),
            "o_proj": (self.queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def matrix_parameters(self) -> int:
        """Weights of the layers' matrices: what every token is multiplied with, the head left out."""
        return self.layers * sum(inside * out for inside, out in self.linear_layers().values())

    @property
    def head_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def small_parameters(self) -> int:
        """Norms and biases."""
        biases = (
            (self.queries + 2 * self.keys) * self.query_bias
            + self.hidden * self.output_bias
            + (2 * self.intermediate + self.hidden) * self.feed_forward_bias
        )
        norms = 2 * self.hidden + 2 * self.head * self.head_norms
        return self.layers * (biases + norms) + self.hidden

    @property
    def parameters(self) -> int:
        """All of them, as ``model.num_parameters()`` counts."""
        return self.matrix_parameters + self.small_parameters + self.head_parameters * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int, targets: Iterable[str], half: bool = False) -> int:
        """Of a LoRA: ``A`` [r, in] and ``B`` [out, r] on every layer that a target names (Hu et al. 2021).

        Args:
            half: of ``B`` alone.

        Raises:
            ValueError: a target names no linear layer.
        """
        sizes = self.linear_layers()
        unknown = [target for target in targets if target.rpartition(".")[2] not in sizes]
        if unknown:
            raise ValueError(f"lora.targets: no linear layer is called {unknown[0]!r}; there are {', '.join(sizes)}")
        return self.layers * sum(rank * sum(sizes[target.rpartition(".")[2]][half:]) for target in targets)

    def cache_numbers(self) -> int:
        """Numbers that one token keeps in a key-value cache."""
        return 2 * self.layers * self.keys


def shape_of(table: Mapping[str, Any], where: str) -> Shape:
    """The shape that a ``config.json`` describes.

    Raises:
        ValueError: it is none of a dense decoder of the Llama family.
    """
    table = table.get("text_config", table)
    kind = table.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"{where}: sizes are known of {', '.join(FAMILIES)}, not of {kind!r}; --model-config takes the config.json "
            "of a model of about that size in their place"
        )
    try:
        heads, hidden = int(table["num_attention_heads"]), int(table["hidden_size"])
        biased = bool(table.get("attention_bias", False))
        return Shape(
            layers=int(table["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(table["intermediate_size"]),
            heads=heads,
            key_heads=int(table.get("num_key_value_heads") or heads),
            head=int(table.get("head_dim") or hidden // heads),
            vocabulary=int(table["vocab_size"]),
            tied=bool(table.get("tie_word_embeddings", False)),
            query_bias=kind == "qwen2" or biased,
            output_bias=kind != "qwen2" and biased,
            feed_forward_bias=bool(table.get("mlp_bias", False)),
            head_norms=kind == "qwen3",
            context=int(table.get("max_position_embeddings") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error} is missing or no number; it is no whole config.json") from error
