"""From the module to a `.vmfb`."""

from pathlib import Path

import pytest
from ggufc.backends.bundles.export import export
from ggufc.backends.iree.compile import CompileError, _refusal, check_flags, compile_module
from ggufc.backends.iree.parameters import places
from ggufc.backends.native.target import find_target, host_target
from ggufc.frontend.errors import InputError, UnsupportedError

from ..conftest import TinyCase


@pytest.mark.slow
def test_the_same_module_gives_the_same_bytes(tiny_f32: TinyCase) -> None:
    again = compile_module(tiny_f32.text, places(tiny_f32.model.file), host_target())
    (target,) = tiny_f32.bundle.manifest["targets"].values()
    assert again.vmfb == tiny_f32.bundle.file(target["file"]).read_bytes()
    assert again.parameters == tiny_f32.bundle.parameters


@pytest.mark.slow
def test_parameters_lie_where_the_manifest_says(tiny_quantized: TinyCase) -> None:
    """Against the file itself: the mapped bytes end where the tensor ends, and hold it whole."""
    data, file = tiny_quantized.path.read_bytes(), tiny_quantized.model.file
    assert set(tiny_quantized.bundle.parameters) == set(file.tensors)
    for name, place in tiny_quantized.bundle.parameters.items():
        tensor = file.tensors[name]
        assert data[place.offset : place.offset + place.nbytes].endswith(file.tensor_bytes(name).tobytes())
        assert place.nbytes - tensor.nbytes == (tensor.offset - place.offset) < 64


def test_the_module_holds_no_weights_and_nothing_of_this_machine(tiny_f32: TinyCase) -> None:
    (target,) = tiny_f32.bundle.manifest["targets"].values()
    vmfb = tiny_f32.bundle.file(target["file"]).read_bytes()
    assert len(vmfb) < 1_000_000
    assert tiny_f32.model.file.tensor_bytes("blk.0.attn_q.weight").tobytes()[:64] not in vmfb
    for words in (b"/tmp/", b"/home/", b"/root/", str(Path(__file__).parents[3]).encode()):
        assert words not in vmfb


def test_what_the_compiler_refuses_is_told_and_leaves_nothing_behind(
    tiny_f32: TinyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ggufc.backends.iree.compile.FLAGS", ("--iree-input-type=none",))
    with pytest.raises(CompileError, match="a fault of ggufc: IREE refused the module for host: ") as refused:
        compile_module(tiny_f32.text, places(tiny_f32.model.file), host_target())
    assert refused.value.exit_code == 70
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--no-such-flag", "--iree-opt-level=O9"])
def test_a_flag_that_the_compiler_refuses_is_the_users(flag: str, tiny_f32: TinyCase) -> None:
    with pytest.raises(InputError, match=flag.split("=")[0].strip("-")) as refused:
        compile_module(tiny_f32.text, places(tiny_f32.model.file), host_target(), [flag])
    assert refused.value.exit_code == 2


def test_a_flag_with_which_the_compiler_fails_is_the_users(tiny_f32: TinyCase) -> None:
    flag = "--iree-llvmcpu-target-cpu=nope"
    with pytest.raises(InputError, match=f"iree-compile fails with {flag}: "):
        compile_module(tiny_f32.text, places(tiny_f32.model.file), host_target(), [flag])


@pytest.mark.parametrize("flag", ["--iree-hal-target-device=vulkan", "--iree-hal-target-backends=cuda"])
def test_a_flag_without_effect_is_refused(flag: str) -> None:
    with pytest.raises(InputError, match=r"has no effect.*--target"):
        check_flags([flag])


def test_a_target_with_too_few_instructions_is_refused() -> None:
    """RISC-V without products: LLVM would call a library for them, which a module doesn't have."""
    report = "iree-lld: error: undefined symbol: __muldi3\n>>> referenced by ggufc"
    refusal = _refusal(report, find_target("riscv64:-m"), ())
    assert isinstance(refusal, UnsupportedError) and "riscv64-no-m: its code would call __muldi3" in str(refusal)
    assert isinstance(_refusal(report, find_target("riscv64"), ()), CompileError)


@pytest.mark.slow
def test_what_surrounds_the_compiler_is_named(
    tiny_f32: TinyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary folder that is gone, a compiler that is: neither is the output's fault."""
    output = tmp_path / "output"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=f"^{tmp_path}/gone.*TMPDIR"):
        export(tiny_f32.path, output)
    monkeypatch.setattr("tempfile.tempdir", None)

    def missing(name: str) -> str:
        raise ValueError(f"{name} was not found")

    monkeypatch.setattr("ggufc.backends.iree.compile.find_tool", missing)
    with pytest.raises(UnsupportedError, match=r"^iree-compile"):
        export(tiny_f32.path, output)
    assert list(tmp_path.iterdir()) == []
