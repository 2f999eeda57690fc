"""How a tiny model is trained from scratch: tokenizer, weights, checkpoint in Hugging Face format."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows

VOCABULARY = 448
CONTEXT = 1024
LAYERS, HIDDEN, INTERMEDIATE, HEAD = 2, 128, 384, 32
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = "<|im_end|>"


class Row(NamedTuple):
    """One packed row: its ids, and which of them are learned, [T]."""

    ids: np.ndarray
    learned: np.ndarray


def train_tokenizer(
    texts: Iterable[str], chat_template: str, vocabulary: int = VOCABULARY, spaces_apart: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE over texts that splits them as Qwen2's does, for that is what loads it: any text round-trips,
    and every digit is a token of its own.

    Args:
        spaces_apart: no token joins a space with the word after it, so that a word is the same tokens wherever it
            stands, and a small model can copy it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spaces = [pre_tokenizers.Split(" ", "isolated")] if spaces_apart else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, *spaces, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def build_model(layers: int, hidden: int, intermediate: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    attention.register_attention()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=hidden // (2 * HEAD),
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation=attention.IMPLEMENTATION,  # type: ignore[call-arg]
    )
    return Qwen2ForCausalLM(config)


def wire_copying(model: Qwen2ForCausalLM, seed: int) -> None:
    """Begin with heads that copy, instead of waiting thousands of steps until a small model finds them.

    The first layer's heads look back a fixed number of tokens, and write what they see into a subspace each. In the
    layers after it a first pair of heads looks for positions two tokens after what the reader saw five tokens ago:
    a table's value after its key, for a question that ends ``KEY<|im_end|>\\n<|im_start|>assistant\\n``. A second pair
    looks for positions right after an earlier copy of the current token (an induction head: Olsson et al., 2022). Both
    write the token that they find. All of it is a beginning, learned on like any weight (of this kind: Trockman and
    Kolter, "Mimetic initialization of self-attention layers", 2023).

    A head looks ``d`` tokens back by its biases alone: with rotary positions, ``q = S a e^(-i d w)`` and ``k = a`` in
    the five fastest frequencies ``w`` score ``S a^2 sum cos((j - d) w)`` for the token ``j`` back: most at ``j = d``.

    Raises:
        ValueError: not four heads, or one layer.
    """
    config, layers = model.config, model.model.layers
    if config.num_attention_heads != 4 or len(layers) < 2:
        raise ValueError("copying is wired into four heads of at least two layers")
    random = torch.Generator().manual_seed(seed)

    def directions(count: int) -> torch.Tensor:
        """Orthogonal directions of the hidden state, [count, H]."""
        basis: torch.Tensor = torch.linalg.qr(torch.randn(config.hidden_size, count, generator=random))[0]
        return basis.T

    back, heads = (2, 5, 1, 3), [slice(head * HEAD, (head + 1) * HEAD) for head in range(4)]
    frequencies = 10_000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
    amplitude = (torch.arange(HEAD // 2) < 5).float()
    sharp = 20 * math.sqrt(HEAD) / amplitude.sum()
    seen, slots = [directions(HEAD), directions(HEAD)], directions(4 * HEAD)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(5)  # 0.1 a coordinate: tied, it is the scale of logits, too
        size = 5 * config.initializer_range
        first = layers[0].self_attn
        for projection in (first.q_proj, first.k_proj):
            projection.weight.mul_(0.2)
        for number, (head, distance) in enumerate(zip(heads, back, strict=True)):
            angle = -distance * frequencies
            first.q_proj.bias[head] = sharp * torch.cat([amplitude * angle.cos(), amplitude * angle.sin()])
            first.v_proj.weight[heads[number // 2]] = seen[number // 2]
            first.o_proj.weight[:, head] = size * slots[heads[number]].T
        for group in range(2):
            first.k_proj.bias[heads[group]] = torch.cat([amplitude, torch.zeros(HEAD // 2)])
        sought, found = (slots[heads[1]], seen[1]), (slots[heads[0]], slots[heads[2]])
        for layer in layers[1:]:
            attention_of = layer.self_attn
            for number, head in enumerate(heads):
                group, copied = number // 2, directions(HEAD)
                attention_of.q_proj.weight[head] = 3 * sought[group]
                if number % 2 == 0:
                    attention_of.k_proj.weight[heads[group]] = 3 * found[group]
                    attention_of.v_proj.weight[heads[group]] = copied
                attention_of.o_proj.weight[:, head] = 4 * size * attention_of.v_proj.weight[heads[group]].T


def loss_of(backbone: Backbone, rows: Sequence[Row]) -> torch.Tensor:
    """Mean negative log-likelihood of the tokens that are learned."""
    packed = PackedRows.from_rows([row.ids for row in rows], [None] * len(rows), backbone.device)
    hidden = backbone.hidden_states(packed)
    starts = packed.starts()
    at = np.concatenate([np.flatnonzero(row.learned) + start - 1 for start, row in zip(starts, rows, strict=True)])
    positions = torch.from_numpy(at)
    targets = packed.ids[positions + 1]
    ones = torch.ones(len(targets))
    return -score_tokens(hidden[positions], OutputHead(backbone.head.weight), targets, ones).log_probs.mean()


def add_noise(model: Qwen2ForCausalLM, scale: float) -> None:
    """While training, disturb every layer's output by ``scale`` of its size.

    What the model knows then survives small changes: of its weights, by adapters, and of the last bits, by rounding.
    """

    def disturb(module: torch.nn.Module, _: object, hidden: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return hidden
        size = hidden.detach().square().mean(-1, keepdim=True).sqrt()
        return hidden + scale * size * torch.randn_like(hidden)

    for layer in model.model.layers:
        layer.register_forward_hook(disturb)


def fit(
    model: Qwen2ForCausalLM, batches: Iterator[Sequence[Row]], steps: int, learning_rate: float, noise: float
) -> Iterator[int]:
    """Train, by AdamW with a warm-up and a cosine → the number of each step that is done."""
    add_noise(model.train(), noise)
    backbone = Backbone(model, CONTEXT)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=learning_rate, betas=(0.9, 0.98),
    )  # fmt: skip
    began, smooth = time.perf_counter(), 0.0
    for step in range(steps):
        rate = min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        loss = loss_of(backbone, next(batches))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if (step + 1) % 250 == 0 or step + 1 == steps:
            print(f"step {step + 1:6d}  loss {smooth:.4f}  {time.perf_counter() - began:6.0f} s", flush=True)
        yield step + 1


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Weights in float16 (they are loaded as float32), tokenizer, chat template; no sampling defaults."""
    output.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).half().save_pretrained(output)
    config = json.loads((output / "config.json").read_text())
    config["dtype"] = "float32"
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(output)
