# ruff: noqa: E501
"""Chat templates in the form of the families that coding agents meet."""

from __future__ import annotations

QWEN_LIKE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.searching and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.searching = false %}{%- set ns.last_query = index %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- set reasoning = '' %}
{%- if message.reasoning_content is string %}
{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}
{{- content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""

LLAMA_LIKE = """\
{{- bos_token }}
{%- set date = strftime_now('%d %b %Y') %}
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date + '\\n\\n' }}
{%- for tool in tools or [] %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{{- system }}{{- '<|eot_id|>' }}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if message.tool_calls|length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}
{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{{- message.content | tojson }}{{- '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim }}{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA_LIKE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
{{- raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

MISTRAL_LIKE = """\
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{%- set ns = namespace(turn=0) %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (ns.turn % 2 == 0) %}
{{- raise_exception('roles must alternate') }}
{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST]' + ((system + '\\n\\n') if loop.first and system else '') + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id|length != 9 %}{{- raise_exception('Tool call IDs should be 9 letters') }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- ' ' + message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + message.content + '}[/TOOL_RESULTS]' }}
{%- else %}
{{- raise_exception('Only user, assistant and tool roles are supported') }}
{%- endif %}
{%- endfor %}
"""

HARMONY_LIKE = """\
{{- '<|start|>system<|message|>You are ChatGPT.<|end|>' }}
{%- if messages[0].role == 'system' %}
{{- '<|start|>developer<|message|>' + messages[0].content + '<|end|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' %}
{%- set later = namespace(final=false) %}
{%- for other in messages[loop.index:] %}
{%- if other.role == 'assistant' and not other.tool_calls %}{%- set later.final = true %}{%- endif %}
{%- endfor %}
{%- if message.tool_calls %}
{%- if message.thinking and message.content %}{{- raise_exception('Cannot pass both content and thinking with tool calls') }}{%- endif %}
{%- if message.thinking and not later.final %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
{%- endif %}
{%- for call in message.tool_calls %}
{{- '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary json<|message|>' }}
{{- call.function.arguments | tojson }}{{- '<|call|>' }}
{%- endfor %}
{%- else %}
{%- if loop.last and not add_generation_prompt and message.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{{- '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson }}{{- '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""

QWEN_THINKING_LIKE = QWEN_LIKE.replace(
    """{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking""",
    """{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking""",
).replace("""{{- '<think>\\n\\n</think>""", """{{- '\\n</think>""")

QWEN_CODER_LIKE = """\
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{%- if system is defined or tools %}
{{- '<|im_start|>system\\n' + (system or 'You are a helpful assistant.') }}
{%- if tools %}
{{- '\\n\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n<function>\\n<name>' + tool.function.name + '</name>' }}
{{- '\\n<description>' + (tool.function.description or '') | trim + '</description>' }}
{{- '\\n<parameters>' + ((tool.function.parameters or {}) | tojson) + '</parameters>\\n</function>' }}
{%- endfor %}
{{- '\\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{{- '<|im_start|>assistant' }}
{%- if message.content and message.content | trim %}{{- '\\n' + (message.content | trim) + '\\n' }}{%- endif %}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}
{{- value if value is string else value | tojson }}
{{- '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user\\n' }}{%- endif %}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>\\n' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

GLM_LIKE = """\
[gMASK]<sop>
{%- if tools %}
{{- '<|system|>\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>' }}
{%- endif %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last_user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|user|>\\n' + message.content }}
{%- elif message.role == 'system' %}
{{- '<|system|>\\n' + message.content }}
{%- elif message.role == 'assistant' %}
{{- '<|assistant|>' }}
{%- set content = message.content %}
{%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
{%- if loop.index0 > ns.last_user and thought %}
{{- '\\n<think>' + thought.strip() + '</think>' }}
{%- else %}
{{- '\\n<think></think>' }}
{%- endif %}
{%- if content.strip() %}{{- '\\n' + content.strip() }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name }}
{%- for name, value in call.function.arguments.items() %}
{{- '\\n<arg_key>' + name + '</arg_key>\\n<arg_value>' }}
{{- value if value is string else value | tojson(ensure_ascii=False) }}
{{- '</arg_value>' }}
{%- endfor %}
{{- '\\n</tool_call>' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}
{%- endif %}
"""
