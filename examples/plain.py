"""A bundle run by its manifest alone, without ggufc: token ids in, the likeliest ids out.

python examples/plain.py BUNDLE STEPS ID...
"""

import hashlib
import json
import mmap
import platform
import re
import sys
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np

USAGE = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
MEMORY = rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE
CACHES = {
    "f32": (rt.HalElementType.FLOAT_32, 1, 4),
    "f16": (rt.HalElementType.FLOAT_16, 1, 2),
    "q8_0": (rt.HalElementType.INT_8, 32, 34),
}
"""For each type of caches what an element is to IREE, and how many values lie in how many bytes."""


def mapped(path: Path, weights: dict[str, Any]) -> rt.FileHandle:
    with path.open("rb") as file:
        bytes_ = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    header = hashlib.sha256(bytes_[: weights["header_bytes"]]).hexdigest()
    if (len(bytes_), header) != (weights["size"], weights["header_sha256"]):
        sys.exit(f"{path}: not the file that was exported: {len(bytes_)} bytes, header {header}")
    return rt.FileHandle.wrap_memory(bytes_)


VECTORS = re.compile(r"avx(?!10)|fma|gfni|neon|dotprod|i8mm|sve")
"""Features that decide whether code for a target runs: the instructions that kernels are made of."""
LINUX = {"neon": "asimd", "dotprod": "asimddp"}
"""What Linux calls those that it has another name for, but for underscores."""


def runs_here(target: dict[str, Any]) -> bool:
    here = Path("/proc/cpuinfo").read_text().replace("_", "").split()
    needed = [name[1:] for name in target["features"] if name[0] == "+" and VECTORS.match(name, 1)]
    same = target["triple"].split("-")[0] == platform.machine()
    return "file" in target and same and all(LINUX.get(name, name) in here for name in needed)


def main(bundle: Path, steps: int, prompt: list[int]) -> None:
    try:
        manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    except FileNotFoundError:
        sys.exit(f"{bundle}: no bundle, which has a manifest.json")
    device = rt.get_driver("local-task").create_default_device()
    instance = rt.VmInstance()

    index = rt.ParameterIndex()
    files = [mapped(bundle / weights["file"], weights) for weights in manifest["weights"]]
    for name, (file, offset, length) in manifest["parameters"].items():
        index.add_from_file_handle(name, files[file], length=length, offset=offset)
    targets = [target for target in manifest["targets"].values() if runs_here(target)]
    if not targets or "prefill" not in manifest["entries"]:
        sys.exit(f"{bundle}: no module that this machine can run, or none that generates text")
    target = max(targets, key=lambda target: str(target["features"]).count("+"))
    program = rt.VmModule.copy_buffer(instance, (bundle / target["file"]).read_bytes())
    parameters = rt.create_io_parameters_module(instance, index.create_provider(scope="model"))
    context = rt.VmContext(instance, [parameters, rt.create_hal_module(instance, device), program])

    length = len(prompt) + steps
    caches = []
    for cache in manifest["caches"]:
        # a window's ring holds its window and the tokens of one call, any other cache all positions
        rows = cache["rows"] or min(length, cache["window"] + len(prompt) if cache["window"] else length)
        element, values, size = CACHES[cache["dtype"]]
        *heads, last = cache["row"]
        nbytes = rows * int(np.prod(heads)) * last // values * size
        buffer = device.allocator.allocate_buffer(MEMORY, USAGE, nbytes)
        buffer.map().asarray([nbytes], np.dtype(np.uint8)).fill(0)
        shape = (rows, *heads, last // values * (size if values > 1 else 1))
        caches.append(rt.HalBufferView(buffer, shape, element))

    def call(entry: str, ids: list[int], position: int, count: int, dtype: type) -> np.ndarray:
        inputs, outputs = rt.VmVariantList(2 + len(caches)), rt.VmVariantList(1 + len(caches))
        tokens, function = np.array(ids, np.int32), program.lookup_function(entry)
        view = device.allocator.allocate_buffer_copy(MEMORY, USAGE, device, tokens, rt.HalElementType.SINT_32)
        assert isinstance(view, rt.HalBufferView) and function
        inputs.push_ref(view.ref)
        inputs.push_int(position)
        for cache in caches:  # the module updates them in place
            inputs.push_ref(cache.ref)
        context.invoke(function, inputs, outputs)
        result = outputs.get_as_object(0, rt.HalBufferView).get_buffer().map()
        return result.asarray([4 * count], np.dtype(np.uint8)).view(dtype).copy()

    token = int(call("prefill", prompt, 0, manifest["vocabulary"], np.float32).argmax())
    for position in range(len(prompt), length):
        if token in manifest["tokenizer"]["stop_tokens"]:
            break
        print(token, flush=True)
        token = int(call("decode_greedy", [token], position, 1, np.int32)[0])


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(word) for word in sys.argv[3:]])
