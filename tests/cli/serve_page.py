#!/usr/bin/env python3
"""The page in a real Chromium against a real server with the bundled model.

Needs Debian's chromium, and playwright from PyPI; without them the test says so and is skipped (exit 77).
Screenshots go to the folder that NEAP_SHOTS names (nowhere without it). Whatever the page loads must come from the server
itself, and nothing may appear on the browser's console.
"""
import json
import os
import shutil
import sys

from cli_shared import SLOW, check, finish
from packages_shared import need
from serve_shared import VALLEY, Server, ask, questions, wait_for

CHROMIUM = os.environ.get("NEAP_CHROMIUM") or shutil.which("chromium")
if not CHROMIUM:
    print("skipped: there is no chromium")
    sys.exit(77)
sync_playwright = need("playwright.sync_api", "playwright==1.65.2").sync_playwright

SHOTS = os.environ.get("NEAP_SHOTS")
WAIT = 120_000 * SLOW
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script> **bold** `code`"


def shot(page, name):
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
        page.screenshot(path=os.path.join(SHOTS, name + ".png"))


def send(page, text):
    page.fill("#box", text)
    page.keyboard.press("Enter")


def finished(page):
    page.wait_for_selector("#send:not([hidden])", timeout=WAIT)


def last(page, part):
    return page.locator("article.assistant").last.locator(part)


def conversation(page, server, q):
    page.goto(server.url + "/")
    page.wait_for_selector("#model:not(:text-is('neap'))", timeout=WAIT)
    check(page.locator("#box").evaluate("e => e === document.activeElement"), "the message box has the focus")
    send(page, ask(q)[0]["content"])
    finished(page)
    answer = last(page, ".body").inner_text()
    check(q["answer"] in answer, answer, q)
    figures = last(page, ".figures").inner_text()
    check("prompt tokens" in figures and "a second" in figures, figures)
    check("/ " in page.inner_text("#context"), page.inner_text("#context"))
    shot(page, "answer")
    # The second turn finds the first one in the prefix cache.
    send(page, q["question"])
    finished(page)
    check("from the cache" in last(page, ".figures").inner_text(), last(page, ".figures").inner_text())
    check(page.locator("article").count() == 4, page.locator("article").count())


def change(page, q):
    last(page, "text=Regenerate").click()
    finished(page)
    check(page.locator("article").count() == 4, "regenerated in place")
    page.locator("article.user").last.locator("text=Edit").click()
    page.locator("article.user textarea").fill(q["question"] + " ")
    page.keyboard.press("Enter")
    finished(page)
    check(page.locator("article").count() == 4, "edited in place")
    page.reload()
    check(page.locator("article").count() == 4, "kept in the browser")
    page.locator("article.user").last.locator("text=Delete").click()
    check(page.locator("article").count() == 2, "deleted with what followed")


def settings(page):
    page.click("#open-settings")
    page.fill("#set-tools", "{")
    page.click("#settings-save")
    check("JSON" in page.inner_text("#settings-problem"), "bad JSON is refused")
    page.fill("#set-tools", "")
    page.fill("#set-temperature", "0")
    page.fill("#set-max_tokens", "15")
    shot(page, "settings")
    page.click("#settings-save")
    page.click("#new")
    send(page, "Hello")
    finished(page)
    check("cut" in last(page, ".broken").inner_text(), "the limit is told")
    page.click("#open-settings")
    page.fill("#set-max_tokens", "")
    page.click("#settings-save")


def stopping(page, server):
    page.click("#open-settings")
    page.fill("#set-system", "word " * 300)
    page.fill("#set-temperature", "2")
    page.click("#settings-save")
    for _ in range(10):
        page.click("#new")
        send(page, "Tell me everything. " * 20)
        page.keyboard.press("Escape")
        finished(page)
        check(server.idle(), "Esc stops the request on the server too")
        if "Stopped" in last(page, ".broken").inner_text():  # else it was over before the key came
            break
    else:
        check(False, "Esc does not stop an answer")
    page.click("#open-settings")
    page.fill("#set-system", "")
    page.fill("#set-temperature", "0")
    page.click("#settings-save")


def titles(page):
    return page.locator("#list li button:first-child").all_inner_texts()


