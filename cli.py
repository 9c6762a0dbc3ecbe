"""The command line: results on standard output, progress and messages on standard error.

Exit codes: 0 done, 1 a check failed, 2 the input or the words are wrong, 3 this build can't do it, 70 a fault of
ggufc, 71 out of memory, 129 the terminal was closed, 130 interrupted, 141 nobody reads the output any more, 143
terminated.
"""

import dataclasses
import json
import logging
import math
import os
import signal
import sys
import traceback
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn

import click

from .frontend.errors import GgufcError, InputError, UnsupportedError

FAULT, NO_MEMORY, SIGNALLED, NO_READER = 70, 71, 128, 141
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal was closed"}
"""What ends a command in order, with exit code SIGNALLED + its number."""
MEMORY_PHRASES = (
    "failed to map segment",
    "annot allocate memory",
    "can't start new thread",
    "bad_alloc",
    "RESOURCE_EXHAUSTED",
)
"""What the loader, the system and native libraries say when memory is short, in errors of many types."""
MOST_THREADS = 1024
EXPORT_PACKAGES = ("iree", "jax", "jaxlib", "llvmlite")
"""Imported for exporting alone; a device that only runs bundles hasn't them."""
FIRST_STEPS = """\
ggufc compiles a GGUF model into a small program that runs on the file's own bytes. Try first:

  ggufc export model.gguf -o model/     compile it
  ggufc run model/ "Once upon a time"   run it
  ggufc inspect model.gguf              what is in it
  ggufc --help                          everything else
"""


class Cli(click.Group):
    """A group that ends every error in one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> NoReturn:
        _open_streams()
        state = {"debug": False}
        extra |= {"prog_name": "ggufc", "standalone_mode": False, "obj": state}
        try:
            with _interrupts:
                code = super().main(args, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except Exception as error:
            if state["debug"] and not isinstance(error, click.ClickException):
                traceback.print_exc()
            message, code = _explain(error)
            with suppress(OSError):  # a terminal that was closed takes no message
                click.echo(f"ggufc: error: {_printable(message)}", err=True)
            sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush finds a reader
            ctx.exit(NO_READER)
        except KeyboardInterrupt:
            raise click.Abort from None


def _open_streams() -> None:
    """Lets /dev/null stand for standard streams that were closed, so that no file takes their place."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(null, True)
    os.close(null)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


class _Interrupts:
    """Ctrl-C, and the like of it (SIGNALS), that isn't lost and leaves nothing temporary. Libraries swallow it in their
    callbacks: it is repeated where Python tells of that, and between stages `pending`, the signal's number, is looked
    at for where it doesn't. While native modules are imported it would crash them: it is put off until they are
    there."""

    def __init__(self) -> None:
        self.pending = 0
        self._repeats: list[Timer] = []

    def __enter__(self) -> None:
        self.pending = 0
        self._hook, sys.unraisablehook = sys.unraisablehook, self._repeat
        # one that is ignored stays so, as `nohup` and a shell's background want it
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._note) for number in heard}

    def __exit__(self, *_: object) -> None:
        for timer in self._repeats:
            timer.cancel()  # the interrupt got through already: a second one would hit the interpreter's end
        self._repeats.clear()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending and number != signal.SIGINT:
            return  # a closed terminal tells of it more than once: the cleaning up goes on
        self.pending = self.pending or number
        if _importing(frame):
            self._later()
        else:
            signal.default_int_handler(number, frame)

    def _repeat(self, unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._later()
        else:
            self._hook(unraisable)

    def _later(self) -> None:
        self._repeats.append(Timer(0.05, interrupt_main))
        self._repeats[-1].start()


def _importing(frame: FrameType | None) -> bool:
    """Whether a frame is part of an import."""
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


_interrupts = _Interrupts()


def _explain(error: Exception) -> tuple[str, int]:
    """One line for an error, and the exit code."""
    match error:
        case GgufcError():
            return str(error), error.exit_code
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "ggufc"
            return f"{error.format_message()} (see {command} --help)", 2
        case click.ClickException():
            return error.format_message(), error.exit_code
        case click.Abort():
            number = _interrupts.pending or signal.SIGINT
            return SIGNALS[signal.Signals(number)], SIGNALLED + number
        case _ if any(isinstance(e, MemoryError) or any(p in str(e) for p in MEMORY_PHRASES) for e in _chain(error)):
            return "out of memory", NO_MEMORY
        case ModuleNotFoundError(name=str(name)) if name.split(".")[0] in EXPORT_PACKAGES:
            return f"this needs the package {name}, which is not installed; pip install 'ggufc[export]'", 3
        case OSError(filename=None):
            return f"{error.strerror or error}", 2
        case OSError():
            return f"{os.fsdecode(error.filename)}: {error.strerror}", 2
    return f"a fault of ggufc, {type(error).__name__}: {error}; please report what --debug shows", FAULT


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it arose from."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


class _Notes(logging.Handler):
    """What the library wants a user to know, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        _note(record.getMessage())


def _note(text: str) -> None:
    click.echo(f"ggufc: note: {_printable(text)}", err=True)


logging.getLogger("ggufc").addHandler(_Notes())


def _printable(text: str) -> str:
    """The text in one line, without what could move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().obj["debug"] = True


Command = Callable[..., Any]


def _options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, shown in this order."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


_PATH = click.Path(path_type=Path)
_debug = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_set_debug, help="Show where an error arose."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_common = _options(
    click.option(
        "--archdefs", type=_PATH, multiple=True, metavar="DIR", help="Look for definitions of architectures here first."
    ),
    _json,
    _debug,
)
_model = click.argument("model", type=_PATH)
_kv = click.option(
    "--kv", type=click.Choice(["f32", "f16"]), default="f32", show_default=True, help="Type of the KV cache."
)
_weights = click.option(
    "--weights-file", type=_PATH, metavar="FILE", help="The GGUF of a bundle that was moved away from it."
)
_threads = click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), metavar="N", help="Workers; default: one per core."
)
_backend = click.option(
    "--backend", type=click.Choice(["iree", "native", "xla"]), default="iree", show_default=True, help="What runs it."
)
_against = click.option("--against", type=click.Choice(["llama.cpp"]), help="Compare with it too (needs xllamacpp).")


