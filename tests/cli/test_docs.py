"""`paragent docs`: pages by name and by words, in the terminal and in a browser, from a clone and from the copy in the wheel."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml
from rich.console import Console

from paragent.cli import main
from paragent.cli.docs import page_names
from paragent.cli.docs.files import document_files
from paragent.cli.docs.html import markdown_page
from paragent.cli.docs.library import Library, open_library
from paragent.cli.docs.server import DocumentServer
from paragent.cli.docs.terminal import rendered
from tests.children import BoundedPopen

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["docs", *arguments]) == 0
    return capsys.readouterr().out


# --- pages ------------------------------------------------------------------------------------------------------------


def nav_paths(entry: object) -> Iterator[str]:
    """Yield the pages of `nav` in mkdocs.yml as MkDocs reads it."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict | list):
        for one in entry.values() if isinstance(entry, dict) else entry:
            yield from nav_paths(one)


def test_the_list_has_the_pages_of_the_site_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    settings = yaml.safe_load(re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text()))
    homes = {"index.md": "README.md", "zh/index.md": "README.zh.md"}
    expected = [homes.get(path, f"docs/{path}") for path in nav_paths(settings["nav"])]
    pages = open_library().pages
    assert [page.path for page in pages][: len(expected)] == expected
    assert {page.path for page in pages[len(expected) :]} == {"CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"}
    assert len(page_names()) == len(set(page_names()))
    shown = printed(capsys)
    assert all(f"  {name} " in shown for name in page_names())
    assert re.search(r"howto/ray_cluster +Run on a Ray cluster", shown)


@pytest.mark.parametrize(
    ("topic", "title"),
    [
        ("guide/view", "The web view"),
        ("docs/guide/view.md", "The web view"),
        ("own_scorer", "Write your own scorer"),
        ("security", "Security"),
        ("zh", "paragent"),
        ("changelog", "Changelog"),
        ("Guide/View", "The web view"),
    ],
)
def test_a_page_is_found_by_its_name(topic: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, topic).strip().startswith(f"# {title}")


def test_words_find_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "spark", "standalone").strip().startswith("# Run on a Spark cluster")  # one page has both
    assert printed(capsys, "spark", "cluster").startswith("howto/spark_cluster ")  # the best of many
    shown = printed(capsys, "tasks")
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["tutorials/tasks", "guide/tasks", "reference/tasks"]


def test_the_line_of_a_search_has_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    hits = {hit.page.topic: hit.line for hit in open_library().search("time limit")}
    assert "time limit" in hits["reference/agents"]
    assert "time limit" in hits["guide/tasks"]
    lines = printed(capsys, "智能体", "主机").splitlines()
    assert [line for line in lines if line.startswith("  ") and "智能体" in line]
    assert max(map(len, lines)) <= 100 + 2


def test_lines_of_a_search_have_no_markup() -> None:
    for words in ("ray", "spark cluster", "timeout", "worker"):
        hits = open_library().search(words)
        assert not [hit.line for hit in hits if re.search(r"^[#|]|^- |[*`]|\]\(", hit.line)]
        assert [hit for hit in hits if hit.line]


def test_links_of_a_printed_page_are_topics_and_comments_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "tutorials/tasks")
    assert "(guide/engines)" in shown
    assert "<!--" not in shown
    assert "../" not in shown
    assert "(#" not in shown
    assert "Image: The output of the program" in shown


CODE = """\
```python title="agents.py"
def answer(question: str) -> str:
    return f"a line of code that is longer than the terminal is wide: {question}"
```
"""


def test_code_of_a_page_can_be_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text(f"# Title\n\n{'Words of a paragraph. ' * 5}\n\n{CODE}")
    (tmp_path / "mkdocs.yml").write_text("site_name: s\nnav:\n  - Home: index.md\n")
    monkeypatch.setattr("paragent.cli.docs.library.open_library", lambda: Library(tmp_path))
    assert CODE in printed(capsys, "readme")
    terminal = Console(width=60, file=io.StringIO(), color_system=None)
    terminal.print(rendered((tmp_path / "README.md").read_text()), crop=False)
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert CODE.partition("\n")[2].removesuffix("```\n") in shown
    assert max(len(line) for line in shown.splitlines() if "paragraph" in line) <= 60


def test_the_reference_has_signatures_and_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(printed(capsys, "reference/tasks").split())
    assert "Run one task or many; return the responses by task id, in input order." in shown
    assert "`input` (`Any`): The input of the agent." in shown
    assert "sync_run_task( task: Task | Iterable[Task], run_conf: RunConfig | None = None, *, engine: " in shown
    assert "record_usage(" in shown
    assert ":::" not in shown
    assert shown.endswith("`__version__` The version of the installed package.")


def test_words_that_no_page_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "no-such-word"]) == 2
    assert "no page of the documentation has all of these words: no-such-word" in capsys.readouterr().err


def test_flags_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--text", "--serve"]) == 2
    assert main(["docs", "--serve", "--port", "70000"]) == 2
    assert "--port must be from 0 to 65535" in capsys.readouterr().err


def test_commands_of_the_program_and_of_new_projects_name_pages() -> None:
    texts = {path: path.read_text() for path in (ROOT / "src" / "paragent").rglob("*") if path.suffix in {".py", ".md"}}
    named = {
        (path.name, topic)
        for path, text in texts.items()
        for topic in re.findall(r"paragent docs ([a-z]\w*/\w+)", text)
    }
    assert {path for path, _ in named} >= {"__init__.py", "rollout.py", "README.md", "init.py"}
    assert {topic for _, topic in named} <= set(page_names())
    assert not [path.name for path, text in texts.items() if "github.io" in text]  # the site is not published


