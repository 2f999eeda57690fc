"""Small checkpoints that continue the bundled model for minutes, on demonstrated conversations."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from marft.config.models import ModelSettings
from marft.inference.chat_messages import ChatFormat
from marft.inference.renderer import ChatRenderer
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows
from marft.models.tokenizer_format import load_tokenizer
from marft_lab.scripted_team import ScriptedTurn

BATCH, LEARNING_RATE = 32, 1.5e-3


class Row(Protocol):
    """Conversation as token ids, with a mask of the model's own tokens."""

    ids: list[int]
    learnt: list[bool]


@dataclass
class Turn:
    """Prompt and reply of one agent as token ids; the model is trained on the reply."""

    ids: list[int]
    learnt: list[bool]

    @classmethod
    def of(cls, spoken: ScriptedTurn, renderer: ChatRenderer) -> Turn:
        """Return a scripted turn as the policy ``""`` would read and write it."""
        tokenizer, stop = renderer.formats[""].tokenizer, renderer.formats[""].stop_ids[0]
        chat: Any = [*map(dict, spoken.chat)]
        text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        prompt, said = tokenizer([text, spoken.line.text], add_special_tokens=False)["input_ids"]
        return cls([*prompt, *said, stop], [False] * len(prompt) + [True] * (len(said) + 1))


def warm_up(
    folder: Path, settings: ModelSettings, demonstrate: Callable[[ChatRenderer], Callable[[], Row]], steps: int
) -> None:
    """Train a checkpoint, and save it with tokenizer and template.

    Training uses one thread, so that the result does not depend on the number of cores.

    Args:
        folder: folder of the checkpoint.
        settings: model to continue.
        demonstrate: function from a renderer for the policy ``""`` to a generator of conversations.
        steps: number of training steps.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    backbone, tokenizer = load_backbone(settings, torch.device("cpu"), torch.float32), load_tokenizer(settings)
    assert isinstance(tokenizer.eos_token_id, int)
    format = ChatFormat(tokenizer, backbone.context, {}, (tokenizer.eos_token_id,))
    _learn(backbone, demonstrate(ChatRenderer({"": format})), steps)
    torch.set_num_threads(threads)
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    backbone.model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)


def _loss_of(backbone: Backbone, rows: list[Row]) -> torch.Tensor:
    """Return the mean negative log-likelihood of the model's own tokens."""
    ids = [np.array(row.ids, np.int32) for row in rows]
    packed = PackedRows.from_rows(ids, [None] * len(rows), backbone.device)
    targets = torch.from_numpy(np.flatnonzero(np.concatenate([row.learnt for row in rows])))
    hidden = backbone.hidden_states(packed)[targets - 1]
    return -score_tokens(hidden, OutputHead(backbone.head.weight), packed.ids[targets], None).log_probs.mean()


def _learn(backbone: Backbone, next_row: Callable[[], Row], steps: int) -> None:
    parameters = list(backbone.model.requires_grad_(True).parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        rate = min(1.0, (step + 1) / 30) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        loss = _loss_of(backbone, [next_row() for _ in range(BATCH)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"warm-up: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)


def digest(folder: Path) -> str:
    """Return a digest that distinguishes this checkpoint from any other."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
