"""How families of models are spoken to: their tokens, what ends a turn, and the text of a chat as they document it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marft.inference.chat_messages import ChatFormat
from marft.models.control_tokens import exempt_reasoning_tags
from marft.models.tokenizer_format import find_stop_ids, fix_date
from tests.chat_templates import (
    BEGINS,
    CALLS,
    CHATML,
    EACH,
    GEMMA_2,
    GEMMA_3,
    GLM_4,
    GRANITE_3,
    HARMONY,
    LLAMA_3,
    LLAMA_32,
    LLAMA_LATER,
    LLAMA_SPECIAL,
    MISTRAL_1,
    MISTRAL_3,
    MISTRAL_7,
    MISTRAL_SPECIAL,
    OLMO_2,
    PHI_3,
    PHI_3_MEDIUM,
    PHI_4,
    PHI_4_MINI,
    PHI_SPECIAL,
    PLAIN_TURNS,
    QWEN3,
    R1,
    SMOLLM3,
    THINK,
    hermes_system,
)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One family of models.

    Args:
        template: ours; a mapping where a family has one of its own for tools.
        special: its control tokens; the first is what ends a turn, and is trained.
        eos: the tokenizer's end of text, where that is another one.
        declared: of generation_config.
        opening: the text of "Be brief." as instructions and "1 + 2?".
        default: that of "1 + 2?" alone.
        later: what comes after ``opening`` once "It is 3." was said and "Sure?" is asked.
        rewrites: why earlier turns cannot stay as they were sampled; "" where they do.
        said: what a model writes, where that is more than "It is 3.".
        whole: the later prompt, where that is not the opening with ``later`` after it.
        marks: tokens that are no control tokens: thoughts, calls.
        tools: how calls are written; "" where the template does not say.
    """

    template: str | dict[str, str]
    special: tuple[str, ...]
    opening: str
    default: str
    later: str
    bos: str = ""
    eos: str = ""
    declared: tuple[str, ...] = ()
    rewrites: str = ""
    said: str = "It is 3."
    drop_truncated: str = ""
    marks: tuple[str, ...] = ()
    tools: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What is said as a message."""
        return self.said.rpartition("<|message|>")[2].strip()


GEMMA: dict[str, Any] = {
    "special": ("<end_of_turn>", "<bos>", "<eos>", "<start_of_turn>"),
    "opening": "<bos><start_of_turn>user\nBe brief.\n\n1 + 2?<end_of_turn>\n<start_of_turn>model\n",
    "default": "<bos><start_of_turn>user\n1 + 2?<end_of_turn>\n<start_of_turn>model\n",
    "later": "It is 3.<end_of_turn>\n<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\n",
    "bos": "<bos>",
    "eos": "<eos>",
}


def chatml(default: str, opening: str = "Be brief.", says: str = "It is 3.") -> dict[str, Any]:
    """The texts of ChatML."""
    asked = "<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    return {
        "opening": f"<|im_start|>system\n{opening}<|im_end|>\n{asked}",
        "default": (f"<|im_start|>system\n{default}<|im_end|>\n" if default else "") + asked,
        "later": f"{says}<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n",
    }


def smollm3(mode: str, begins: str = "") -> dict[str, Any]:
    """The texts of SmolLM3: metadata, then instructions."""
    head = f"## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 26 July 2024\nReasoning Mode: {mode}\n\n"
    own, default = (
        f"{head}## Custom Instructions\n\n{text}\n\n"
        for text in ("Be brief.", "You are a helpful AI assistant named SmolLM, trained by Hugging Face.")
    )
    return {key: text + begins for key, text in chatml(default, own).items()}


def phi(space: str) -> dict[str, Any]:
    """The texts of Phi-3 and Phi-4-mini, which differ in newlines."""
    asked = f"<|user|>{space}1 + 2?<|end|>{space}<|assistant|>{space}"
    return {
        "opening": f"<|system|>{space}Be brief.<|end|>{space}{asked}",
        "default": asked,
        "later": f"It is 3.<|end|>{space}{asked.replace('1 + 2?', 'Sure?')}",
    }


REWRITES, OTHERWISE, LEAVES_OUT = "rewrites what came before", "otherwise than one that begins", "leaves out parts"
THOUGHT = "<think>\nHm.\n</think>\n\nIt is 3."
LLAMA_ASKED = (
    "<|start_header_id|>user<|end_header_id|>\n\n1 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
LLAMA_DATE = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
)
LLAMA: dict[str, Any] = {
    "special": LLAMA_SPECIAL, "bos": "<|begin_of_text|>", "declared": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    "later": LLAMA_LATER, "tools": '{call}',
}  # fmt: skip
QWEN: dict[str, Any] = {
    "special": CHATML, "declared": ("<|im_end|>", "<|endoftext|>"), "marks": (*CALLS, *THINK),
    "tools": "<tool_call>\n{call}\n</tool_call>",
}  # fmt: skip
MISTRAL: dict[str, Any] = {"special": MISTRAL_SPECIAL, "bos": "<s>", "eos": "</s>", "declared": ("</s>",)}
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
HARMONY_HEAD = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    f"Current date: 2024-07-26\n\nReasoning: medium\n\n{CHANNELS}"
)
GRANITE_ASKED = "<|start_of_role|>user<|end_of_role|>1 + 2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
QWEN_DEFAULT = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
SMOL_DEFAULT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
FAMILIES: dict[str, Family] = {
    "qwen2": Family(
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
        + EACH + BEGINS,
        **{**QWEN, "tools": "", "marks": ()}, **chatml("You are a helpful assistant."),
    ),
    "qwen2.5": Family(hermes_system(QWEN_DEFAULT) + PLAIN_TURNS + BEGINS, **QWEN, **chatml(QWEN_DEFAULT)),
    "qwen3": Family(QWEN3, **QWEN, **chatml(""), said=THOUGHT, rewrites=REWRITES),
    "qwen3, no thinking": Family(
        QWEN3, **QWEN, options={"enable_thinking": False}, rewrites=REWRITES,
        **{key: text + "<think>\n\n</think>\n\n" for key, text in chatml("").items()},
        drop_truncated=chatml("")["opening"] + chatml("")["later"] + "<think>\n\n</think>\n\n",
    ),
    "hermes": Family(
        {"default": EACH + BEGINS, "tool_use": hermes_system("") + PLAIN_TURNS + BEGINS}, **QWEN, **chatml("")
    ),
    "smollm2": Family(
        "{% if messages[0].role != 'system' %}<|im_start|>system\n" + SMOL_DEFAULT + "<|im_end|>\n{% endif %}"
        + EACH + BEGINS,
        CHATML, **chatml(SMOL_DEFAULT), declared=("<|im_end|>",),
    ),
    "smollm3": Family(
        SMOLLM3, CHATML, **smollm3("/think"), marks=THINK, said=THOUGHT,
        drop_truncated=smollm3("/think")["opening"] + chatml("", says=THOUGHT)["later"],
    ),
    "smollm3, no thinking": Family(
        SMOLLM3, CHATML, **smollm3("/no_think", "<think>\n\n</think>\n"), marks=THINK,
        options={"enable_thinking": False},
    ),
    "llama3": Family(
        LLAMA_3, **{**LLAMA, "tools": ""}, default=f"<|begin_of_text|>{LLAMA_ASKED}",
        opening=f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>{LLAMA_ASKED}",
    ),
    "llama3.2": Family(
        LLAMA_32, **LLAMA, opening=f"{LLAMA_DATE}Be brief.<|eot_id|>{LLAMA_ASKED}",
        default=f"{LLAMA_DATE}<|eot_id|>{LLAMA_ASKED}",
    ),
    "mistral v0.1": Family(
        MISTRAL_1, **{**MISTRAL, "special": ("</s>", "<s>")}, opening="<s>[INST] Be brief.\n\n1 + 2? [/INST]",
        default="<s>[INST] 1 + 2? [/INST]", later="It is 3.</s> [INST] Sure? [/INST]",
    ),
    "mistral v0.3": Family(
        MISTRAL_3, **MISTRAL, opening="<s>[INST] Be brief.\n\n1 + 2?[/INST]", default="<s>[INST] 1 + 2?[/INST]",
        later=" It is 3.</s>[INST] Sure?[/INST]", said=" It is 3.",
        tools="[TOOL_CALLS] [{call}]",
    ),
    "mistral small": Family(
        MISTRAL_7, **MISTRAL, opening="<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]1 + 2?[/INST]",
        default="<s>[SYSTEM_PROMPT]You are Mistral Small 3. The current date is 2024-07-26.[/SYSTEM_PROMPT]"
        "[INST]1 + 2?[/INST]",
        later="It is 3.</s>[INST]Sure?[/INST]",
    ),
    "gemma2": Family(GEMMA_2, **GEMMA, declared=("<eos>", "<end_of_turn>")),
    "gemma2, as first published": Family(GEMMA_2, **GEMMA, declared=("<eos>",)),
    "gemma3": Family(GEMMA_3, **GEMMA, declared=("<eos>", "<end_of_turn>")),
    "phi3": Family(
        PHI_3, PHI_SPECIAL, **phi("\n"), eos="<|endoftext|>", declared=("<|endoftext|>", "<|assistant|>", "<|end|>")
    ),
    "phi3 medium": Family(
        PHI_3_MEDIUM, PHI_SPECIAL, eos="<|endoftext|>", declared=("<|endoftext|>", "<|end|>"),
        opening="<|user|>\nBe brief.\n\n1 + 2?<|end|>\n<|assistant|>\n", default=phi("\n")["default"],
        later=phi("\n")["later"],
    ),
    "phi4": Family(
        PHI_4, (*CHATML, "<|im_sep|>"), eos="<|endoftext|>", declared=("<|endoftext|>", "<|im_end|>"),
        opening="<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>1 + 2?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>",
        default="<|im_start|>user<|im_sep|>1 + 2?<|im_end|><|im_start|>assistant<|im_sep|>",
        later="It is 3.<|im_end|><|im_start|>user<|im_sep|>Sure?<|im_end|><|im_start|>assistant<|im_sep|>",
    ),
    "phi4 mini": Family(
        PHI_4_MINI, PHI_SPECIAL, **phi(""), eos="<|endoftext|>", declared=("<|end|>", "<|endoftext|>")
    ),
    "olmo2": Family(
        OLMO_2, ("<|endoftext|>",), bos="<|endoftext|>",
        opening="<|endoftext|><|system|>\nBe brief.\n<|user|>\n1 + 2?\n<|assistant|>\n",
        default="<|endoftext|><|user|>\n1 + 2?\n<|assistant|>\n",
        later="It is 3.<|endoftext|>\n<|user|>\nSure?\n<|assistant|>\n",
    ),
    "glm4": Family(
        GLM_4, ("<|user|>", "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>"),
        eos="<|endoftext|>", declared=("<|endoftext|>", "<|user|>", "<|observation|>"), said="\nIt is 3.",
        opening="[gMASK]<sop><|system|>\nBe brief.<|user|>\n1 + 2?<|assistant|>",
        default="[gMASK]<sop><|user|>\n1 + 2?<|assistant|>", later="\nIt is 3.<|user|>\nSure?<|assistant|>",
    ),
    "granite3": Family(
        GRANITE_3, ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
        opening=f"<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n{GRANITE_ASKED}",
        default="<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: April 2024.\nToday's Date: July 26, 2024.\n"
        f"You are Granite, developed by IBM. You are a helpful AI assistant.<|end_of_text|>\n{GRANITE_ASKED}",
        later=f"It is 3.<|end_of_text|>\n{GRANITE_ASKED.replace('1 + 2?', 'Sure?')}",
    ),
    "gpt-oss": Family(
        HARMONY,
        ("<|return|>", "<|call|>", "<|endoftext|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>"),
        declared=("<|return|>", "<|endoftext|>", "<|call|>"), rewrites=LEAVES_OUT,
        said="<|channel|>final<|message|>It is 3.",
        opening=f"{HARMONY_HEAD}<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"
        "<|start|>user<|message|>1 + 2?<|end|><|start|>assistant",
        default=f"{HARMONY_HEAD}<|start|>user<|message|>1 + 2?<|end|><|start|>assistant",
        later="<|channel|>final<|message|>It is 3.<|end|><|start|>user<|message|>Sure?<|end|><|start|>assistant",
    ),
    "deepseek r1 distilled": Family(
        R1, ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"), bos="<｜begin▁of▁sentence｜>",
        marks=THINK, said="Hm.\n</think>\n\nIt is 3.", rewrites=OTHERWISE,
        opening="<｜begin▁of▁sentence｜>Be brief.<｜User｜>1 + 2?<｜Assistant｜><think>\n",
        default="<｜begin▁of▁sentence｜><｜User｜>1 + 2?<｜Assistant｜><think>\n", later="",
        drop_truncated="<｜begin▁of▁sentence｜>Be brief.<｜User｜>1 + 2?<｜Assistant｜>\n\nIt is 3.<｜end▁of▁sentence｜>"
        "<｜User｜>Sure?<｜Assistant｜><think>\n",
    ),
}  # fmt: skip


@cache
def format_of(name: str) -> ChatFormat:
    """How a family's model is spoken to, over letters."""
    family = FAMILIES[name]
    tokenizer = tokenizer_of(family)
    declared = [int(i) for token in family.declared for i in [tokenizer.convert_tokens_to_ids(token)]]
    ends = find_stop_ids(tokenizer, family.options, [declared], len(tokenizer))
    return ChatFormat(tokenizer, 4096, family.options, ends)


def tokenizer_of(family: Family) -> PreTrainedTokenizerBase:
    """A tokenizer of bytes with a family's tokens and template."""
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    built = Tokenizer(models.BPE(vocab=letters, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    built.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.marks])
    ends = {"bos_token": family.bos, "eos_token": family.eos or family.special[0]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, **{key: token for key, token in ends.items() if token})
    template = family.template
    tokenizer.chat_template = fix_date(template, "2024-07-26") if isinstance(template, str) else template
    exempt_reasoning_tags(tokenizer)
    return tokenizer
