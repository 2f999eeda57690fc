"""Small tokenizers that put a space before what begins a text, as those of Llama 2, TinyLlama and Phi-3 do."""

from __future__ import annotations

from typing import Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from marft.inference.chat_messages import ChatFormat
from marft.models.control_tokens import exempt_reasoning_tags

Kind = Literal["legacy", "always", "first"]
LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
TINY_LLAMA = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PHI_3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}"
    "{{ eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = {"llama2": LLAMA_2, "tinyllama": TINY_LLAMA, "phi3": PHI_3, "mistral": MISTRAL}
WORDS = ("▁yes", "yes", "▁no", "no", "▁It", "It", "▁is")
TOKENS = {"phi3": ("<|end|>", "<|user|>", "<|assistant|>"), "mistral": ("[INST]", "[/INST]")}


def _vocabulary() -> dict[str, int]:
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    letters += ["▁", *map(chr, range(33, 127))]
    steps = [word[:size] for word in WORDS for size in range(2, len(word) + 1)]
    return {token: number for number, token in enumerate(dict.fromkeys(["<unk>", "<s>", "</s>", *letters, *steps]))}


def format_of(template: str, kind: Kind) -> ChatFormat:
    """Return how a model with such a tokenizer is spoken to."""
    merges = dict.fromkeys((word[: size - 1], word[size - 1]) for word in WORDS for size in range(2, len(word) + 1))
    built = Tokenizer(models.BPE(vocab=_vocabulary(), merges=[*merges], byte_fallback=True, unk_token="<unk>"))
    if kind == "legacy":
        built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        built.decoder = decoders.Sequence(strip)
    else:
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
        plain = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=kind, split=False), decoders.Fuse()]
        built.decoder = decoders.Sequence(plain)
    special = ["<s>", "</s>", *TOKENS.get(template, ())]
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATES[template]
    exempt_reasoning_tags(tokenizer)
    end = "<|end|>" if template == "phi3" else "</s>"
    return ChatFormat(tokenizer, 4096, {}, (int(tokenizer.convert_tokens_to_ids(end)),))
