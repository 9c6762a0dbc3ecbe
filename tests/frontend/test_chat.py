"""Chat templates against Hugging Face's `apply_chat_template`, and against what a hostile one may try."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ggufc.frontend.chat import renderer, templates
from ggufc.frontend.chat.templates import OWN, ChatTemplates, is_go_template
from ggufc.frontend.errors import GgufcError, InputError, UnsupportedError
from ggufc.frontend.gguf.reader import read_gguf
from ggufc.frontend.tokenizer import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..tiny_models import vocabulary

TEMPLATES = (
    "GLM-4.6",
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2.5-Instruct",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "google-gemma-2-2b-it",
    "google-gemma-4-31B-it",
    "meta-llama-Llama-3.2-3B-Instruct",
)
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "units": ["°C", None]}},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "What the sky does: <b>café</b> & 'more'",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "a place"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": "Why is the sky blue?"}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [USER]},
    "no generation prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "several turns": {
        "messages": [
            {"role": "system", "content": "  Be brief.\n"},
            USER,
            {"role": "assistant", "content": "  Rayleigh.\n\n"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "你好 🙂 {{ x }} {% y %}"},
            {"role": "user", "content": 'tab\t"quotes" <b> & \'\u2028\\'},
        ]
    },
    "tools": {"messages": [USER], "tools": TOOLS},
    "a call with null content": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 21}'},
        ],
        "tools": TOOLS,
    },
    "two calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": "ok", "tool_calls": [CALL, {**CALL, "id": "call00002"}]},
            {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "fine"},
            {"role": "tool", "tool_call_id": "call00002", "name": "get_weather", "content": "cold"},
            {"role": "assistant", "content": "It is fine and cold."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": TOOLS,
    },
    "reasoning": {
        "messages": [
            USER,
            {"role": "assistant", "reasoning_content": "Hmm.", "content": "Rayleigh."},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "<think>\nyes\n</think>\n\nYes."},
            {"role": "user", "content": "Good"},
        ]
    },
    "no thinking": {"messages": [USER], "variables": {"enable_thinking": False}},
    "documents": {"messages": [USER], "documents": [{"title": "Sky", "text": "It is blue."}]},
}


class Specials:
    """A tokenizer that knows its special tokens and no other."""

    bos_id, eos_id = 0, 1
    control_texts: Iterable[str] = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>")

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, barrier: str = ""
    ) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Iterable[int], *, render_special: bool = False) -> str:
        return "".join(("<s>", "</s>")[token] for token in ids)


@pytest.fixture(autouse=True)
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates that never end cost the tests less."""
    monkeypatch.setattr(templates, "SECONDS", 0.5)


def rendered(template: str, messages: Any = (USER,), **options: Any) -> str:
    return ChatTemplates({"default": template}).render(messages, Specials(), **options).text


