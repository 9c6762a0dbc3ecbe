"""Models by name in fake stores: what is found, what is not, and what is said of it."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from ggufc.frontend.errors import InputError
from ggufc.frontend.models import find_model, known_names, stored_model
from ggufc.frontend.stores.hugging_face import hugging_face_folder, hugging_face_unreadable
from ggufc.frontend.stores.ollama import ollama_folders, ollama_models

from ..stores import put_hugging_face, put_ollama

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(autouse=True)
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Ollama store; the working directory and the cache are empty too."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "ollama"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def refusal(name: str) -> str:
    with pytest.raises(InputError) as caught:
        find_model(name)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------- Ollama


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        (f"{LIBRARY}/gemma3/270m", ["gemma3:270m", "library/gemma3:270m", f"{LIBRARY}/gemma3:270m", "Gemma3:270M"]),
        (f"{LIBRARY}/gemma3/latest", ["gemma3", "gemma3:latest"]),
        ("registry.ollama.ai/someone/tuned/v1", ["someone/tuned:v1"]),
        ("hf.co/org/Repo-GGUF/Q8_0", ["hf.co/org/Repo-GGUF:Q8_0"]),
        ("localhost:5000/team/m/x", ["localhost:5000/team/m:x"]),
    ],
)
def test_a_name_in_the_ollama_store_is_its_blob(manifest: str, names: list[str], ollama: Path) -> None:
    blob = put_ollama(ollama, manifest, b"GGUF model", template=b"{{ .Prompt }}")
    put_ollama(ollama, f"{LIBRARY}/other/latest", b"GGUF other")
    for name in names:
        assert find_model(name) == blob
    found = stored_model(names[0])
    assert found and found.sha256 == hashlib.sha256(b"GGUF model").hexdigest()
    assert found.template and found.template.read_bytes() == b"{{ .Prompt }}"


def test_blobs_of_an_old_store_are_found(ollama: Path) -> None:
    blob = put_ollama(ollama, f"{LIBRARY}/m/latest", b"GGUF")
    old = blob.rename(blob.with_name(blob.name.replace("-", ":")))
    assert find_model("m") == old


def test_a_miss_says_where_it_looked_and_what_comes_near(ollama: Path, hub: Path) -> None:
    put_ollama(ollama, f"{LIBRARY}/gemma3/270m", b"GGUF")
    put_hugging_face(hub, "org/Qwen3-GGUF", "aa", {"Qwen3-Q8_0.gguf": b"GGUF"})
    said = refusal("gemma3")
    assert "did you mean gemma3:270m?" in said
    assert f"{ollama} (Ollama: 1 models), {hub} (Hugging Face: 1 repositories)" in said
    assert "org/Qwen3-GGUF:Q8_0" in refusal("qwen3")
    assert "there is gemma3:270m, org/Qwen3-GGUF:Q8_0" in refusal("zzzzzz")


def test_what_cant_be_read_is_not_meant(ollama: Path) -> None:
    put_ollama(ollama, f"{LIBRARY}/gemma3/270m", b"GGUF model")
    put_ollama(ollama, f"{LIBRARY}/gemma3/broken", b"GGUF other").unlink()
    assert "did you mean gemma3:270m?" in refusal("gemma3:brokn")
    assert known_names() == ["gemma3:270m"]
    assert "broken" in refusal("gemma3:broken") and "pull the model again" in refusal("gemma3:broken")


def test_stores_that_are_not_there_are_said_to_be_so(ollama: Path, hub: Path) -> None:
    said = refusal("gemma3")
    assert "no model is there" in said
    assert f"{ollama} (Ollama: not there), {hub} (Hugging Face: not there)" in said


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("gone", "No such file or directory; pull the model again"),
        ("partial", "an unfinished download; pull the model again"),
        ("short", "3 bytes, the store says 4; pull the model again"),
        ("folder", "is no file"),
    ],
)
def test_a_blob_that_is_not_whole_is_named(damage: str, said: str, ollama: Path) -> None:
    blob = put_ollama(ollama, f"{LIBRARY}/m/latest", b"GGUF")
    blob.unlink()
    if damage == "partial":
        blob.with_name(f"{blob.name}-partial-0").touch()
    if damage == "short":
        blob.write_bytes(b"GGU")
    if damage == "folder":
        blob.mkdir()
    assert refusal("m") == f"m:latest: {blob}: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged, no manifest"),
        ("[" * 100_000, "damaged, no manifest"),
        ('{"layers": 3}', "damaged"),
        ('{"layers": [{"mediaType": 1, "digest": ""}]}', "damaged"),
        ('{"layers": []}', "lists no GGUF"),
        (
            '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}',
            "is no sha256",
        ),
    ],
)
def test_a_damaged_manifest_is_refused(text: str, said: str, ollama: Path) -> None:
    put_ollama(ollama, f"{LIBRARY}/m/latest", b"GGUF")
    (ollama / "manifests" / LIBRARY / "m" / "latest").write_text(text)
    assert said in refusal("m")
    put_ollama(ollama, f"{LIBRARY}/sound/latest", b"GGUF")
    assert find_model("sound")


def test_an_adapter_is_never_left_out_in_silence(ollama: Path) -> None:
    put_ollama(ollama, f"{LIBRARY}/m/latest", b"GGUF", adapter=b"GGUF lora", projector=b"GGUF clip")
    assert "adapter" in refusal("m")


def test_names_do_not_lead_out_of_the_store(ollama: Path, tmp_path: Path) -> None:
    put_ollama(ollama, f"{LIBRARY}/m/latest", b"GGUF")
    (tmp_path / "secret").write_text("mine")
    for name in ("x/../m", "m:../latest", "x/../../../../secret"):
        assert "no such file, bundle or model" in refusal(name)


def test_manifests_that_are_links_pipes_and_odd_names_do_no_harm(ollama: Path, tmp_path: Path) -> None:
    put_ollama(ollama, f"{LIBRARY}/ä 日本 %s/ü", b"GGUF")
    folder = ollama / "manifests" / LIBRARY / "odd"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (ollama / "manifests" / "deep").symlink_to(ollama / "manifests")
    (ollama / "manifests" / LIBRARY / "linked").symlink_to("ä 日本 %s")
    (folder / ".DS_Store").touch()
    assert find_model("ä 日本 %s:ü")
    assert {model.name for model in ollama_models()} == {"ä 日本 %s:ü", "linked:ü", "odd:pipe", "odd:loop"}
    assert "is a pipe or a device, wanted a file" in refusal("odd:pipe")


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[None]:
    """Who isn't root, whom permissions don't hold."""
    if os.geteuid():
        yield
        return
    inside = next(n for n, folder in enumerate(tmp_path.parents) if folder.name.startswith("pytest-of-"))
    for folder in (tmp_path, *tmp_path.parents[: inside + 1]):
        folder.chmod(0o755)
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize("closed", ["store", "manifest", "blob", "namespace"])
def test_what_may_not_be_read_is_said_to_be_so(closed: str, ollama: Path, request: pytest.FixtureRequest) -> None:
    blob = put_ollama(ollama, f"{LIBRARY}/m/latest", b"GGUF")
    manifest = ollama / "manifests" / LIBRARY / "m" / "latest"
    place = {"store": ollama, "manifest": manifest, "blob": blob, "namespace": manifest.parents[1]}[closed]
    place.chmod(0)
    request.getfixturevalue("nobody")
    said = refusal("m")
    assert (
        f"{ollama} (Ollama: Permission denied)" in said if closed == "store" else f"{place}: Permission denied" in said
    )
    assert "pull the model again" not in said


@pytest.mark.parametrize("closed", ["", "snapshots", "snapshots/one"])
def test_a_repository_that_may_not_be_read_is_said_to_be_so(
    closed: str, hub: Path, request: pytest.FixtureRequest
) -> None:
    put_hugging_face(hub, "org/repo", "one", SEVERAL)
    place = hub / "models--org--repo" / closed
    place.chmod(0)
    request.getfixturevalue("nobody")
    found = [said for said in hugging_face_unreadable() if said.startswith(str(place))]
    assert len(found) == 1 and "Permission denied" in found[0]
    assert "Permission denied" in refusal("org/repo")


# --------------------------------------------------------------------------------------------- Hugging Face

SEVERAL = {
    "gemma-Q4_K_M.gguf": b"GGUF 1",
    "gemma-Q8_0.gguf": b"GGUF 2",
    "gemma-UD-Q4_K_M.gguf": b"GGUF 3",
    "gemma-imatrix.gguf": b"GGUF 4",
    "mmproj-gemma-BF16.gguf": b"GGUF 5",
    "README.md": b"words",
}


def test_one_model_needs_no_more_than_its_repository(hub: Path) -> None:
    snapshot = put_hugging_face(
        hub, "org/m-GGUF", "aa", {"m.gguf": b"GGUF", "mmproj-F16.gguf": b"", "m.imatrix.gguf": b""}
    )
    for name in ("org/m-GGUF", "Org/M-gguf", "hf.co/org/m-GGUF", "org/m-GGUF:m.gguf", "org/m-GGUF/m.gguf"):
        assert find_model(name) == snapshot / "m.gguf"
    found = stored_model("org/m-GGUF")
    assert found and found.sha256 == hashlib.sha256(b"GGUF").hexdigest()


def test_of_several_one_must_be_named(hub: Path) -> None:
    snapshot = put_hugging_face(hub, "org/gemma-GGUF", "aa", SEVERAL)
    said = refusal("org/gemma-GGUF")
    assert "has 3 models, give one of org/gemma-GGUF:Q4_K_M, org/gemma-GGUF:Q8_0, org/gemma-GGUF:UD-Q4_K_M" in said
    for word, file in {
        "Q8_0": "gemma-Q8_0.gguf",
        "q8_0": "gemma-Q8_0.gguf",
        "Q4_K_M": "gemma-Q4_K_M.gguf",
        "UD-Q4_K_M": "gemma-UD-Q4_K_M.gguf",
        "gemma-Q4_K_M.gguf": "gemma-Q4_K_M.gguf",
    }.items():
        assert find_model(f"org/gemma-GGUF:{word}") == snapshot / file
    for word in ("Q4_K", "Q2_K", "imatrix", "BF16", "4_K_M", ".*"):
        assert f"has no '{word}'; it has org/gemma-GGUF:Q4_K_M" in refusal(f"org/gemma-GGUF:{word}")


def test_quantizations_in_folders_and_equal_names(hub: Path) -> None:
    snapshot = put_hugging_face(
        hub,
        "o/r",
        "aa",
        {"Q8_0/m.gguf": b"GGUF 1", "Q2_K/m.gguf": b"GGUF 2", "a-f16.gguf": b"3", "b-f16.gguf": b"4"},
    )
    assert find_model("o/r:Q8_0") == snapshot / "Q8_0" / "m.gguf"
    assert find_model("o/r/Q2_K/m.gguf") == snapshot / "Q2_K" / "m.gguf"
    assert "has 2 models, give one of o/r:a-f16.gguf, o/r:b-f16.gguf" in refusal("o/r:f16")


def test_a_split_model_is_its_first_file(hub: Path) -> None:
    parts = {f"m-Q8_0-0000{n}-of-00003.gguf": b"GGUF %d" % n for n in (1, 2, 3)}
    snapshot = put_hugging_face(hub, "o/r", "aa", parts)
    assert find_model("o/r") == find_model("o/r:Q8_0") == snapshot / "m-Q8_0-00001-of-00003.gguf"
    (snapshot / "m-Q8_0-00001-of-00003.gguf").unlink()
    assert "m-Q8_0-00001-of-00003.gguf: no such file; download this part" in refusal("o/r")


def test_the_revision_is_the_one_of_main_not_the_newest(hub: Path) -> None:
    old = put_hugging_face(hub, "o/r", "aa", {"m.gguf": b"GGUF old"})
    new = put_hugging_face(hub, "o/r", "bb", {"m.gguf": b"GGUF new"}, main=False)
    os.utime(old, (1, 1))
    assert find_model("o/r") == old / "m.gguf"
    (hub / "models--o--r" / "refs" / "main").unlink()
    assert find_model("o/r") == new / "m.gguf"
    (hub / "models--o--r" / "refs" / "main").write_text("../../cc")
    assert "names revision '../../cc', which has no snapshot; there is aa, bb" in refusal("o/r")


def test_a_revision_that_cannot_be_read_is_told_and_no_other_taken(hub: Path) -> None:
    put_hugging_face(hub, "o/r", "aa", {"m.gguf": b"GGUF"})
    main = hub / "models--o--r" / "refs" / "main"
    for make in (
        lambda: main.write_bytes(b"\xff"),
        lambda: main.symlink_to("nowhere"),
        lambda: os.mkfifo(main),  # which nobody writes to
        lambda: main.mkdir(),
    ):
        main.unlink()
        make()
        assert refusal("o/r").startswith(f"o/r: {main}: ")


def test_downloads_that_did_not_end_are_named(hub: Path) -> None:
    blobs = hub / "models--o--r" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "ab12.incomplete").touch()
    assert f"{blobs / 'ab12.incomplete'}: an unfinished download" in refusal("o/r")
    (blobs / "ab12.incomplete").unlink()
    assert f"{blobs.parent}: has no snapshot" in refusal("o/r")
    put_hugging_face(hub, "o/s", "aa", {"m.gguf": None})
    assert f"{hub / 'models--o--s' / 'blobs'}" in refusal("o/s")
    put_hugging_face(hub, "o/t", "aa", {"model.safetensors": b"{}"})
    assert "has no GGUF of a model" in refusal("o/t")


def test_the_places_are_those_of_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hugging_face_folder() == tmp_path / ".cache/huggingface/hub"
    assert ollama_folders()[0] == tmp_path / ".ollama/models"
    for variable, value, place in (
        ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub"),
        ("HF_HOME", "~/h", f"{tmp_path}/h/hub"),
        ("HUGGINGFACE_HUB_CACHE", "/old", "/old"),
        ("HF_HUB_CACHE", "$HOME/c", f"{tmp_path}/c"),
    ):
        monkeypatch.setenv(variable, value)
        assert str(hugging_face_folder()) == place


def test_huggingface_hub_finds_the_same_files(hub: Path) -> None:
    put_hugging_face(hub, "org/gemma-GGUF", "a" * 40, SEVERAL)
    put_hugging_face(hub, "org/gemma-GGUF", "b" * 40, {"gemma-Q8_0.gguf": b"GGUF new"}, main=False)
    for word, file in (("Q8_0", "gemma-Q8_0.gguf"), ("UD-Q4_K_M", "gemma-UD-Q4_K_M.gguf")):
        theirs = huggingface_hub.try_to_load_from_cache("org/gemma-GGUF", file, cache_dir=hub)
        assert str(find_model(f"org/gemma-GGUF:{word}")) == theirs
    assert {repo.repo_id for repo in huggingface_hub.scan_cache_dir(hub).repos} == {"org/gemma-GGUF"}


# ---------------------------------------------------------------------------------------------------- paths


def test_a_path_goes_before_a_name_and_a_strange_folder_does_not(ollama: Path, hub: Path) -> None:
    blob = put_ollama(ollama, f"{LIBRARY}/gemma/latest", b"GGUF")
    Path("gemma").mkdir()
    assert find_model("gemma") == blob
    Path("own").mkdir()
    Path("own/m.gguf").touch()
    assert refusal("own") == "own: is a directory without manifest.json, so no bundle; it holds m.gguf"
    Path("gemma/manifest.json").touch()
    assert find_model("gemma") == find_model(b"gemma") == Path("gemma")
    Path("m:1").write_bytes(b"GGUF")
    assert find_model("m:1") == Path("m:1")
    for name in ("nowhere/m.gguf", "./m", "/m", "~x"):
        assert find_model(name) == Path(name)
    assert known_names() == ["gemma/", "gemma:latest"]


def test_a_name_in_both_stores_is_refused(ollama: Path, hub: Path) -> None:
    put_ollama(ollama, "registry.ollama.ai/o/r/latest", b"GGUF")
    put_hugging_face(hub, "o/r", "aa", {"m.gguf": b"GGUF"})
    assert "is in two stores" in refusal("o/r")
