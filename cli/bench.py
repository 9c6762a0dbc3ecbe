"""`ggufc bench`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..backends.host.cores import MOST_THREADS
from ..frontend.errors import InputError, shown
from .options import (
    PATH,
    Whole,
    against_option,
    backend_option,
    common_options,
    kv_option,
    optional_model_argument,
    weights_option,
)
from .output import print_columns, print_json, stream_text, tell, write_file
from .progress import Progress

EVERY_TYPE = "all"


def _numbers(low: int, high: int = 2**31 - 1) -> Callable[[click.Context, click.Parameter, Sequence[str]], list[int]]:
    """Whole numbers from words such as `32,512`, given once or several times."""

    def parse(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> list[int]:
        found: dict[int, None] = {}
        for word in (word.strip() for line in given for word in line.split(",")):
            number = int(word) if word.isascii() and word.isdigit() and len(word) <= 10 else -1
            if not low <= number <= high:
                raise click.BadParameter(f"{shown(word)}: wanted whole numbers from {low} to {high}", ctx, parameter)
            found[number] = None
        return list(found)

    return parse


def _numbers_option(*names: str, low: int, text: str, default: Sequence[str] = (), high: int = 2**31 - 1) -> Any:
    return click.option(
        *names,
        multiple=True,
        metavar="N[,N...]",
        default=default,
        callback=_numbers(low, high),
        help=f"{text}; default: {','.join(default)}." if default else text,
    )


@click.command(short_help="Measure MODEL's speed.")
@optional_model_argument
@_numbers_option("-p", "--prompt-tokens", low=1, default=["512"], text="Lengths of prompts")
@_numbers_option("-n", "--tokens", low=1, default=["128"], text="Numbers of tokens to decode")
@_numbers_option("--depth", "depths", low=0, text="Tokens before the first that is decoded; default: each prompt.")
@_numbers_option("--threads", low=1, high=MOST_THREADS, text="Workers; default: one per core.")
@click.option("-r", "--rounds", type=Whole(min=1), default=5, show_default=True, help="Rounds; medians are shown.")
@click.option("--ops", is_flag=True, help="Show where the time goes, by operations of the native backend.")
@click.option(
    "--types",
    is_flag=False,
    flag_value=EVERY_TYPE,
    metavar="TYPES",
    help="Measure a 4096x4096 matrix of every type of weights, or of those named, as q4_k,q8_0; needs no MODEL.",
)
@click.option("--plot", "drawing", type=PATH, metavar="FILE.svg", help="Draw it beside what the memory allows.")
@backend_option
@kv_option
@against_option
@weights_option
@common_options
def bench(
    model: Path | None,
    prompt_tokens: list[int],
    tokens: list[int],
    depths: list[int],
    threads: list[int],
    rounds: int,
    ops: bool,
    types: str | None,
    drawing: Path | None,
    backend: str,
    kv: str | None,
    against: str | None,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure MODEL's speed, beside the speed at which this machine reads memory.

    \b
    Example: ggufc bench gemma/
             ggufc bench gemma/ --threads 1,2 --against llama.cpp
             ggufc bench gemma/ -p 32,512 --depth 0,512 --plot speed.svg
             ggufc bench gemma/ -n 16 --ops
             ggufc bench gemma.gguf --kv q8_0
             ggufc bench --types q4_k --threads 1
    """
    if model is None and (types is None or ops or drawing):
        raise click.UsageError("missing argument 'MODEL'; --types alone goes without one")
    if drawing is not None and not drawing.absolute().parent.is_dir():
        raise InputError(f"{drawing}: no folder {drawing.absolute().parent} to put it in")
    from ..backends.reports.bench.plot import plot
    from ..backends.reports.bench.speed import bench as measure

    report: dict[str, Any] = {}
    with Progress() as progress:
        if model is not None:
            report = measure(
                model,
                prompts=prompt_tokens,
                tokens=tokens,
                depths=depths,
                threads=threads,
                backend=backend,
                kv=kv,
                llama_cpp=against is not None,
                rounds=rounds,
                weights=weights_file,
                archdefs=archdefs,
                progress=progress,
            )
        if model is not None and ops:
            from ..backends.reports.bench.operations import profile

            report["operations"] = profile(
                model,
                prompt_tokens=prompt_tokens[0],
                depth=(depths or prompt_tokens)[0],
                threads=threads,
                runs=rounds,
                kv=kv,
                weights=weights_file,
                archdefs=archdefs,
                progress=progress,
            )
        if types is not None:
            from ..backends.reports.bench.weight_types import bench_types

            chosen = () if types == EVERY_TYPE else types.lower().split(",")
            report["types"] = bench_types(chosen, threads=threads, progress=progress)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if drawing is not None:
        write_file(drawing, plot(report))