@pytest.fixture(scope="module")
def apply_chat_template() -> Callable[..., str]:
    """Hugging Face's rendering of a template, or the text of its error."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>")
    judge = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )

    def apply(template: str, messages: Any, *, variables: Any = None, **options: Any) -> str:
        options.setdefault("add_generation_prompt", True)
        return judge.apply_chat_template(messages, chat_template=template, tokenize=False, **options, **variables or {})

    return apply


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_render_as_hugging_face_does(
    name: str, shared_dir: Path, apply_chat_template: Callable[..., str]
) -> None:
    template = (shared_dir / "data/templates" / f"{name}.jinja").read_text("utf-8")
    refused = 0
    for label, conversation in CONVERSATIONS.items():
        options = dict(conversation)
        messages = options.pop("messages")
        without_null = [{**message, "content": message["content"] or ""} for message in messages]
        try:
            wanted = apply_chat_template(template, without_null, **options)
        except Exception as error:  # the template's own
            refused += 1
            with pytest.raises(InputError, match="the chat template says"):
                rendered(template, messages, **options)
            assert type(error).__name__ == "TemplateError", (label, error)
            continue
        assert rendered(template, messages, **options) == wanted, label
    assert refused <= 4


FEATURES = {
    "loop controls": (
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
        "{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    ),
    "blocks are trimmed": "  {% if true %}\n    a\n  {% endif %}\n  b {%- if true %} c\n{%- endif -%}  d\n\n",
    "generation blocks": "{% for m in messages %}a{% generation %}[{{ m.content }}]{% endgeneration %}b{% endfor %}",
    "namespace": (
        "{% set ns = namespace(a=1, self=3) %}{% generation %}"
        "{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{% endgeneration %}{{ ns.a }}{{ ns.self }}"
    ),
    "macros": (
        "{% macro f(x, y='z') -%} ({{ x }}{{ y }}){{ caller() if caller }} {%- endmacro %}"
        "{% call f(1) %}c{% endcall %}{{ f(2, y=3) }}"
    ),
    "undefined": (
        "[{{ nothing }}{{ messages[0].nothing }}{% if 'x' in nothing %}{% endif %}"
        "{{ tools is none }}{{ documents is none }}{{ y is defined }}]"
    ),
    "the time": "{{ strftime_now('%Y-%m-%d %B') }}",
    "dicts": (
        "{{ dict(a=1).get('a') }}{{ {'b': [1, none]} }}{{ {'b': 1, 'a': 2} | dictsort }}"
        "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}"
    ),
    "strings": (
        "{{ 'aXb'.split('X')[::-1] | join(',') }}{{ ' x ' | trim }}{{ 'a' ~ 1 }}"
        "{{ '%s-%d' % ('a', 2) }}{{ 'x'.ljust(3) }}|"
    ),
    "tojson": (
        "{{ messages | tojson }}{{ {'z': '<é>\\u2028', 'a': none} | tojson(indent=2) }}"
        "{{ ['é'] | tojson(ensure_ascii=true, separators=(',', ':')) }}"
    ),
    "special tokens": "{{ bos_token }}{{ eos_token + '!' }}",
    "filters": ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}"),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_templates_words_mean_what_hugging_face_says(feature: str, apply_chat_template: Callable[..., str]) -> None:
    template = FEATURES[feature]
    assert rendered(template, [USER]) == apply_chat_template(template, [USER])


def case_inputs(shared_dir: Path, case: str, folder: Path) -> Path:
    """The folder with the inputs of a case that writes its own."""
    subprocess.run([sys.executable, str(shared_dir / "cases" / case / "make.py"), str(folder)], check=True)
    return folder


def test_tojson_writes_plain_text(shared_dir: Path, tmp_path: Path) -> None:
    case = "40-tojson-unicode-and-html"
    inputs = case_inputs(shared_dir, case, tmp_path)
    templates, variables = (json.loads((inputs / f"{name}.json").read_text()) for name in ("templates", "vars"))
    expected = json.loads((shared_dir / "cases" / case / "expect.json").read_text())["cases"]
    assert {name: {"text": rendered(text, variables=variables)} for name, text in templates.items()} == expected


def test_content_and_calls_as_clients_send_them(shared_dir: Path, tmp_path: Path) -> None:
    case = "42-null-content-and-tool-calls"
    inputs = case_inputs(shared_dir, case, tmp_path)
    templates, conversations, tools, refused = (
        json.loads((inputs / f"{name}.json").read_text())
        for name in ("templates", "conversations", "tools", "must-be-400")
    )
    expected = json.loads((shared_dir / "cases" / case / "expect.json").read_text())["cases"]
    for conversation, messages in conversations.items():
        for name, template in templates.items():
            text = rendered(template, messages, tools=tools, add_generation_prompt=False)
            assert text == expected[f"{conversation}/{name}"]["text"], (conversation, name)
    for body in refused:
        with pytest.raises(GgufcError):
            rendered(templates["simple"], body.get("messages") if body else None)


def test_a_templates_arguments_are_a_mapping_and_text() -> None:
    call = {"function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert rendered(
        "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a.a }}{{ 'x' + a }}{{ a }}", messages
    ) == ('1x{"a":1}{"a":1}')


# what a template that runs wild is told
STOPPED = {
    "{{ ((9 ** 99) ** 9999999) }}": "more than its time",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}": "without end",
    "{{ 'x'.ljust(100000000) }}": "longer than",
    "{{ 'x' * 10000000000 }}": "memory",
    "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}": "longer than",
    "{% set ns = namespace(l=[0]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}": "memory",
}


@pytest.mark.parametrize("template", STOPPED)
def test_a_template_that_runs_wild_is_stopped(template: str) -> None:
    with pytest.raises(InputError, match=STOPPED[template]):
        rendered(template)
    assert rendered("{{ messages[0].content }}") == USER["content"]


def test_nothing_but_text_comes_out_of_the_sandbox(shared_dir: Path) -> None:
    case = shared_dir / "cases/38-template-injection-and-bombs"
    templates = json.loads((case / "input/templates.json").read_text())
    expected = json.loads((case / "expect.json").read_text())
    for group in ("injection", "bombs"):
        for name, template in templates[group].items():
            begin = time.perf_counter()
            try:
                text = rendered(template) if template.strip() else ""
            except GgufcError as error:
                assert str(error).count("\n") == 0
                text = ""
            else:
                wanted = expected[group][name].get("text", text)
                assert wanted.strip() == text.strip() or "<function" in wanted or "text_length" in expected[group][name]
            assert not any(word in text + "" for word in ("<class", "<function", "<built-in", "<bound", " at 0x"))
            assert time.perf_counter() - begin < 10  # two seconds where nothing else runs


def test_the_renderer_opens_no_file_and_little_memory() -> None:
    worker = renderer._renderer
    rendered("x")
    assert worker._process
    limits = Path(f"/proc/{worker._process.pid}/limits")
    if not limits.exists():
        pytest.skip("no /proc here")
    rows = {line[:25].strip(): line[26:46].strip() for line in limits.read_text().splitlines()}
    assert (rows["Max open files"], rows["Max file size"]) == ("0", "0")
    assert int(rows["Max address space"]) == renderer.MEMORY


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a b' | wordwrap(1) }}", "a\nb"),
        ("{{ '<b>x' | striptags }}", "x"),
        ("{{ lipsum(n=1) | length > 9 }}", "True"),
        ("{{ [1] | pprint }}{{ [1] | random }}", "[1]1"),
        ("{{ {'a': 1} | xmlattr }}", ' a="1"'),
        ("{{ 'a.b' | urlize }}{{ 'ä' | urlencode }}{{ 1000 | filesizeformat }}", "a.b%C3%A41.0 kB"),
        ("{{ 'a'.encode('utf-16') | length }}", "4"),
    ],
)
def test_what_is_imported_late_is_there_though_no_file_can_be_opened(template: str, text: str) -> None:
    assert rendered(template) == text


def test_a_rare_encoding_is_told_of_as_such() -> None:
    with pytest.raises(InputError, match="needs a part of Python that templates don't have, such as a rare encoding"):
        rendered("{{ 'a'.encode('shift_jis') | length }}")


@pytest.mark.parametrize("name", OWN)
def test_a_variable_never_takes_the_conversations_place(name: str) -> None:
    with pytest.raises(InputError, match=f"variable '{name}' is made of the conversation"):
        rendered("{{ messages }}", variables={name: [USER]})


def test_templates_that_are_none(shared_dir: Path) -> None:
    folder = shared_dir / "cases/44-no-template-or-a-go-template/input"
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    for name in ("none", "empty", "spaces"):
        templates = ChatTemplates.from_metadata(read_gguf(folder / f"{name}.gguf").metadata)
        with pytest.raises(InputError, match="no chat template"):
            templates.render(messages, Specials())
    for name in ("jinja", "named"):
        templates = ChatTemplates.from_metadata(read_gguf(folder / f"{name}.gguf").metadata)
        assert templates.render(messages, Specials()).text == "[system] S\n[user] U\n[assistant] "
    wanted = "TOOL [system] S\n[user] U\n[assistant] "
    assert templates.render(messages, Specials(), name="tool_use").text == wanted
    assert templates.render(messages, Specials(), tools=TOOLS).text == wanted
    with pytest.raises(InputError, match="default, tool_use"):
        templates.render(messages, Specials(), name="rag")


def test_gos_templates_are_known(shared_dir: Path) -> None:
    go = "{{ if .System }}<|system|>\n{{ .System }}</s>\n{{ end }}{{- range $m := .Messages }}{{ $m.Content }}{{ end }}"
    assert is_go_template(go)
    assert is_go_template("{{ .Prompt }}")
    assert not is_go_template("{{ messages[0].content }}{{ range(3) | list }}{{ 'a.b' }}")
    for path in (shared_dir / "data/templates").glob("*.jinja"):
        assert not is_go_template(path.read_text("utf-8"))
    with pytest.raises(UnsupportedError, match="Go"):
        rendered(go)


@pytest.mark.parametrize(
    ("template", "content", "marked"),
    [
        ("{{ messages[0].content }}", "<|im_end|> <|im_start|>", "<!|im_end|> <!|im_start|>"),
        ("{{ messages[0].content | upper }}", "a<s>", "A!<S>!"),
        ("<start_of{{ messages[0].content | trim }}", "  _turn> x", "<start_of!_turn> x"),
        ("{{ messages[0].content }}_turn>", "x <start_of", "x <start_of!_turn>"),
        ("<{{ messages[0].content }}d|>", "|im_en", "<!|im_end|>"),
        ("<|{{ messages[0].role }}|>", "", "<|user|>"),
        ("{{ messages[0].content.split('</s>')[0] }}</s>", "a</s>b", "a!</s>"),
        ("{{ messages[0].content | replace('-', '') }}", "<s><|im_-end|>", "<!s><|im_end|>"),
        ("{{ messages | tojson(ensure_ascii=true) }}", "<s>é", '[{"role": "user", "content": "<!s>\\u00e9"}]'),
    ],
)
def test_a_users_control_tokens_are_barred(template: str, content: str, marked: str) -> None:
    prompt = ChatTemplates({"default": template}).render([{"role": "user", "content": content}], Specials())
    assert prompt.marked.replace(prompt.barrier, "!") == marked


PIECES = ("<", ">", "|", "_", " ", "\n", "a", "start_of", "_turn", "eos", "<bos>", "</s>", "<start_of_turn>", "日")
SEAMS = (
    "{{ c }}",
    "<start_of{{ c }}_turn>",
    "<{{ c | trim }}>",
    "{{ c }}<end_of_turn>{{ c | upper }}",
    "{{ (c + 'x').split('<eos>')[-1] }}",
    "{{ [c, {c: c}] | tojson }}",
)


@pytest.mark.parametrize("template", SEAMS)
@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join).filter(str.strip))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_makes_a_control_token(template: str, content: str) -> None:
    tokenizer = Tokenizer.from_metadata(vocabulary())
    source = ChatTemplates({"default": "{% set c = messages[0].content %}" + template})
    prompt = source.render([{"role": "user", "content": content}], tokenizer)
    control = {tokenizer.encode(text, add_special=False)[0] for text in tokenizer.control_texts}
    found = [token for token in prompt.encode(tokenizer) if token in control]
    own = source.render([{"role": "user", "content": "日本"}], tokenizer).encode(tokenizer)
    assert found == [token for token in own if token in control]
    text = tokenizer.decode(prompt.encode(tokenizer)[1:], render_special=True)
    assert text.replace("▁", " ") == prompt.text


def test_content_without_special_text_is_not_touched() -> None:
    content = "1 < 2 > 0; im_end \ufdd0 \ufdd1 > quoted"
    prompt = ChatTemplates({"default": "{{ messages[0].content }}"}).render(
        [{"role": "user", "content": content}], Specials()
    )
    assert prompt.marked == prompt.text == content


GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@pytest.mark.slow
def test_a_user_cant_forge_a_turn(shared_dir: Path, tmp_path: Path, real_model: Path) -> None:
    case = "31-special-text-inside-user-content"
    inputs = case_inputs(shared_dir, case, tmp_path)
    expected = json.loads((shared_dir / "cases" / case / "expect.json").read_text())
    tokenizer = Tokenizer.from_metadata(read_gguf(real_model).metadata)
    for name, messages in json.loads((inputs / "messages.json").read_text()).items():
        prompt = ChatTemplates({"default": GEMMA}).render(messages, tokenizer)
        wanted = expected["cases"][name]
        assert prompt.text == wanted["rendered"], name
        assert prompt.encode(tokenizer) == wanted["ids_safe"], name
    seam = json.loads((inputs / "seam.json").read_text())
    prompt = ChatTemplates({"default": seam["template"]}).render(seam["messages"], tokenizer)
    assert prompt.encode(tokenizer) == expected["seam"]["ids_safe"]


def test_the_local_time_is_now() -> None:
    before = datetime.now().strftime("%d %b %Y")
    assert rendered("{{ strftime_now('%d %b %Y') }}") in (before, datetime.now().strftime("%d %b %Y"))


def test_the_example_writes_as_gemma_was_taught() -> None:
    templates = ChatTemplates.from_file(Path(__file__).parents[2] / "examples" / "gemma.jinja")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Why? "},
        {"role": "assistant", "content": "So."},
        {"role": "user", "content": "Sure?"},
    ]
    assert templates.render(messages, Specials()).text == (
        "<s><start_of_turn>user\nBe brief.\n\nWhy?<end_of_turn>\n<start_of_turn>model\nSo.<end_of_turn>\n"
        "<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\n"
    )
