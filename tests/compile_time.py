"""How compile time grows with the number of layers: `python -m tests.compile_time [FAMILY ...] [--layers 4 16 64]`.

Each export is a process of its own, on a model of quantized random weights. Beside the wall clock, which other load
moves, stands the processor's time of that process and of the compiler that it starts.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from .tiny_models import Types
from .tiny_models.variants import DECODERS, ENCODERS

TYPES: Types = {
    "per_layer_token_embd*": "q8_0",
    "blk.*.proj*": "q8_0",
    "*_exps*": "q8_0",
    "*attn_v*": "q6_k",
    "token_embd*": "q8_0",
    "*": "q4_k",
}
"""Those of a Q4_K_M file, but where a row is no whole block of 256."""
VARIANTS = DECODERS | ENCODERS


@dataclass(frozen=True)
class Cost:
    """Seconds of one export, and bytes of the module."""

    wall_s: float
    cpu_s: float
    module_bytes: int


def measure(family: str, layers: int, folder: Path) -> Cost:
    """Exports a model of one variant of the tables with this number of layers."""
    variant = VARIANTS[family]
    variant = replace(variant, sizes=replace(variant.sizes, layers=layers))
    model = variant.write(folder / f"{family}-{layers}.gguf", types=TYPES, large=True)
    output = folder / f"{family}-{layers}"
    cpu, start = _children_s(), perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ggufc", "export", model, "-o", output, "--json"], check=True, stdout=subprocess.DEVNULL
    )
    wall = perf_counter() - start
    return Cost(wall, _children_s() - cpu, sum(f.stat().st_size for f in output.glob("*.vmfb")))


def _children_s() -> float:
    """Seconds of the processor in all descendants that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Prints one line for each family and number of layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=["llama"], metavar="FAMILY", help=", ".join(VARIANTS))
    parser.add_argument("--layers", nargs="+", type=int, default=[4, 16, 64])
    chosen = parser.parse_args()
    print(f"{'family':20}{'layers':>7}{'wall_s':>9}{'cpu_s':>9}{'cpu_s/layer':>13}{'module_kb':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for family in chosen.families:
            for layers in chosen.layers:
                cost = measure(family, layers, Path(folder))
                figures = f"{layers:7}{cost.wall_s:9.1f}{cost.cpu_s:9.1f}{cost.cpu_s / layers:13.2f}"
                print(f"{family:20}{figures}{cost.module_bytes / 1e3:11.0f}", flush=True)


if __name__ == "__main__":
    main()