@click.group(cls=Cli, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ggufc", message="%(prog)s %(version)s")
@_debug
@click.pass_context
def main(ctx: click.Context) -> None:
    """Compile a GGUF model into a small program that runs on the file's own bytes.

    MODEL is a .gguf file or a bundle that `ggufc export` wrote.
    """
    if ctx.invoked_subcommand is None:
        click.echo(FIRST_STEPS, nl=False)


class _Progress:
    """Stages with the time that each took, on standard error while it is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._started = 0.0

    def __call__(self, stage: str) -> None:
        self.end()
        if _interrupts.pending:
            raise KeyboardInterrupt
        self._started = perf_counter()
        if self._shown:
            click.echo(f"{stage} ... ", nl=False, err=True)

    def end(self) -> None:
        """Closes the line of the stage that is open."""
        if self._shown and self._started:
            click.echo(f"{perf_counter() - self._started:.1f} s", err=True)
        self._started = 0.0

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@main.command()
@_model
@click.option("-o", "--output", type=_PATH, required=True, metavar="DIR", help="The bundle to write or replace.")
@_kv
@click.option("--copy-weights", is_flag=True, help="Put the weights into the bundle, so that it can be moved alone.")
@_common
def export(model: Path, output: Path, kv: str, copy_weights: bool, archdefs: tuple[Path, ...], as_json: bool) -> None:
    """Compile MODEL into the bundle DIR.

    \b
    Example: ggufc export gemma.gguf -o gemma/
    """
    from .backends.export import export as write

    start = perf_counter()
    with _Progress() as progress:
        bundle = write(model, output, kv=kv, copy_weights=copy_weights, archdefs=archdefs, progress=progress)
    manifest = bundle.manifest
    said = manifest["tokenizer"]
    for note in (*said.get("notes", ()), *([f"{said['missing']}: it runs on ids"] if "missing" in said else [])):
        _note(note)
    report = {
        "bundle": str(bundle.path),
        "architecture": manifest["architecture"]["name"],
        "targets": list(manifest["targets"]),
        "kv": manifest["kv"],
        "files": {name: entry["size"] for name, entry in manifest["files"].items()},
        "weights": manifest["weights"],
        "seconds": perf_counter() - start,
    }
    if as_json:
        _print_json(report)
        return
    held = "copied" if copy_weights else f"linked to {model}"
    _print_table(
        [(name, _size(size)) for name, size in report["files"].items()]
        + [("weights", f"{_size(manifest['weights']['size'])}, {held}"), ("bundle", str(bundle.path))]
    )


@main.command()
@_model
@click.argument("prompt", required=False)
@click.option("-f", "--file", "prompt_file", type=_PATH, metavar="FILE", help="Read the prompt from a file.")
@click.option("--prompt-ids", metavar="IDS", help="Token ids, such as 2,818; fed as they are.")
@click.option(
    "-n", "--tokens", type=click.IntRange(min=0), default=128, show_default=True, help="Most tokens to generate."
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 takes the likeliest token."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the chance above 0.")
@_backend
@_threads
@click.option("--exact", is_flag=True, help="Backend native: float32 arithmetic on dequantized weights.")
@_weights
@_common
def run(
    model: Path,
    prompt: str | None,
    prompt_file: Path | None,
    prompt_ids: str | None,
    tokens: int,
    temperature: float,
    seed: int,
    backend: str,
    threads: int | None,
    exact: bool,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Continue PROMPT with MODEL; without a prompt, standard input is read.

    \b
    Example: ggufc run gemma/ "The capital of France is" -n 32
    """
    from .backends.load import load

    if not math.isfinite(temperature):
        raise InputError(f"--temperature {temperature}: wanted a finite number")
    given = _prompt(prompt, prompt_file, prompt_ids)
    start = perf_counter()
    with _Progress() as progress:
        session = load(
            model,
            backend,
            threads=threads,
            exact=exact,
            weights=weights_file,
            archdefs=archdefs,
            progress=progress,
        )
    tokenizer = _tokenizer(session, needed=isinstance(given, str))
    ids = tokenizer.encode(given) if isinstance(given, str) else given
    loaded = perf_counter()
    stop = tokenizer.eog_ids if tokenizer else ()
    generation = session.generate_ids(ids, max_tokens=tokens, temperature=temperature, seed=seed, stop=stop)
    write: Callable[[str], None] = (lambda text: None) if as_json else _stream
    generated, text, reason, prefilled = _generate(generation, tokenizer and tokenizer.stream(), write)
    ended = perf_counter()
    timings = {
        "load_s": loaded - start,
        "prefill_tok_s": len(ids) / (prefilled - loaded),
        "decode_tok_s": (len(generated) - 1) / (ended - prefilled) if len(generated) > 1 else None,
    }
    if as_json:
        _print_json({"prompt_tokens": len(ids), "tokens": generated, "text": text, "stop": reason, "timings": timings})
        return
    _stream("\n")
    decode = f", {timings['decode_tok_s']:.1f} tok/s" if timings["decode_tok_s"] else ""
    click.echo(
        f"loaded in {timings['load_s']:.2f} s; {len(ids)} prompt tokens, {timings['prefill_tok_s']:.1f} tok/s; "
        f"{len(generated)} generated{decode}; stopped by {reason}",
        err=True,
    )


def _prompt(text: str | None, file: Path | None, ids: str | None) -> str | list[int]:
    """The prompt from the one place where it was given, or from standard input."""
    if sum(given is not None for given in (text, file, ids)) > 1:
        raise InputError("give one of PROMPT, --file and --prompt-ids")
    if ids is not None:
        return _parse_ids(ids)
    if text is not None:
        return text
    if file is not None:
        return _decoded(file.read_bytes(), str(file))
    if sys.stdin.isatty():
        raise InputError('no prompt; give one, as in ggufc run MODEL "Once upon a time"')
    read = sys.stdin.buffer.read()
    if not read:
        raise InputError('no prompt: standard input is empty; give one, as in ggufc run MODEL "Once upon a time"')
    return _decoded(read, "standard input")


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"--prompt-ids {text[:80]!r}: wanted numbers with commas between, such as 2,818") from None


