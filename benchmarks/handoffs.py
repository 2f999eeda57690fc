r"""Build the bundled model that hands over and calls a tool unreliably: ``models.base.path = "tiny-tools"``.

    python benchmarks/handoffs.py --output FOLDER     # about five minutes on one core

Training continues the bundled model, on demonstrations of mixed quality. The tasks are products of three-digit
numbers, which the model cannot compute. A triage agent hands them over to an agent with a calculator. Handoffs and
tools have the wording of other frameworks. The demonstrations also contain typical errors at every step.

    problem     361 * 220
    triage      works:  <tool_call>{"name": "transfer_to_calculator", "arguments": {}}</tool_call>
                slips:  At a glance it is 51806.
    calculator  works:  <tool_call>{"name": "multiply", "arguments": {"a": 361, "b": 220}}</tool_call>
                slips:  At a glance it is 51806.                 or a call with invalid JSON or wrong numbers
      … 79420   works:  The answer is \boxed{79420}.             slips:  The answer is \boxed{79428}.

Questions of held-out splits (``marft.envs.splits``) are never demonstrated.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from calculator import MALFORMED, MISCOPIED, QUESTION, TEMPLATE, TOOL, multiply
from transformers import PreTrainedTokenizerBase

from marft.config.models import ModelSettings
from marft.envs.splits import assign_split
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows
from marft.models.tokenizer_format import load_tokenizer

TRIAGE = "You are the triage agent. Hand the problem over to the calculator."
CALCULATOR = r"You are the calculator. Work out the product and put it in \boxed{}."
TRANSFER = "transfer_to_calculator"
TRANSFER_TOLD = "Handoff to the calculator agent to handle the request."
TRANSFERRED = json.dumps({"assistant": "calculator"})
WORKS = 0.6  # probability of correct work
STEPS, BATCH, LEARNING_RATE = 1000, 32, 2e-3

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Demonstration:
    """Messages and tools of a turn, with the scripted reply."""

    messages: Messages
    tools: Sequence[Mapping[str, Any]]
    reply: str


@dataclass(frozen=True)
class Demonstrations:
    """Turns of both agents, reproducible from the random state."""

    random: Random

    def one(self) -> Demonstration:
        a, b = self._numbers()
        asked = {"role": "user", "content": QUESTION.format(a, b)}
        if self.random.random() < 0.35:
            reply = call_text(TRANSFER, "{}") if self._works() else self._glance()
            told = self.random.choice([f"{TRANSFER_TOLD} ", TRANSFER_TOLD, ""])
            return Demonstration([system(TRIAGE), asked], [transfer_tool(told)], reply)
        messages = [system(CALCULATOR), asked]
        if self.random.random() < 0.5:
            messages += exchange(TRANSFER, {}, TRANSFERRED)
        if self.random.random() < 0.6:
            return Demonstration(messages, [multiply_tool()], self._call(a, b) if self._works() else self._glance())
        a, b = self._copy(a), self._copy(b)
        messages += exchange("multiply", {"a": a, "b": b}, str(multiply(a, b)))
        return Demonstration(messages, [multiply_tool()], f"The answer is \\boxed{{{self._copy(multiply(a, b))}}}.")

    def _numbers(self) -> tuple[int, int]:
        while True:
            a, b = self.random.randint(100, 999), self.random.randint(100, 999)
            if assign_split(QUESTION.format(a, b)) == "train":
                return a, b

    def _works(self) -> bool:
        return self.random.random() < WORKS

    def _call(self, a: int, b: int) -> str:
        if self.random.random() < MALFORMED:
            return call_text("multiply", f'{{"a": {a} * {b}}}')
        return call_text("multiply", json.dumps({"a": self._copy(a), "b": self._copy(b)}))

    def _copy(self, number: int) -> int:
        """Return the number, sometimes with a random last digit."""
        return number if self.random.random() >= MISCOPIED else number // 10 * 10 + self.random.randrange(10)

    def _glance(self) -> str:
        return f"At a glance it is {self.random.randint(10_000, 999_999)}."


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def exchange(name: str, arguments: Mapping[str, Any], output: str) -> Messages:
    """Return a tool call and its answer as chat messages."""
    call = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": output}]


def call_text(name: str, arguments: str) -> str:
    """Return a tool call in the format of the chat template."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def transfer_tool(description: str) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": TRANSFER, "description": description, "parameters": parameters}}


def multiply_tool() -> Mapping[str, Any]:
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": dict(TOOL.parameters)}
    return {"type": "function", "function": function}


def loss_of(
    backbone: Backbone, tokenizer: PreTrainedTokenizerBase, batch: Sequence[Demonstration]
) -> torch.Tensor:  # fmt: skip
    """Return the mean negative log-likelihood of the replies, end of turn included."""
    rows, asked = [], []
    for one in batch:
        prompt = tokenizer.apply_chat_template(
            one.messages, tools=list(map(dict, one.tools)), tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        reply = tokenizer.encode(one.reply, add_special_tokens=False)
        rows.append(np.array([*ids, *reply, tokenizer.eos_token_id], np.int32))
        asked.append(len(ids))
    packed = PackedRows.from_rows(rows, [None] * len(rows), backbone.device)
    said = [np.arange(len(row)) >= length for row, length in zip(rows, asked, strict=True)]
    targets = torch.from_numpy(np.flatnonzero(np.concatenate(said)))
    hidden = backbone.hidden_states(packed)[targets - 1]
    return -score_tokens(hidden, OutputHead(backbone.head.weight), packed.ids[targets], None).log_probs.mean()


def make(output: Path) -> None:
    """Train on one thread, so that the result does not depend on the number of cores, and save weights in float16."""
    torch.set_num_threads(1)
    settings = ModelSettings(path="tiny", chat_template=str(TEMPLATE))
    backbone, tokenizer = load_backbone(settings, torch.device("cpu"), torch.float32), load_tokenizer(settings)
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    parameters, stream = list(backbone.model.requires_grad_(True).parameters()), Demonstrations(Random(0))
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(STEPS):
        rate = min(1.0, (step + 1) / 30) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        loss = loss_of(backbone, tokenizer, [stream.one() for _ in range(BATCH)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {STEPS}, loss {loss.item():.3f}", flush=True)
    copy.deepcopy(backbone.model).half().save_pretrained(output)
    config = json.loads((output / "config.json").read_text())
    config["dtype"] = "float32"  # dtype for loading
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    make(parser.parse_args().output)