def tabs(page, server):
    """Two tabs share what is kept: neither loses what the other wrote."""
    other = page.context.new_page()
    other.goto(server.url + "/")
    for where, text in ((other, "From the second"), (page, "From the first"), (other, "Again from the second")):
        where.click("#new")
        send(where, text)
        finished(where)
    for where in (page, other):  # a tab hears of the other one's words after a while
        wanted = ["Again from the second", "From the first", "From the second"]
        check(wait_for(lambda where=where: titles(where)[:3] == wanted), titles(where))
    other.on("dialog", lambda d: d.accept())
    other.click("#list li:has-text('From the first') button:last-child")
    check(wait_for(lambda: "From the first" not in titles(other)), titles(other))
    other.reload()
    check("From the first" not in titles(other) and "From the second" in titles(other), titles(other))
    other.close()


def leaving(page):
    """A page that is left while an answer streams keeps the question."""
    page.click("#new")
    send(page, "Left in the middle. " * 40)
    page.reload()
    check(page.locator("article.user").last.inner_text().count("Left in the middle.") == 40, "the question is there")


def quick(page):
    """Text that begins much and closes nothing takes no time that grows as its square."""
    for text in ("*a " * 20000, "[" * 60000, "~~a " * 15000):
        took = page.evaluate("t => { const a = performance.now(); Markdown.render(document.createElement('div'), t);"
                             " return performance.now() - a; }", text)
        check(took < 3000 * SLOW, text[:4], took)


def hostile(page):
    """What a model writes never becomes markup."""
    page.evaluate("""text => {
        localStorage.setItem("neap.conversations", JSON.stringify([{id: "x", title: text, messages: [
            {role: "user", content: text}, {role: "assistant", content: text, reasoning: text,
             calls: [{id: "1", name: text, arguments: "{\\"a\\":1}"}]}]}]));
    }""", HOSTILE)
    page.reload()
    check(page.locator("article img, article script, #list img").count() == 0, "markup in the page")
    check(page.locator("article.assistant .body strong").inner_text() == "bold", "markdown works")
    check(page.locator("article.assistant details summary").last.inner_text() == "Call: " + HOSTILE, "calls are shown")
    check("broken" not in page.title(), page.title())


def themes(page):
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    check(page.evaluate("getComputedStyle(document.body).backgroundColor") != before, "light and dark")
    shot(page, "dark")
    page.set_viewport_size({"width": 420, "height": 800})
    page.wait_for_selector("#new", state="hidden")  # the side is folded on a narrow screen
    page.click("#menu")
    page.wait_for_selector("#new", state="visible")  # and opens
    check(page.get_attribute("#menu", "aria-expanded") == "true", "the menu's state")
    shot(page, "narrow")
    width = page.evaluate("document.documentElement.scrollWidth")
    check(width <= 420, "no sideways scrolling", width)


def names(page):
    """Whatever can be operated has a name for a screen reader."""
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input:not([hidden]), textarea, select, a")]
        .filter(e => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)""")
    check(nameless == [], nameless)


def with_key(browser):
    with Server(VALLEY, "--api-key", "secret-of-the-test", key="secret-of-the-test") as s:
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(s.url + "/")
        page.wait_for_selector("#problem:not([hidden])", timeout=WAIT)
        check("API key" in page.inner_text("#problem"), page.inner_text("#problem"))
        page.click("#open-settings")
        page.fill("#set-key", "secret-of-the-test")
        page.click("#settings-save")
        page.wait_for_selector("#problem[hidden]", state="attached", timeout=WAIT)
        send(page, "Hello")
        finished(page)
        check(page.locator("article.assistant").count() == 1, "answered with the key")
        check("secret-of-the-test" not in json.dumps(page.evaluate("({...localStorage})")), "the key is not kept")
        page.close()


def main():
    q = questions()[0]
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with Server(VALLEY) as server:
            context = browser.new_context(viewport={"width": 1100, "height": 800})
            context.set_default_timeout(WAIT)
            page = context.new_page()
            console, foreign = [], []
            page.on("console", lambda m: console.append(m.text))
            page.on("pageerror", lambda e: console.append(str(e)))
            page.on("request", lambda r: None if r.url.startswith(server.url) else foreign.append(r.url))
            conversation(page, server, q)
            change(page, q)
            settings(page)
            stopping(page, server)
            tabs(page, server)
            leaving(page)
            quick(page)
            hostile(page)
            names(page)
            themes(page)
            check(console == [], "console:", console)
            check([u for u in foreign if not u.startswith("blob:")] == [], "loaded from elsewhere:", foreign)
            page.close()
        with_key(browser)
        browser.close()
    finish()


main()