def _decoded(raw: bytes, source: str) -> str:
    """UTF-8, without the line's end that an editor or `echo` leaves."""
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: byte {error.start} is not UTF-8") from None


def _tokenizer(session: Any, needed: bool) -> Any:
    """The tokenizer, with its notes told; None, and why, for a model that runs on ids alone."""
    try:
        tokenizer = session.tokenizer
    except UnsupportedError as error:
        if needed:
            raise
        _note(f"ids instead of text: {error}")
        return None
    for note in tokenizer.notes:
        _note(note)
    return tokenizer


def _generate(generation: Any, stream: Any, write: Callable[[str], None]) -> tuple[list[int], str, str, float]:
    """Runs a generation: its ids, its text, why it ended, and when the prompt was done."""
    ids: list[int] = []
    pieces: list[str] = []
    done = 0.0

    def add(piece: str) -> None:
        pieces.append(piece)
        write(piece)

    while True:
        try:
            token = next(generation)
        except StopIteration as end:
            done = done or perf_counter()
            if stream:
                add(stream.flush())
            return ids, "".join(pieces), end.value, done
        done = done or perf_counter()
        ids.append(token)
        add(stream.push(token) if stream else f"{token} ")


def _stream(text: str) -> None:
    """Prints at once; what the terminal's encoding hasn't becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)


@main.command()
@_model
@_kv
@click.option(
    "--graph",
    type=click.Choice(["prefill", "decode", "forward", "encode"]),
    help="Print an entry point's graph instead.",
)
@click.option("--arch", is_flag=True, help="Print what the definition makes of the model instead, line by line.")
@_weights
@_common
def inspect(
    model: Path,
    kv: str,
    graph: str | None,
    arch: bool,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show what MODEL is and what running it costs.

    \b
    Example: ggufc inspect gemma.gguf --graph decode
    """
    from .backends.inspect import describe, entry_graph
    from .backends.load import located, lowered
    from .graph.report import outline
    from .graph.text import print_graph

    if arch and graph:
        raise InputError("give one of --graph and --arch")
    bundle, file = located(model, weights_file)
    opened = lowered(bundle, file, archdefs)
    kv = bundle.manifest["kv"] if bundle else kv
    if graph:
        text = print_graph(entry_graph(opened, graph, kv))
        _print_json({"graph": text}) if as_json else _stream(text)
        return
    if arch:
        made = outline(opened.definition, opened)
        _print_json(made) if as_json else _print_outline(made)
        return
    found = describe(opened, kv)
    if bundle:
        found["bundle"] = {
            "targets": {name: target["file"] for name, target in bundle.manifest["targets"].items()},
            "files": {name: entry["size"] for name, entry in bundle.manifest["files"].items()},
        }
    if as_json:
        _print_json(found)
        return
    tensors, cache = found["tensors"], found["cache"]
    rows = [
        ("name", found["name"]),
        ("architecture", f"{found['architecture']} ({found['definition']['source']})"),
        ("layers", ", ".join(f"{count} {kind}" for kind, count in found["layers"].items())),
        ("context", f"{found['context_length']} tokens"),
        ("vocabulary", f"{found['vocabulary']} tokens"),
        ("file", _size(found["file_bytes"])),
        *((f"{t} tensors", f"{n['tensors']}, {_size(n['bytes'])}") for t, n in tensors["types"].items()),
        (
            f"{cache['kv']} cache",
            f"{_size(cache['bytes_per_token'])} per token, "
            f"{_size(cache['bytes_per_token_past_windows'])} past the windows",
        ),
        ("read per token", f"{_size(found['decode_bytes']['weights'])} of weights"),
        *((name, _parameter(value)) for name, value in found["hyperparameters"].items()),
    ]
    if bundle:
        rows += [
            ("bundle", name if size is None else f"{name}, {_size(size)}")
            for name, size in found["bundle"]["files"].items()
        ]
    _print_table(rows)


