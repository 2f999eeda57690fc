"""Model families by their tool calls: a chat template each, the special tokens, and what a model may write.

A template is the official one where TRL's wheel has it (``make templates``). The others are ours. They are small, and lay
out calls as the family's model card and template do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marft.inference.chat_messages import ChatFormat
from marft.models.control_tokens import exempt_reasoning_tags
from marft.models.tokenizer_format import find_stop_ids, fix_date
from tests.chat_templates import hermes_system

WHEELS = Path(__file__).parents[1] / "build" / "templates"
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
XML_CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ToolFamily:
    """One family of models.

    Args:
        template: our template; "" if only the official one is used.
        official: name in TRL's wheel; "" without one.
        special: control tokens; the first end a turn, as many as ``ends``.
        ends: number of tokens that end a turn.
        call: a call of ``add`` with ``{"a": 1}`` as the model writes it.
        malformed: text of a call that cannot be read, by what is wrong with it.
        reasoning: delimiters of reasoning; empty without reasoning.
        begun: the prompt begins the reasoning.
        single: the model makes one call a turn.
        keeps: reasoning of a turn stays in the history while tools are called.
        bare: a turn is either a call or text.
        call_end: token that ends a turn with calls, if the template writes none.
        after_reasoning: text between reasoning and the message.
        forbidden: texts that an argument cannot hold, since they would end it.
    """

    special: tuple[str, ...]
    call: str
    malformed: dict[str, str]
    template: str = ""
    official: str = ""
    ends: int = 1
    marks: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    begun: bool = False
    single: bool = False
    keeps: bool = True
    bare: bool = False
    call_end: str = ""
    after_reasoning: str = "\n\n"
    forbidden: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def _turns(system: str, assistant: str, tool: str, user: str, begin: str, head: str = "") -> str:
    """A template with a part for each role; ``call`` is a call's function, ``thought`` and ``text`` parts of a turn."""
    split = "{% set text = m.content or '' %}"
    if "thought" in assistant:
        split = (
            "{% set text = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
            "{% if '</think>' in text %}{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
            "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        )
    return (
        f"{head}{system}{{% for m in messages %}}{{% if m.role == 'assistant' %}}{split}{assistant}"
        f"{{% elif m.role == 'tool' %}}{tool}{{% elif m.role == 'user' %}}{user}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{begin}{{% endif %}}"
    )


EACH_CALL = "{% for c in m.tool_calls or [] %}{% set call = c.function %}"
SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
CODER = _turns(
    hermes_system(""),
    "<|im_start|>assistant\n{{ text }}" + EACH_CALL + "{% if text and loop.first %}\n{% endif %}"
    "{% if text or not loop.first %}\n{% endif %}<tool_call>\n<function={{ call.name }}>\n"
    "{% for k, v in call.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|im_end|>\n",
    "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}",
    "<|im_start|>user\n{{ m.content }}<|im_end|>\n",
    "<|im_start|>assistant\n",
)
KIMI = _turns(
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% if messages[0].role == 'system' %}<|im_system|>system<|im_middle|>{{ messages[0].content }}<|im_end|>{% endif %}",
    "<|im_assistant|>assistant<|im_middle|>{{ text }}{% if m.tool_calls %}<|tool_calls_section_begin|>"
    "{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>",
    "<|im_system|>{{ m.name }}<|im_middle|>## Return of {{ m.tool_call_id }}\n{{ m.content }}<|im_end|>",
    "<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|>",
    "<|im_assistant|>assistant<|im_middle|>",
)
MINIMAX = _turns(
    "]~!b[]~b]system\n" + SYSTEM + "[e~[\n",
    "]~b]ai\n{% if thought and loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ text }}"
    "{% if m.tool_calls %}\n<minimax:tool_call>\n{% for c in m.tool_calls %}"
    '<invoke name="{{ c.function.name }}">\n{% for k, v in c.function.arguments.items() %}'
    '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}'
    "</minimax:tool_call>{% endif %}[e~[\n",
    "{% if loop.previtem.role != 'tool' %}]~b]tool{% endif %}\n<response>{{ m.content }}</response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}[e~[\n{% endif %}",
    "]~b]user\n{{ m.content }}[e~[\n",
    "]~b]ai\n<think>\n",
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}",
)
MISTRAL_USER = "[INST]{{ m.content }}[/INST]"
MISTRAL_SYSTEM = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
)
MISTRAL_32 = _turns(
    MISTRAL_SYSTEM,
    "{{ text }}" + EACH_CALL + "[TOOL_CALLS]{{ call.name }}[CALL_ID]{{ c.id }}[ARGS]{{ call.arguments | tojson }}"
    "{% endfor %}{{ eos_token }}",
    "[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]", MISTRAL_USER, "",
)  # fmt: skip
MAGISTRAL = (
    MISTRAL_32.replace("[CALL_ID]{{ c.id }}", "").replace("{{ m.tool_call_id }}[TOOL_CONTENT]", "")
    + "{# [THINK] [/THINK] #}"
)
DEEPSEEK_TURNS = (
    "{{ bos_token }}" + SYSTEM,
    "{% if loop.previtem.role != 'tool' %}<｜Assistant｜></think>{% endif %}{{ text }}{% if m.tool_calls %}"
    "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>CALL<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜>{% endif %}{{ eos_token }}",
    "<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>", "<｜User｜>{{ m.content }}",
    "{% if messages[-1].role != 'tool' %}<｜Assistant｜></think>{% endif %}",
)  # fmt: skip
DEEPSEEK_31 = _turns(*DEEPSEEK_TURNS).replace(
    "CALL", "{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}"
)
DEEPSEEK_3 = _turns(*DEEPSEEK_TURNS).replace("<｜Assistant｜></think>", "<｜Assistant｜>").replace(
    "CALL", "{{ c.type + '<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```' }}"
)  # fmt: skip
DSML = _turns(
    "{{ bos_token }}" + SYSTEM,
    "<｜Assistant｜></think>{{ text }}{% if m.tool_calls %}\n\n<｜DSML｜function_calls>\n{% for c in m.tool_calls %}"
    '<｜DSML｜invoke name="{{ c.function.name }}">\n{% for k, v in c.function.arguments.items() %}'
    '<｜DSML｜parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
    "{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n{% endfor %}"
    "</｜DSML｜function_calls>{% endif %}{{ eos_token }}",
    "<function_results><result>{{ m.content }}</result></function_results>", "<｜User｜>{{ m.content }}",
    "<｜Assistant｜></think>",
)  # fmt: skip
LLAMA_4 = _turns(
    "<|begin_of_text|><|header_start|>system<|header_end|>\n\n" + SYSTEM + "<|eot|>",
    "<|header_start|>assistant<|header_end|>\n\n{{ text }}{% if m.tool_calls %}[{% for c in m.tool_calls %}"
    "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}<|eot|>",
    "<|header_start|>ipython<|header_end|>\n\n{{ m.content | tojson }}<|eot|>",
    "<|header_start|>user<|header_end|>\n\n{{ m.content }}<|eot|>",
    "<|header_start|>assistant<|header_end|>\n\n",
)
PHI_4_MINI = _turns(
    "<|system|>{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}<|end|>",
    "<|assistant|>{{ text }}{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}{{ c.function | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]<|/tool_call|>{% endif %}<|end|>",
    "<|tool_response|>{{ m.content }}<|end|>",
    "<|user|>{{ m.content }}<|end|>",
    "<|assistant|>",
)
GLM_47 = _turns(
    "[gMASK]<sop>{% if tools or messages[0].role == 'system' %}<|system|>" + SYSTEM + "{% endif %}",
    "<|assistant|>{% if thought %}<think>{{ thought }}</think>{% else %}</think>{% endif %}{{ text }}" + EACH_CALL
    + "<tool_call>{{ call.name }}{% for k, v in call.arguments.items() %}<arg_key>{{ k }}</arg_key>"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}",
    "{% if loop.previtem.role != 'tool' %}<|observation|>{% endif %}<tool_response>{{ m.content }}</tool_response>",
    "<|user|>{{ m.content }}",
    "<|assistant|><think>",
)  # fmt: skip
SEED = _turns(
    "<seed:bos>system\n" + SYSTEM + "<seed:eos>",
    "<seed:bos>assistant\n{{ text }}" + EACH_CALL + "\n<seed:tool_call>\n<function={{ call.name }}>\n"
    "{% for k, v in call.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}"
    "</function>\n</seed:tool_call>{% endfor %}<seed:eos>",
    "<seed:bos>tool\n{{ m.content }}<seed:eos>", "<seed:bos>user\n{{ m.content }}<seed:eos>", "<seed:bos>assistant\n",
    "{# <seed:think> </seed:think> #}",
)  # fmt: skip

