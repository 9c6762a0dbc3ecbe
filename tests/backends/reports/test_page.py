"""The page about a model: everything is on it, nothing of the file's becomes markup, and it works in a browser."""

import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ggufc.backends.reports.inspect import describe, entry_graph
from ggufc.backends.reports.memory import plan
from ggufc.backends.reports.page import page
from ggufc.graph.model import open_model

from ...tiny_models import Sizes, tiny_model

EVIL = '<script>alert("1")</script> & co'
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = tiny_model(folder / "m.gguf", "qwen3", Sizes(layers=2), metadata={"general.name": EVIL})
    model = open_model(path)
    found = describe(model, "f16") | {"memory": plan(model)}
    (folder / "m.html").write_text(page(model, entry_graph(model, "prefill", "f16"), found), "utf-8")
    return folder / "m.html"


class Elements(HTMLParser):
    """The elements of a page and its text, each closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag in ("table", "details", "summary", "code", "h1", "h2", "script", "style", "body"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_holds_everything_and_needs_nothing(written: Path) -> None:
    made = Elements(written.read_text("utf-8"))
    assert not made.open
    assert EVIL in made.text
    assert [tag for tag, _ in made.found].count("script") == 1
    assert not any({"src", "href"} & attributes.keys() for _, attributes in made.found)
    summaries = [tag for tag, _ in made.found].count("summary")
    assert summaries >= 3 and "layer 1" in made.text
    for word in ("blk.1.ffn_down.weight", "norm_rope", "f32[T, 64]", "scratch of a call of 512 tokens", "q8_0"):
        assert word in made.text


@pytest.mark.slow
def test_a_person_can_look_through_it(written: Path) -> None:
    engine = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    with engine.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1000, "height": 700})
        faults: list[str] = []
        view.on("pageerror", lambda error: faults.append(str(error)))
        view.on("request", lambda request: faults.append(request.url) if "m.html" not in request.url else None)
        view.goto(written.as_uri())
        rows = view.locator("#tensors tbody tr")
        total = rows.count()
        view.get_by_label("Find tensors").fill("blk.1. ffn")
        assert 0 < rows.locator("visible=true").count() < total
        layer = view.locator("details", has_text="layer 1")
        operation = layer.get_by_text("attention").first
        assert not operation.is_visible()
        layer.locator("summary").first.click()
        assert operation.is_visible()
        for width in (1000, 400):
            view.set_viewport_size({"width": width, "height": 700})
            assert view.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not faults
        browser.close()