@main.command()
@_model
@_threads
@_against
@_weights
@_common
def verify(
    model: Path,
    threads: int | None,
    against: str | None,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Hold the executors of MODEL against each other; exit code 1 when two disagree.

    The reference is the native backend in exact mode. Bounds on the mean KL divergence, and on the reference's margin
    wherever another token is likeliest: XLA 1e-5 and 0.02 nats (the same arithmetic; no logit differs by more than
    1e-3), the fast kernels 4e-4 and 0.05 (15-bit activations), llama.cpp 2e-2 and 1 (8-bit activations).

    \b
    Example: ggufc verify gemma/ --against llama.cpp
    """
    from .backends.verify import verify as run_checks

    with _Progress() as progress:
        rows = run_checks(
            model,
            threads=threads,
            llama_cpp=against is not None,
            weights=weights_file,
            archdefs=archdefs,
            progress=progress,
        )
    ok = all(row.ok for row in rows)
    if as_json:
        _print_json({"ok": ok, "rows": [dataclasses.asdict(row) for row in rows]})
    else:
        _print_columns(
            ("executor", "against", "max_abs", "mean_kl", "top1_agreement", "fed", ""),
            [
                (
                    r.executor,
                    r.against,
                    f"{r.max_abs:.1e}",
                    f"{r.mean_kl:.1e}",
                    f"{r.top1_agreement:.3f}",
                    r.ids,
                    "ok" if r.ok else f"FAILED: {r.why}",
                )
                for r in rows
            ],
        )
    sys.exit(0 if ok else 1)


@main.command()
@_model
@click.option(
    "-p", "--prompt-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Length of the prompt."
)
@click.option("-n", "--tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens to decode.")
@click.option(
    "-r", "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds; medians are shown."
)
@_backend
@_threads
@_against
@_weights
@_common
def bench(
    model: Path,
    prompt_tokens: int,
    tokens: int,
    rounds: int,
    backend: str,
    threads: int | None,
    against: str | None,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure MODEL's speed, beside the speed at which this machine reads memory.

    \b
    Example: ggufc bench gemma/ --threads 2 --against llama.cpp
    """
    from .backends.bench import bench as measure

    with _Progress() as progress:
        report = measure(
            model,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            threads=threads,
            backend=backend,
            llama_cpp=against is not None,
            rounds=rounds,
            weights=weights_file,
            archdefs=archdefs,
            progress=progress,
        )
    if as_json:
        _print_json(report)
        return
    engines = [("ggufc", report)] + ([("llama.cpp", report["llama.cpp"])] if against else [])
    rows = [
        (
            name,
            f"{e['prefill_tok_s']:.1f}",
            f"{e['decode_tok_s']:.1f}",
            f"{e['decode_gb_s']:.1f}",
            f"{e['load_ms']:.0f}",
            f"{e['peak_rss_mb']:.0f}",
            e["kv"],
        )
        for name, e in engines
    ]
    if against:
        rows.append(("ratio", f"{report['ratio']['prefill']:.2f}", f"{report['ratio']['decode']:.2f}", "", "", "", ""))
    _print_columns(("", "prefill_tok_s", "decode_tok_s", "decode_gb_s", "load_ms", "peak_rss_mb", "kv"), rows)
    click.echo(
        f"{prompt_tokens} prompt tokens, {tokens} decoded, {report['threads']} threads, backend {backend}; "
        f"memory reads {report['bandwidth_gb_s']:.1f} GB/s, decode uses {report['bandwidth_fraction']:.0%} of it"
    )


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1))