JSON_ERRORS = {
    "truncated": '<tool_call>\n{"name": "add", "arguments": {"a": ',
    "wrong JSON": '<tool_call>\n{"name": "add", "arguments": {a: 1}}\n</tool_call>',
    "other key": '<tool_call>\n{"name": "add", "argument": {"a": 1}}\n</tool_call>',
    "prose": "The <tool_call> tag begins a call.",
}
XML_ERRORS = {
    "truncated": "<tool_call>\n<function=add>\n<parameter=a>\n1",
    "no end": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n",
    "twice": XML_CALL.replace("</function>", "<parameter=a>\n2\n</parameter>\n</function>"),
    "other text": XML_CALL.replace("<parameter", "so <parameter"),
    "prose": "The <tool_call> tag begins a call.",
}
GLM_ERRORS = {
    "truncated": "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1",
    "no value": "<tool_call>add\n<arg_key>a</arg_key>\n</tool_call>",
    "no name": "<tool_call>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "prose": "The <tool_call> tag begins a call.",
}
FAMILIES: dict[str, ToolFamily] = {
    "Qwen 2.5 (Hermes)": ToolFamily(
        ("<|im_end|>", *CHATML[::2]), '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', JSON_ERRORS,
        official="qwen2_5", marks=("<tool_call>", "</tool_call>"),
    ),
    "Qwen 3 (Hermes)": ToolFamily(
        ("<|im_end|>", *CHATML[::2]), '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', JSON_ERRORS,
        official="qwen3", marks=("<tool_call>", "</tool_call>", "<think>", "</think>"), reasoning=("<think>", "</think>"),
    ),
    "Qwen3-Coder": ToolFamily(
        ("<|im_end|>", *CHATML[::2]), XML_CALL, XML_ERRORS, CODER, marks=("<tool_call>", "</tool_call>"),
        forbidden=("</parameter>", "<function=", "<tool_call>"),
    ),
    "Qwen 3.5": ToolFamily(
        ("<|im_end|>", *CHATML[::2]), XML_CALL, XML_ERRORS, official="qwen3_5_think", begun=True,
        marks=("<tool_call>", "</tool_call>", "<think>", "</think>"), reasoning=("<think>", "</think>"),
        forbidden=("</parameter>", "<function=", "<tool_call>"),
    ),
    "Qwen 3.8": ToolFamily(
        ("<|im_end|>", *CHATML[::2]), XML_CALL, XML_ERRORS, official="qwen3_8", begun=True,
        marks=("<tool_call>", "</tool_call>", "<think>", "</think>"), reasoning=("<think>", "</think>"),
        forbidden=("</parameter>", "<function=", "<tool_call>"),
    ),
    "Nemotron 3": ToolFamily(
        ("<|im_end|>", *CHATML[::2]), XML_CALL, XML_ERRORS, official="nemotron_3_super", begun=True, after_reasoning="\n",
        marks=("<tool_call>", "</tool_call>", "<think>", "</think>"), reasoning=("<think>", "</think>"),
        forbidden=("</parameter>", "<function=", "<tool_call>"),
    ),
    "GLM 4.5": ToolFamily(
        ("<|user|>", "<|observation|>", "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", GLM_ERRORS, official="glm4moe",
        ends=3, marks=("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        reasoning=("<think>", "</think>"), forbidden=("</arg_value>", "<tool_call>"), call_end="<|observation|>",
    ),
    "GLM 4.7": ToolFamily(
        ("<|user|>", "<|observation|>", "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", GLM_ERRORS, GLM_47, ends=3, begun=True,
        marks=("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        reasoning=("<think>", "</think>"), forbidden=("</arg_value>", "<tool_call>"), call_end="<|observation|>",
    ),
    "gpt-oss (harmony)": ToolFamily(
        ("<|return|>", "<|call|>", "<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}', {
            "truncated": '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": ',
            "no message": "<|channel|>commentary to=functions.add",
            "wrong JSON": " to=functions.add<|channel|>commentary json<|message|>a = 1",
        }, official="gptoss", ends=3, single=True,
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    ),
    "DeepSeek 3, R1": ToolFamily(
        (DEEPSEEK[1], DEEPSEEK[0], *DEEPSEEK[2:]),
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        {
            "truncated": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": ',
            "no name": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{"a": 1}<｜tool▁call▁end｜>',
            "no call": "<｜tool▁calls▁begin｜>add<｜tool▁calls▁end｜>",
        },
        DEEPSEEK_3,
    ),
    "DeepSeek 3.1": ToolFamily(
        (DEEPSEEK[1], DEEPSEEK[0], *DEEPSEEK[2:]),
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        {
            "truncated": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": ',
            "no name": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{"a": 1}<｜tool▁call▁end｜>',
        },
        DEEPSEEK_31,
    ),
    "DeepSeek 3.2": ToolFamily(
        (DEEPSEEK[1], DEEPSEEK[0], *DEEPSEEK[2:]),
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="a" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        {
            "truncated": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="a" string="false">1',
            "no call": "<｜DSML｜function_calls>\nadd</｜DSML｜function_calls>",
        },
        DSML, forbidden=("</｜DSML｜parameter>", "<｜DSML｜"),
    ),
    "Kimi K2": ToolFamily(
        ("<|im_end|>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
         "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        {
            "truncated": '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a"',
            "no arguments": "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_end|>",
        },
        KIMI,
    ),
    "Llama 3 (JSON)": ToolFamily(
        ("<|eot_id|>", "<|eom_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
        '{"name": "add", "parameters": {"a": 1}}', {
            "truncated": '{"name": "add", "parameters": {"a": ', "wrong JSON": '{"name": "add", "parameters": {a: 1}}',
        }, official="llama3_1", ends=2, single=True, bare=True,
    ),
    "Llama 4 (Python)": ToolFamily(
        ("<|eot|>", "<|eom|>", "<|begin_of_text|>", "<|header_start|>", "<|header_end|>", "<|python_tag|>"), "[add(a=1)]", {
            "truncated": "[add(a=", "no names": "[add(1)]", "code": "[add(a=1 + len('a'))]",
        }, LLAMA_4, ends=2, bare=True,
    ),
    "Mistral Small 3.2": ToolFamily(
        ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
         "[TOOL_CONTENT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        '[TOOL_CALLS]add[CALL_ID]call00000[ARGS]{"a": 1}', {
            "truncated": '[TOOL_CALLS]add[CALL_ID]call00000[ARGS]{"a": ', "no arguments": "[TOOL_CALLS]add",
        }, MISTRAL_32,
    ),
    "Magistral, Ministral 3": ToolFamily(
        ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[THINK]",
         "[/THINK]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        '[TOOL_CALLS]add[ARGS]{"a": 1}', {
            "truncated": '[TOOL_CALLS]add[ARGS]{"a": ', "no arguments": "[TOOL_CALLS]add", "no JSON": "[TOOL_CALLS]add[ARGS]a",
        }, MAGISTRAL, reasoning=("[THINK]", "[/THINK]"),
    ),
    "Gemma 4": ToolFamily(
        ("<turn|>", "<|tool_response>", "<|turn>", "<bos>", "<eos>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
         "<tool_response|>", "<|tool>", "<tool|>", '<|"|>'),
        "<|tool_call>call:add{a:1}<tool_call|>", {
            "truncated": "<|tool_call>call:add{a:", "no name": "<|tool_call>{a:1}<tool_call|>",
            "open string": '<|tool_call>call:add{a:<|"|>1}<tool_call|>',
        }, official="gemma4_v5", ends=2, reasoning=("<|channel>thought\n", "\n<channel|>"), forbidden=('<|"|>',),
        options={"enable_thinking": True},
    ),
    "MiniMax M2": ToolFamily(
        ("[e~[", "]~b]", "]~!b["),
        '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>', {
            "truncated": '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1',
            "no call": "<minimax:tool_call>\nadd\n</minimax:tool_call>",
        }, MINIMAX, marks=("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"), begun=True,
        reasoning=("<think>", "</think>"), forbidden=("</parameter>", "<invoke", "<minimax:tool_call>"),
    ),
    "Phi-4-mini": ToolFamily(
        ("<|end|>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|/tool|>", "<|tool_call|>",
         "<|/tool_call|>", "<|tool_response|>"),
        '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|>', {
            "truncated": '<|tool_call|>[{"name": "add", "arguments": {"a": ', "no list": "<|tool_call|>add<|/tool_call|>",
        }, PHI_4_MINI, ends=2,
    ),
    "Seed-OSS": ToolFamily(
        ("<seed:eos>", "<seed:bos>"),
        "<seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>", {
            "truncated": "<seed:tool_call>\n<function=add>\n<parameter=a>1", "no call": "<seed:tool_call>\nadd",
        }, SEED, marks=("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
        reasoning=("<seed:think>", "</seed:think>"), keeps=False, forbidden=("</parameter>", "<function=", "<seed:tool_call>"),
    ),
}  # fmt: skip


def official_template(name: str) -> str:
    """Return a template of TRL's wheel; "" if the wheel is missing."""
    wheel = max(WHEELS.glob("trl-*.whl"), default=None)
    if wheel is None:
        return ""
    with ZipFile(wheel) as files:
        return files.read(f"trl/chat_templates/{name}.jinja").decode()


@cache
def chat_format(name: str) -> ChatFormat | None:
    """Return a family's chat format over a tokenizer of bytes; None without a template."""
    family = FAMILIES[name]
    template = family.template or official_template(family.official)
    if not template:
        return None
    tokenizer = byte_tokenizer(family.special, family.marks, template)
    declared = [int(tokenizer.get_vocab()[token]) for token in family.special[: family.ends]]
    stop_ids = find_stop_ids(tokenizer, family.options, [declared], len(tokenizer))
    return ChatFormat(tokenizer, 8192, family.options, stop_ids)


def byte_tokenizer(special: tuple[str, ...], marks: tuple[str, ...], template: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer of bytes with special tokens, other added tokens, and a template."""
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    built = Tokenizer(models.BPE(vocab=letters, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    built.add_tokens([AddedToken(token, special=False, normalized=False) for token in marks])
    bos = next((token for token in special if "begin" in token or token in ("<s>", "<bos>")), special[0])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, bos_token=bos, eos_token=special[0])
    tokenizer.chat_template = fix_date(template, "2024-07-26")
    exempt_reasoning_tags(tokenizer)
    return tokenizer
