"""Train the bundled tiny model from scratch: tokenizer, weights, checkpoint in Hugging Face format.

    python tools/tiny/train.py            # about 50 minutes on two CPU cores
    python tools/tiny/train.py --steps 50 --output /tmp/tiny

The result depends on nothing but this folder, the seed and the versions in constraints.txt: the same command on the
same machine gives the same weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from checkpoint import END, HIDDEN, INTERMEDIATE, LAYERS, Row, build_model, fit, save, train_tokenizer
from demonstrations import Demonstration, demonstrations
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def texts(seed: int) -> Iterator[str]:
    """What the tokenizer is trained on."""
    for demonstration in islice(demonstrations(seed), 20_000):
        for message in demonstration.chat:
            yield f"{message['role']}\n{message['content']}\n{demonstration.reply}"


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Demonstration]) -> tuple[list[np.ndarray], list[int]]:
    """Token ids of prompt and reply, the end of turn included, and the length of each prompt."""
    prompts = [tokenizer.apply_chat_template(d.chat, tokenize=False, add_generation_prompt=True) for d in batch]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    reply_ids = tokenizer([f"{d.reply}{END}" for d in batch], add_special_tokens=False)["input_ids"]
    rows = [np.array(p + r, np.int32) for p, r in zip(prompt_ids, reply_ids, strict=True)]
    return rows, [len(p) for p in prompt_ids]


def batches(tokenizer: PreTrainedTokenizerFast, seed: int, size: int) -> Iterator[Sequence[Row]]:
    """Demonstrations without end, whose replies are learned."""
    stream = demonstrations(seed)
    while True:
        rows, prompts = encode(tokenizer, list(islice(stream, size)))
        yield [Row(row, np.arange(len(row)) >= length) for row, length in zip(rows, prompts, strict=True)]


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    tokenizer = train_tokenizer(texts(arguments.seed), CHAT_TEMPLATE)
    model = build_model(arguments.layers, arguments.hidden, arguments.intermediate, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    rows = batches(tokenizer, arguments.seed + 1, arguments.batch)
    for step in fit(model, rows, arguments.steps, arguments.learning_rate, arguments.noise):
        if step % 2000 == 0:
            save(model, tokenizer, arguments.output)
    save(model, tokenizer, arguments.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "packages/marft/src/marft/models/tiny")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--intermediate", type=int, default=INTERMEDIATE)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
