"""Targets by the words of a command line."""

import pytest
from ggufc import InputError, UnsupportedError
from ggufc.backends.host.machine import known_features
from ggufc.backends.native.target import PRESETS, find_target, host_target


def test_names_are_those_of_presets_and_the_host() -> None:
    assert find_target("host") == host_target()
    for name, target in PRESETS.items():
        assert find_target(name) == target
        assert {f[1:] for f in target.features} - known_features(target.arch) <= {"fast-dpwssd", "a", "c"}


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        ("aarch64-linux-gnu", "aarch64"),
        ("arm64-apple-darwin", "aarch64"),
        ("aarch64-linux-android:+dotprod,+i8mm", "aarch64-i8mm"),
        ("x86_64-pc-windows-msvc", "x86-64"),
        ("riscv64-linux-gnu", "riscv64"),
    ],
)
def test_a_triple_with_the_features_of_a_preset_is_it(words: str, preset: str) -> None:
    assert find_target(words) == PRESETS[preset]


def test_features_are_added_and_taken_away() -> None:
    target = find_target("x86-64-v4:-avx512vl,+avx512vnni")
    assert (target.name, target.cpu) == ("x86-64-v4-no-avx512vl+avx512vnni", "x86-64-v4")
    assert target.has("avx512vnni")
    assert "-avx512vl" in target.features
    assert not target.has_avx512
    assert find_target("riscv64-linux-gnu:+v").abi == "lp64d"
    assert find_target("aarch64-linux-gnu:-dotprod").name == "aarch64-no-dotprod"  # a preset is aarch64-dotprod


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ("x86-64-v5", InputError, r"no target 'x86-64-v5' \(did you mean 'x86-64-v4'\?\); there are host, x86-64, "),
        ("", InputError, "no target ''"),
        ("aarch64:+dotprd", InputError, r"no feature '\+dotprd' \(did you mean 'dotprod'\?\); wanted \+NAME"),
        ("aarch64:dotprod", InputError, "no feature 'dotprod'"),
        ("aarch64:", InputError, "no feature ''"),
        ("host:+sve", InputError, r"no feature '\+sve'"),
        (
            "armv7-linux-gnueabihf",
            UnsupportedError,
            "no kernels for armv7; there are some for aarch64, ",
        ),
    ],
)
def test_what_is_no_target_is_named(words: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        find_target(words)