def _print_report(report: Mapping[str, Any]) -> None:
    if "model" in report:
        _print_speeds(report)
    for table in report.get("operations", ()):
        _print_operations(table)
    if "types" in report:
        _print_types(report["types"])
    for note in (*report.get("notes", ()), *report.get("types", {}).get("notes", ())):
        tell(note)


def _print_speeds(report: Mapping[str, Any]) -> None:
    engines = ["ggufc", "llama.cpp"] if "llama.cpp" in report else ["ggufc"]
    ratio = ("ratio",) if len(engines) > 1 else ()
    for word in ("prefill", "encode"):
        if word in report:
            rows = [
                (
                    f"{row['threads']}",
                    f"{row['tokens']}",
                    *(f"{row[name]['tok_s']:.1f}" for name in engines),
                    *(f"{row[key]:.2f}" for key in ratio),
                )
                for row in report[word]
            ]
            _print_titled(f"{word}, tokens/s", ("threads", "tokens", *engines, *ratio), rows)
    if "decode" in report:
        rows = [
            (
                f"{row['threads']}",
                f"{row['depth']}",
                f"{row['tokens']}",
                *(f"{row[name]['tok_s']:.1f}" for name in engines),
                *(f"{row[key]:.2f}" for key in ratio),
                f"{row['limit_tok_s']:.1f}",
                f"{row['ggufc']['gb_s']:.1f}",
                f"{row['fraction']:.0%}",
            )
            for row in report["decode"]
        ]
        head = ("threads", "depth", "tokens", *engines, *ratio, "limit", "GB/s", "of memory's")
        _print_titled("decode, tokens/s", head, rows)
    rows = [
        (f"{row['threads']}", name, f"{row[name]['load_ms']:.0f}", f"{row[name]['peak_rss_mb']:.0f}")
        for row in report["loads"]
        for name in engines
    ]
    _print_titled("loading", ("threads", "engine", "ms", "resident MB"), rows)
    rows = [
        (f"{row['threads']}", f"{row['gb_s']:.1f}", f"{row['lowest']:.1f}", f"{row['highest']:.1f}")
        for row in report["bandwidth"]
    ]
    _print_titled("memory's read speed, GB/s", ("threads", "median", "lowest", "highest"), rows)
    shown = [report["model"], f"backend {report['backend']}", f"medians of {report['rounds']} rounds"]
    if "kv" in report:
        shown += [f"KV cache of {name} {(report if name == 'ggufc' else report[name])['kv']}" for name in engines]
    stream_text(f"{', '.join(shown)}\n\n")


def _print_operations(table: Mapping[str, Any]) -> None:
    rows = [
        (
            f"{row['operation']} {row['of']}",
            f"{row['count']}",
            f"{row['ms']:.3f}",
            f"{row['share']:.1%}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['gb_s']:.1f}",
            f"{row['gop_s']:.0f}" if "gop_s" in row else "",
        )
        for row in (*table["rows"], _whole(table))
    ]
    place = f" at depth {table['depth']}" if table["entry"] == "decode" else ""
    threads = f"{table['threads']} thread{'s' * (table['threads'] != 1)}"
    title = f"{table['entry']} of {table['tokens']}{place}, {threads}, native kernels"
    _print_titled(title, ("operation", "times", "ms", "share", "MB", "GB/s", "GOP/s"), rows)


def _whole(table: Mapping[str, Any]) -> dict[str, Any]:
    count = sum(row["count"] for row in table["rows"])
    figures = {"ms": table["ms"], "share": 1.0, "bytes": table["bytes"], "gb_s": table["bytes"] / table["ms"] / 1e6}
    return {"operation": "all", "of": "", "count": count} | figures


def _print_types(table: Mapping[str, Any]) -> None:
    homes = ("native", "vmfb")
    for n, first in enumerate(table["rows"][0]["by_threads"]):
        rows = [
            (
                row["type"],
                f"{row['bits']:.2f}",
                f"{one['read_gb_s']:.1f}",
                *(text for home in homes for text in (f"{one[home]['gb_s']:.1f}", f"{one[home]['fraction']:.0%}")),
            )
            for row in table["rows"]
            for one in (row["by_threads"][n],)
        ]
        side, threads = table["rows_and_columns"], first["threads"]
        title = f"one row times {side}x{side}, {threads} thread{'s' * (threads != 1)}, GB/s"
        _print_titled(title, ("type", "bits", "memory", "native", "", "vmfb", ""), rows)


def _print_titled(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    stream_text(f"{title}\n")
    print_columns(head, rows)
    stream_text("\n")
