"""`ggufc inspect`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..frontend.errors import InputError
from .options import PATH, common_options, kv_option, layers_option, model_argument, weights_option
from .output import parameter_text, print_json, print_table, size_text, stream_text, tell, write_file

NOTHING_UNREAD = ("not read", "nothing")


@click.command(short_help="Show what MODEL is and what it costs.")
@model_argument
@kv_option
@click.option(
    "--graph",
    type=click.Choice(["prefill", "decode", "decode_greedy", "forward", "encode"]),
    help="Print an entry point's graph instead.",
)
@layers_option
@click.option("--html", type=PATH, metavar="FILE", help="Write one page with layers, shapes, types and sizes instead.")
@click.option("--speed", is_flag=True, help="Measure how fast memory is read, and say what that makes in tokens.")
@click.option("--arch", is_flag=True, help="Print what the definition makes of the model instead, line by line.")
@weights_option
@common_options
def inspect(
    model: Path,
    kv: str | None,
    graph: str | None,
    layers: int | None,
    html: Path | None,
    speed: bool,
    arch: bool,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show what MODEL is and what running it costs.

    \b
    Example: ggufc inspect gemma.gguf
             ggufc inspect gemma.gguf --graph decode
             ggufc inspect gemma3:270m --arch
             ggufc inspect gemma.gguf --speed
             ggufc inspect gemma.gguf --html gemma.html
    """
    from ..backends.bundles.source import check_own_kv, located, lowered
    from ..backends.caches import chosen_kv
    from ..backends.host.cores import usable_cores
    from ..backends.reports.inspect import describe, entry_graph
    from ..backends.reports.memory import lengths, plan, predicted_speed
    from ..backends.reports.page import page
    from ..graph.report import outline
    from ..graph.text import print_graph
    from ..passes.first_layers import first_layers
    from ..passes.pipeline import entry_graphs

    if bool(arch) + bool(graph) + bool(html) > 1:
        raise InputError("give one of --graph, --arch and --html")
    bundle, file = located(model, weights_file)
    check_own_kv(bundle, kv)
    opened = first_layers(lowered(bundle, file, archdefs, all_read=not arch), layers)
    if arch:
        made = outline(opened.definition, opened)
        print_json(made) if as_json else _print_outline(made)
        opened.check_read()
        entry_graphs(opened, "f32", fuse=False)  # which proves that all keys and values are this call's own
        return
    kv_type: str = bundle.manifest["kv"] if bundle else chosen_kv(opened.graph, kv)
    if graph:
        text = print_graph(entry_graph(opened, graph, kv_type))
        print_json({"graph": text}) if as_json else stream_text(text)
        return
    found: dict[str, Any] = describe(opened, kv_type) | {"memory": plan(opened)}
    if bundle:
        found["bundle"] = {
            "targets": {name: target.get("file") for name, target in bundle.manifest["targets"].items()},
            "files": {name: entry["size"] for name, entry in bundle.manifest["files"].items()},
        }
    if speed and found["kind"] == "decoder":
        positions = lengths(opened.context_length)
        found["speed"] = predicted_speed(opened, kv_type, usable_cores(), positions)
    if html:
        shown = "prefill" if found["kind"] == "decoder" else "encode"
        write_file(html, page(opened, entry_graph(opened, shown, kv_type), found))
        print_json({"html": str(html)}) if as_json else tell(f"wrote {html}")
        return
    if as_json:
        print_json(found)
        return
    rows = [
        ("name", found["name"]),
        ("architecture", f"{found['architecture']} ({found['definition']['source']})"),
        ("layers", ", ".join(f"{count} {kind}".rstrip() for kind, count in found["layers"].items())),
        ("context", f"{found['context_length']} tokens"),
        ("vocabulary", f"{found['vocabulary']} tokens"),
        ("file", size_text(found["file_bytes"])),
        *((f"{t} tensors", f"{n['tensors']}, {size_text(n['bytes'])}") for t, n in found["tensors"]["types"].items()),
        *(_costs_of_a_token(found) if found["kind"] == "decoder" else []),
        *_memory(found),
        *((name, parameter_text(value)) for name, value in found["hyperparameters"].items()),
    ]
    if bundle:
        rows += [
            ("bundle", name if size is None else f"{name}, {size_text(size)}")
            for name, size in found["bundle"]["files"].items()
        ]
    print_table(rows)


def _costs_of_a_token(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What a token of a decoder takes and reads."""
    cache = found["cache"]
    grows = f"{size_text(cache['bytes_per_token'])} per token"
    past = f"{size_text(cache['bytes_per_token_past_windows'])} past the windows"
    return [
        (f"{cache['kv']} cache", f"{grows}, {past}"),
        ("read per token", f"{size_text(found['decode_bytes']['weights'])} of weights"),
    ]


def _memory(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The memory plan, and how fast memory lets a token be."""
    memory, kv = found["memory"], found["cache"]["kv"]
    rows = [("weights, mapped", size_text(memory["weights"]))]
    rows += [
        (f"{kind} cache{', as chosen' if kind == kv else ''}", _by_length(sizes, size_text))
        for kind, sizes in memory["caches"].items()
    ]
    rows += [(f"scratch, {n} token{'s' if n > 1 else ''}", size_text(size)) for n, size in memory["scratch"].items()]
    if "speed" in found:
        speed = found["speed"]
        rows.append(("memory reads", f"{speed['read_gb_s']:.1f} GB/s on {speed['threads']} threads"))
        rows.append(("decode, at most", _by_length(speed["decode_tok_s"], lambda rate: f"{rate:.1f} tok/s")))
    return rows


def _by_length(values: dict[int, Any], shown: Callable[[Any], str]) -> str:
    return ", ".join(f"{shown(value)} at {length}" for length, value in values.items())


def _print_outline(made: dict[str, Any]) -> None:
    """What a definition makes of a model, a line for each of its lines."""
    print_table([(name, made[name]) for name in ("source", "sha256", "architecture", "kind")])
    rows: list[tuple[int, str, str]] = []
    for entry in made["parameters"]:
        key = f"  ({entry['key']})" if entry["key"] else ""
        rows.append((entry["line"], "parameters", f"{entry['name']} = {parameter_text(entry['value'])}{key}"))
    for entry in made["layer_kinds"]:
        rows.append((entry["line"], "layers", f"{entry['kind']}: {_ranges(entry['layers']) or 'none'}"))
    for entry in made["steps"]:
        times = f" x{entry['operations']}" if entry["operations"] > 1 else ""
        made_of = f"{entry['type']}{times}" if entry["operations"] else "no operation"
        step = " ".join((f"{entry['result']} = {entry['operation']}", *entry["tensors"]))
        rows.append((entry["line"], entry["section"], f"{step}: {made_of}"))
    print_table([(f"{line:4}  {section}", text) for line, section, text in rows])
    print_table(
        [
            *(("ignored", kind) for kind in _kinds(made["ignored"])),
            *(("key", f"{key}: no parameter asks for it") for key in made["unread_keys"]),
            *([("not read", text) for text in (*_kinds(made["unread_tensors"]), *made["unread"])] or [NOTHING_UNREAD]),
        ]
    )


def _kinds(names: Sequence[str]) -> list[str]:
    """Tensors in short, with the number of those that are alike."""
    from ..graph.model import kinds_of

    return [f"{kind} x{count}" if count > 1 else kind for kind, count in kinds_of(names).items()]


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers in short: 0-4, 6."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == number - 1 else number
        ranges.append((first, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
