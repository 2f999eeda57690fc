"""vLLM serves the bundled model with an adapter that MARFT saved, and their log-probs agree.

python tools/tiny/vllm_parity.py     # needs vllm beside marft
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from marft.config.bundled import resolve_path
from marft.config.models import LoraSettings, ModelSettings
from marft.models.adapter_files import save_adapter
from marft.models.loader import load_backbone
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows
from marft.models.tokenizer_format import load_tokenizer

PROMPT = "State the final answer to the following arithmetic problem: 23 + 45 - 12 ="


def main(adapter: Path) -> float:
    """Largest difference of the log-probs of tokens that vLLM samples."""
    settings, lora = ModelSettings(path="tiny"), LoraSettings()
    backbone = load_backbone(settings, torch.device("cpu"), torch.float32)
    tokenizer = load_tokenizer(settings)
    backbone.add_adapter("policy", lora.rank, lora.alpha, lora.target_modules, seed=0)
    torch.manual_seed(0)
    for layer in backbone.adapters("policy").values():
        torch.nn.init.normal_(layer.b, std=0.02)
    save_adapter(backbone.adapters("policy"), lora, resolve_path("tiny"), adapter)
    engine = LLM(resolve_path("tiny"), dtype="float32", enable_lora=True, max_lora_rank=8, enforce_eager=True)
    chat = [{"role": "user", "content": PROMPT}]
    prompt = tokenizer.encode(str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)))
    worst = 0.0
    for name, request in ((None, None), ("policy", LoRARequest("policy", 1, str(adapter)))):
        options = SamplingParams(temperature=1.0, max_tokens=24, logprobs=0, seed=1)
        out = engine.generate({"prompt_token_ids": prompt}, options, lora_request=request)[0].outputs[0]
        tokens = np.array(out.token_ids, np.int32)
        theirs = torch.tensor([step[token].logprob for step, token in zip(out.logprobs, out.token_ids, strict=True)])
        row = np.concatenate([np.array(prompt, np.int32), tokens[:-1]])
        hidden = backbone.hidden_states(PackedRows.from_rows([row], [name], backbone.device))[len(prompt) - 1 :]
        ones = torch.ones(len(tokens))
        mine = score_tokens(hidden, OutputHead(backbone.head.weight), torch.from_numpy(tokens).long(), ones).log_probs
        difference = (mine.detach() - theirs).abs().max().item()
        print(f"{name or 'base'}: {tokenizer.decode(tokens)!r}, log-probs differ by at most {difference:.1e}")
        worst = max(worst, difference)
    return worst


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        assert main(Path(folder)) < 1e-4
