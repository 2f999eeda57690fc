"""Train the bundled tiny model from scratch: tokenizer, weights, checkpoint in Hugging Face format.

    python tools/tiny/train.py            # about 50 minutes on two CPU cores; writes src/marft/models/tiny
    python tools/tiny/train.py --steps 50 --output /tmp/tiny

The result depends on nothing but this folder, the seed and the versions in constraints.txt: the same command on the
same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from demonstrations import Demonstration, demonstrations
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.log_probs import token_scores
from marft.models.packed_rows import PackedRows

ROOT = Path(__file__).parents[2]
VOCABULARY = 448
CONTEXT = 1024
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the demonstrations that splits text as Qwen2's does, for that is what loads it: any text
    round-trips, and every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    texts = [
        f"{message['role']}\n{message['content']}\n{demonstration.reply}"
        for demonstration in islice(demonstrations(seed), 20_000)
        for message in demonstration.chat
    ]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(layers: int, hidden: int, intermediate: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    attention.register()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation=attention.IMPLEMENTATION,  # type: ignore[call-arg]
    )
    return Qwen2ForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Demonstration]) -> tuple[list[np.ndarray], list[int]]:
    """Token ids of prompt and reply, the end of turn included, and the length of each prompt."""
    prompts = [tokenizer.apply_chat_template(d.chat, tokenize=False, add_generation_prompt=True) for d in batch]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    reply_ids = tokenizer([f"{d.reply}<|im_end|>" for d in batch], add_special_tokens=False)["input_ids"]
    rows = [np.array(p + r, np.int32) for p, r in zip(prompt_ids, reply_ids, strict=True)]
    return rows, [len(p) for p in prompt_ids]


def reply_loss(backbone: Backbone, rows: list[np.ndarray], prompts: list[int]) -> torch.Tensor:
    """Mean negative log-likelihood of the reply tokens."""
    packed = PackedRows.of(rows, [None] * len(rows), backbone.device)
    hidden = backbone.hidden_states(packed)
    starts = packed.starts()
    at = np.concatenate(
        [np.arange(s + p - 1, s + len(row) - 1) for s, p, row in zip(starts, prompts, rows, strict=True)]
    )
    positions = torch.from_numpy(at)
    targets = packed.ids[positions + 1]
    ones = torch.ones(len(targets))
    return -token_scores(hidden[positions], backbone.head.weight, None, targets, ones).log_probs.mean()


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


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    tokenizer = train_tokenizer(arguments.seed)
    model = build_model(arguments.layers, arguments.hidden, arguments.intermediate, tokenizer)
    add_noise(model.train(), arguments.noise)
    backbone = Backbone(model, CONTEXT)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=arguments.learning_rate, betas=(0.9, 0.98),
    )  # fmt: skip
    stream = demonstrations(arguments.seed + 1)
    began, smooth = time.perf_counter(), 0.0
    for step in range(arguments.steps):
        rate = min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / arguments.steps)))
        for group in optimizer.param_groups:
            group["lr"] = arguments.learning_rate * rate
        rows, prompts = encode(tokenizer, list(islice(stream, arguments.batch)))
        loss = reply_loss(backbone, rows, prompts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if (step + 1) % 250 == 0 or step + 1 == arguments.steps:
            print(f"step {step + 1:6d}  loss {smooth:.4f}  {time.perf_counter() - began:6.0f} s", flush=True)
        if (step + 1) % 2000 == 0:
            save(model, tokenizer, arguments.output)
    save(model, tokenizer, arguments.output)


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Weights in float16 (they are loaded as float32), tokenizer, chat template; no sampling defaults."""
    output.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).half().save_pretrained(output)
    config = json.loads((output / "config.json").read_text())
    config["dtype"] = "float32"
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "src/marft/models/tiny")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--intermediate", type=int, default=384)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
