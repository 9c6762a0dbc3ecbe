"""Renders chat templates in a process of its own, which `renderer` starts and ends.

A template is a program that comes with a stranger's file. jinja2's sandbox keeps it from what it may not touch; time
and memory are the system's to bound, since one expression can ask for gigabytes. After its imports this process opens
no file, writes none and has little memory; a rendering that takes too much processor time ends it.

Run as `python -I -S worker.py PATH BYTES`: Python's search path as JSON, and the memory it may have. A request
is a line of JSON on standard input, {"template", "variables", "marks", "seconds"}, and its answer a line on standard
output, {"text"} or {"error"}. Nothing of ggufc is imported, so that starting takes a tenth of a second.
"""

import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the parent
    sys.path[:] = json.loads(sys.argv[1])

import jinja2
from jinja2 import ext, nodes, sandbox
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from jinja2.parser import Parser

MOST_TEXT = 16 << 20
"""Characters of a rendered conversation."""
LATE = (
    "{{ strftime_now('%B') | tojson(indent=1) }}",
    "{{ 1 + '' }}",
    "{{",
    "{{ 'a' | wordwrap(1) }}{{ '<b>' | striptags }}{{ lipsum(n=1) }}{{ [1] | pprint }}{{ [1] | random }}",
    "{{ {} | xmlattr }}{{ 'a.b' | urlize }}{{ 'a' | urlencode }}{{ 1 | filesizeformat }}",
    *(
        f"{{{{ 'a'.encode('{codec}') | string }}}}"
        for codec in ("utf-16", "utf-32", "utf-8-sig", "cp1252", "none such")
    ),
)
"""Templates that use what Python and jinja2 import when it is first wanted: once no file can be opened, nothing is."""
_PRINTABLE = (str, int, float, list, tuple, dict, type(None), jinja2.Undefined)


class Arguments(dict[str, Any]):
    """The arguments of a tool's call: a mapping for templates that walk it, and its JSON for those that print it."""

    def __init__(self, text: str) -> None:
        super().__init__(json.loads(text))
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


class GenerationBlocks(ext.Extension):
    """`{% generation %}`, with which a template marks the model's own words for training: its body as it stands."""

    tags = {"generation"}  # noqa: RUF012, jinja2's own declaration

    def parse(self, parser: "Parser") -> list[nodes.Node]:
        """The body, without the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateNamespace(Namespace):
    """`namespace()` without names that begin with an underscore, which could stand for Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template may use the name `self`
        values = dict(*args[1:], **kwargs)
        if any(isinstance(name, str) and name.startswith("_") for name in values):
            raise jinja2.exceptions.SecurityError("a namespace takes no name that begins with an underscore")
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace takes no name such as {name!r}")
        super().__setitem__(name, value)


class _Dict:
    """`dict()`, and nothing of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


def raise_exception(message: object) -> None:
    """What templates call for a conversation that they can't take."""
    raise jinja2.TemplateError(str(message))


def strftime_now(form: str) -> str:
    """The local time."""
    return datetime.now().strftime(form)


def _tojson(marks: str) -> Any:
    """The filter `tojson` as chat templates know it: no HTML escapes, keys in their order, `ensure_ascii` off."""

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        for mark in marks if ensure_ascii else "":
            text = text.replace(f"\\u{ord(mark):04x}", mark)
        return text

    return tojson


def _printed(value: Any) -> Any:
    """A value on its way into the text: data alone."""
    if not isinstance(value, _PRINTABLE):
        raise jinja2.exceptions.SecurityError(f"the template prints a {type(value).__name__}, which is no text")
    return value


@lru_cache(maxsize=8)
def compiled(source: str, marks: str) -> jinja2.Template:
    """A template in Hugging Face's settings, sandboxed."""
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, ext.loopcontrols], finalize=_printed
    )
    environment.filters["tojson"] = _tojson(marks)
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": _Dict(),
        "namespace": TemplateNamespace,
    }
    return environment.from_string(source)


def render(request: dict[str, Any]) -> str:
    """The text of a request.

    Raises:
        jinja2.TemplateError: the template is none, or refuses the conversation; or another error of its own.
    """
    template = compiled(request["template"], request["marks"])
    variables = request["variables"]
    for message in variables.get("messages", ()):
        for call in message.get("tool_calls", ()):
            function = call.get("function", call)
            if "arguments" in function:
                function["arguments"] = Arguments(function["arguments"])
    parts: list[str] = []
    room = MOST_TEXT
    for part in template.generate(**variables):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise jinja2.TemplateError(f"its text is longer than {MOST_TEXT} characters")
    return "".join(parts)


def _answer(line: bytes) -> dict[str, str]:
    """The answer to a request; the system's signal ends the process where it takes more time than it may."""
    try:
        request = json.loads(line)
        _limit(request["seconds"])
        return {"text": render(request)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except jinja2.TemplateError as error:
        return {"error": error.message or type(error).__name__}
    except MemoryError:
        return {"error": "it needs more memory than a template may have"}
    except RecursionError:
        return {"error": "it calls itself, or is nested, without end"}
    except (ImportError, OSError):
        return {"error": "it needs a part of Python that templates don't have, such as a rare encoding"}
    except Exception as error:  # an error of the template, whatever its type
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    finally:
        _limit(0)


def _limit(seconds: float) -> None:
    """Lets this process have so many seconds of the processor from now on, on systems that can; 0 is no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _bound(memory: int) -> None:
    """No files from here on, and no more memory than this; on systems that have such bounds."""
    try:
        import resource
    except ImportError:
        return
    for name, limit in (("RLIMIT_AS", memory), ("RLIMIT_NOFILE", 0), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        if hasattr(resource, name):
            try:
                resource.setrlimit(getattr(resource, name), (limit, limit))
            except (OSError, ValueError):
                continue  # bounded more tightly already, or not at all on this system


def main() -> None:
    """Answers requests until standard input ends."""
    for template in LATE:
        _answer(json.dumps({"template": template, "variables": {}, "marks": "", "seconds": 0}).encode())
    _bound(int(sys.argv[2]))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(_answer(line)).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