def _print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and values, aligned."""
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        _stream(f"{_printable(label):{width}}  {_printable(value)}\n")


def _print_outline(made: dict[str, Any]) -> None:
    """What a definition makes of a model, a line for each of its lines."""
    _print_table([(name, made[name]) for name in ("source", "sha256", "architecture", "kind")])
    rows: list[tuple[int, str, str]] = []
    for entry in made["parameters"]:
        key = f"  ({entry['key']})" if entry["key"] else ""
        rows.append((entry["line"], "parameters", f"{entry['name']} = {_parameter(entry['value'])}{key}"))
    for entry in made["layer_kinds"]:
        rows.append((entry["line"], "layers", f"{entry['kind']}: {_ranges(entry['layers']) or 'none'}"))
    for entry in made["steps"]:
        times = f" x{entry['operations']}" if entry["operations"] > 1 else ""
        made_of = f"{entry['type']}{times}" if entry["operations"] else "no operation"
        step = " ".join((f"{entry['result']} = {entry['operation']}", *entry["tensors"]))
        rows.append((entry["line"], entry["section"], f"{step}: {made_of}"))
    _print_table([(f"{line:4}  {section}", text) for line, section, text in rows])
    _print_table([("not read", name) for name in [*made["ignored"], *made["unread"]]] or [("not read", "nothing")])


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers in short: 0-4, 6."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == number - 1 else number
        ranges.append((first, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a head, the first column to the left and the figures to the right."""
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    for row in (head, *rows):
        cells = [
            f"{cell:<{w}}" if n == 0 else f"{cell:>{w}}" for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        _stream("  ".join(cells).rstrip() + "\n")


def _size(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _parameter(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(set(value)) > 1 else f"{value[0]} in every layer"
    return f"{value:g}" if isinstance(value, float) else str(value)
