"""Messages as clients send them, made into those that templates expect."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, UnsupportedError
from ..given import parse_json

Message = Mapping[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Under which names clients send a model's reasoning; templates read the first, some the second."""


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates expect them; see `ChatTemplates.render`.

    Raises:
        InputError: there are none, or one has no role, odd content or arguments that are no JSON object.
        UnsupportedError: a part of a content is no text.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError("no messages: wanted a list with one or more")
    return [_normalised(message, f"messages[{n}]") for n, message in enumerate(messages)]


def _normalised(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"{where}: wanted an object with a role and a content")
    found = {key: value for key, value in message.items() if value is not None}
    if found["role"] == "developer":
        found["role"] = "system"
    found["content"] = _content(found.get("content", ""), f"{where}.content")
    reasoning = next((found[key] for key in REASONING if key in found), None)
    if reasoning is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    if "tool_calls" in found:
        calls = found["tool_calls"]
        if not isinstance(calls, list | tuple):
            raise InputError(f"{where}.tool_calls: wanted a list")
        found["tool_calls"] = [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return found


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not all(isinstance(part, Mapping) for part in content):
        raise InputError(f"{where}: wanted a text or a list of parts")
    for n, part in enumerate(content):
        if part.get("type", "text") != "text":
            raise UnsupportedError(f"{where}[{n}]: of type {str(part['type'])[:40]!r}; models are given text alone")
        if not isinstance(part.get("text"), str):
            raise InputError(f"{where}[{n}]: wanted a part with a text")
    return "".join(part["text"] for part in content)


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool's call whose arguments are the JSON of an object, which the renderer makes a mapping as well."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{where}: wanted a function with a name")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    try:
        is_object = isinstance(parse_json(text or "{}"), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise InputError(f"{where}.function.arguments: no JSON object")
    function = {**function, "arguments": text or "{}"}
    return {**call, "function": function} if "function" in call else function
