"""The chat page of `ggufc serve`, as a person uses it: in Chromium, without a network."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import ggufc
import pytest
from ggufc import Session
from ggufc.backends.serve.app import PAGE
from ggufc.frontend.chat.templates import ChatTemplates

from ...serving import NAME, TEMPLATE, Running
from ...tiny_models import Sizes, tiny_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("page") / "tiny.gguf"
    return ggufc.load(tiny_model(path, "gemma3", Sizes(layers=4, context=100_000), seed=11), "native", threads=1)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (apt install chromium)")
    with playwright.sync_playwright() as engine:
        made = engine.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield made
        made.close()


@pytest.fixture
def page(browser: "Browser", server: Running) -> "Iterator[Page]":
    """The page, opened where it may ask nobody but the server; a fault in its script fails the test."""
    context = browser.new_context()
    faults: list[str] = []
    asked: list[str] = []
    found = context.new_page()
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    found.on("request", lambda request: asked.append(request.url))
    found.goto(server.url)
    found.get_by_text("Settings").click()
    found.get_by_label("Temperature").fill("0")
    found.get_by_label("Most tokens").fill("12")
    yield found
    context.close()
    assert [fault for fault in faults if "400" not in fault] == []
    assert all(url.startswith((server.url, "data:")) for url in asked)


def said(page: "Page", words: str) -> str:
    """Says something, and gives the answer when it is whole."""
    box = page.get_by_label("Your message")
    box.fill(words)
    box.press("Enter")
    playwright.expect(page.get_by_role("button", name="Send")).to_be_visible()
    playwright.expect(page.locator(".note").last).to_be_visible()
    return page.locator(".assistant").last.text_content() or ""


def expected(session: Session, messages: list[dict[str, str]]) -> str:
    ids = ChatTemplates({"default": TEMPLATE}).render(messages, session.tokenizer).encode(session.tokenizer)
    return "".join(session.new().generate(ids, max_tokens=12))


def test_a_conversation_of_two_turns(page: "Page", session: Session) -> None:
    playwright.expect(page.get_by_role("heading")).to_have_text(NAME)
    page.get_by_label("System prompt").fill("an ox")
    messages = [{"role": "system", "content": "an ox"}]
    for turn, words in enumerate(("in the <b>end</b>", "on")):
        messages.append({"role": "user", "content": words})
        answer = said(page, words)
        assert answer == expected(session, messages)
        messages.append({"role": "assistant", "content": answer})
        assert page.locator(".user").nth(turn).text_content() == words  # as it was typed, not as HTML
        playwright.expect(page.locator(".note").nth(turn)).to_have_text(
            re.compile(r"^12 tokens, [\d.]+ a second; .*most")
        )
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".turn").count() == 0
    assert said(page, "on") == expected(session, [messages[0], {"role": "user", "content": "on"}])


def test_an_answer_is_stopped(page: "Page", server: Running) -> None:
    page.get_by_label("Most tokens").fill("")
    page.get_by_label("Your message").fill("in the")
    page.get_by_role("button", name="Send").click()
    playwright.expect(page.locator(".assistant").last).not_to_have_text("")
    page.get_by_role("button", name="Stop").click()
    playwright.expect(page.locator(".note").last).to_have_text("stopped")
    playwright.expect(page.get_by_role("button", name="Send")).to_be_visible()
    for _ in range(100):
        state = server.ask("/health")[1]
        if not state["running"]:
            return
        page.wait_for_timeout(20)
    raise AssertionError("the server goes on for nobody")


def test_an_error_is_shown_and_the_words_come_back(page: "Page") -> None:
    page.get_by_label("Temperature").fill("-1")
    box = page.get_by_label("Your message")
    box.fill("in the")
    box.press("Enter")
    playwright.expect(page.locator(".error")).to_contain_text("temperature -1: wanted a finite number from 0")
    playwright.expect(box).to_have_value("in the")


def test_the_page_is_one_file() -> None:
    text = Path(PAGE).read_text("utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\(|innerHTML", text)