def test_bold_words_of_the_chinese_pages_are_rendered() -> None:
    """A closing `**` between Chinese punctuation and a word needs a space: Markdown would print the asterisks."""
    library = open_library()
    pages = {page.path: markdown_page(library, page) for page in library.pages if page.topic.startswith("zh")}
    assert len(pages) >= 5
    assert not [
        path for path, text in pages.items() if "**" in re.sub(r"<(pre|code).*?</\1>", "", text, flags=re.DOTALL)
    ]


def test_pages_install_from_a_clone() -> None:
    """No package index has paragent."""
    library = open_library()
    texts = {page.topic: library.source(page) for page in library.pages if page.path != "CHANGELOG.md"}
    assert not [topic for topic, text in texts.items() if re.search(r"pip\s+install\s+['\"]?paragent", text)]


# --- the server -------------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.addresses.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


@contextlib.contextmanager
def served(root: Path) -> Iterator[DocumentServer]:
    with DocumentServer(Library(root)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(60)


def status_and_text(link: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(link, timeout=60) as reply:
            return reply.status, reply.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow(20)
def test_all_links_of_the_copy_in_the_wheel_lead_to_pages(tmp_path: Path) -> None:
    for name in document_files(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    dead = []
    with served(tmp_path) as server:
        start = server.link("")
        waiting, seen = [start], {start: Links("")}
        while waiting:
            address = waiting.pop()
            status, text = status_and_text(address)
            is_page = text.startswith("<!doctype html>")
            seen[address] = found = Links(text if is_page else "")
            dead += [address] if status != 200 else []
            assert not found.scripts
            for link in found.addresses:
                target = urljoin(address, link).partition("#")[0]
                if urlsplit(target).netloc == urlsplit(start).netloc and target not in seen:
                    seen[target] = Links("")
                    waiting.append(target)
    for address, found in seen.items():
        for link in found.addresses:
            target, _, anchor = urljoin(address, link).partition("#")
            if anchor and target in seen and unquote(anchor) not in seen[target].anchors:
                dead.append(f"{address}: {link}")
    assert not dead
    assert {f"{start}{page.path}" for page in Library(tmp_path).pages} <= set(seen)


def test_the_server_has_the_documentation_and_nothing_else() -> None:
    with served(ROOT) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert "<h1" in status_and_text(server.link("docs/guide/tasks.md"))[1]
        assert "own_engine.py" in status_and_text(server.link("examples"))[1]
        assert "Spark" in status_and_text(server.link("search?q=spark+standalone"))[1]
        assert "Type words" in status_and_text(server.link("search"))[1]
        status, text = status_and_text(server.link("docs/guide/ray_clusters.md"))
        assert (status, 'href="/search?q=ray+clusters"' in text) == (404, True)
        assert "&lt;b&gt;" in status_and_text(server.link("search?q=<b>".replace("<", "%3C").replace(">", "%3E")))[1]
        for path in (
            "pyproject.toml",
            "docs/../pyproject.toml",
            "docs/%2e%2e/pyproject.toml",
            "docs/hooks.py",
            "etc/passwd",
        ):
            assert status_and_text(server.link(path))[0] == 404, path


def answer_to(server: DocumentServer, request: str) -> tuple[int, str]:
    """Send the text of a request as it is, and return status and text of the answer."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(request.encode())
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        return reply.status, reply.read().decode(errors="replace")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil.example", ""]
)
def test_a_foreign_name_that_resolves_to_this_host_is_rejected(host: str) -> None:
    with served(ROOT) as server:
        for path in ("/README.md", "/", "/style.css", "http://127.0.0.1/README.md"):
            status, text = answer_to(server, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            assert (status, "paragent" in text) == (403, False), path
        for name in ("127.0.0.1:1", "localhost", "LOCALHOST:8000", "[::1]:8000"):  # a forwarded port has another number
            request = f"GET /README.md HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
            assert answer_to(server, request)[0] == 200, name


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/docs/images/../../pyproject.toml",
        "/docs/images/%2e%2e/%2e%2e/pyproject.toml",
        "/docs/images/..%2f..%2fpyproject.toml",
        "/docs/images/%252e%252e/%252e%252e/pyproject.toml",
        "/docs/images/..%5c..%5cpyproject.toml",
        "/examples//etc/passwd",
        "//etc/passwd",
        "/docs/images/logo.svg%00/../../../pyproject.toml",
        "/docs/images/%ff%fe",
        "http://[/README.md",
    ],
)
def test_no_path_leads_out_of_the_documentation(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    with served(ROOT) as server:
        status, text = answer_to(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert status in {400, 404}
    assert "root:" not in text
    assert "[project]" not in text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_rejected(method: str) -> None:
    with served(ROOT) as server:
        request = f"{method} /README.md HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        assert answer_to(server, request)[0] == 501


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["docs", "--serve", "--port", str(other.getsockname()[1])]) == 2
    assert re.search(
        r"cannot listen on port \d+: Address already in use; choose another --port", capsys.readouterr().err
    )


def test_serving_prints_a_link_until_ctrl_c(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    with BoundedPopen(
        [sys.executable, "-m", "paragent", "docs", "guide/view", "--serve"],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        link = process.stdout.readline().strip()
        assert "The web view" in status_and_text(link)[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
