"""The chat layout: one text for a row of messages, and the same layout as a Jinja template for the tokenizer.

`render` is the fast form that the corpus uses; a test holds the template to it. Earlier thoughts never enter the
history.
"""

TURN, END_OF_TURN = "<|turn>", "<turn|>"
THINK = "<|think|>"
CHANNEL, END_OF_CHANNEL = "<|channel>", "<channel|>"
BOS, EOS, PAD, UNK = "<bos>", "<eos>", "<pad>", "<unk>"
TOOL_RESPONSE = "<|tool_response>"
IMAGE_START, IMAGE, IMAGE_END = "<|image>", "<|image|>", "<image|>"

NO_THOUGHT = f"{CHANNEL}thought\n{END_OF_CHANNEL}"

CHAT_TEMPLATE = """\
{%- set thinking = enable_thinking is defined and enable_thinking -%}
{%- macro plain(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part['type'] == 'text' -%}{{- part['text'] -}}
      {%- elif part['type'] == 'image' -%}{{- '<|image|>' -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro spoken(content) -%}
  {%- set kept = namespace(text='') -%}
  {%- for piece in plain(content).split('<channel|>') -%}
    {%- set kept.text = kept.text + piece.split('<|channel>')[0] -%}
  {%- endfor -%}
  {{- kept.text | trim -}}
{%- endmacro -%}
{{- bos_token -}}
{%- set has_system = messages and messages[0]['role'] in ['system', 'developer'] -%}
{%- if has_system or thinking -%}
  {{- '<|turn>system\\n' -}}
  {%- if thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
  {%- if has_system -%}{{- plain(messages[0]['content']) | trim -}}{%- endif -%}
  {{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if not (loop.first and has_system) -%}
    {%- if message['role'] == 'assistant' or message['role'] == 'model' -%}
      {{- '<|turn>model\\n' + spoken(message['content']) + '<turn|>\\n' -}}
    {%- elif message['role'] == 'user' -%}
      {{- '<|turn>user\\n' + (plain(message['content']) | trim) + '<turn|>\\n' -}}
    {%- elif message['role'] in ['system', 'developer'] -%}
      {{- '<|turn>system\\n' + (plain(message['content']) | trim) + '<turn|>\\n' -}}
    {%- else -%}
      {{- raise_exception('This template knows the roles system, user and assistant, not ' + message['role']) -}}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|turn>model\\n' -}}
  {%- if not thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""


def render(turns: list[tuple[str, str]], *, system: str | None = None, thinking: bool = False) -> str:
    """The prompt for (role, text) turns, roles `user` and `model`, ending where the model's next turn begins."""
    out = [BOS]
    if system is not None or thinking:
        out.append(
            f"{TURN}system\n{THINK + chr(10) if thinking else ''}{(system or '').strip()}{END_OF_TURN}\n"
        )
    out += [f"{TURN}{role}\n{text.strip()}{END_OF_TURN}\n" for role, text in turns]
    out.append(f"{TURN}model\n{'' if thinking else NO_THOUGHT}")
    return "".join(out)


def with_thought(thought: str, answer: str) -> str:
    """What the model writes when it thinks first."""
    return f"{CHANNEL}thought\n{thought}{END_OF_CHANNEL}{answer}"
