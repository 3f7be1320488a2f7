"""`paragent docs`: read the documentation, which is part of the installation, in a browser or in the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING

from paragent.cli.options import add_command
from paragent.cli.view import has_display, open_browser, ssh_command
from paragent.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from paragent.cli.docs.library import Library, Page, PageMatch
    from paragent.cli.options import Subparsers

__all__ = ["add", "page_names"]

_MOST_HITS = 20
_LINE_LENGTH = 100


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "docs",
        "read the documentation, without a connection to the Internet",
        "Read the documentation of this version, which is part of the installation. On a host with a display it opens in a "
        "browser, and this command serves it until Ctrl-C, on this host only. Without a display, or if the output is not a "
        "terminal, it is printed.",
    )
    topic = "a page, such as guide/tasks, or words to search for (default: the list of pages)"
    parser.add_argument("topic", nargs="*", metavar="TOPIC", help=topic)
    parser.add_argument("--text", action="store_true", help="print it in the terminal")
    parser.add_argument("--serve", action="store_true", help="serve it, also on a host without a display")
    parser.add_argument("--port", type=int, metavar="N", default=0, help="port to listen on (default: a free one)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a page or serve all pages."""
    from paragent.cli.docs.library import open_library

    if options.text and options.serve:
        raise ConfigError("--text and --serve exclude each other")
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port must be from 0 to 65535, not {options.port}")
    library, words = open_library(), " ".join(options.topic)
    hits = library.find(words) if words else []
    if words and not hits:
        raise ConfigError(
            f"no page of the documentation has all of these words: {words}; `paragent docs --text` lists the pages"
        )
    if options.serve or (has_display() and sys.stdout.isatty() and not options.text):
        _serve(library, hits, words, options.port)
    elif len(hits) == 1:
        _print_page(library, hits[0].page)
    elif hits:
        _print_hits(hits)
    else:
        _print_list(library)
    return 0


def page_names() -> list[str]:
    """Return the topics of all pages, for completion."""
    from paragent.cli.docs.library import open_library

    return [page.topic for page in open_library().pages]


def _serve(library: Library, hits: Sequence[PageMatch], words: str, port: int) -> None:
    from urllib.parse import quote_plus

    from paragent.cli.docs.server import DocumentServer

    with DocumentServer(library, port) as server:
        path = "README.md" if not hits else hits[0].page.path if len(hits) == 1 else f"search?q={quote_plus(words)}"
        link = server.link(path)
        forwarding = ssh_command(link)
        first = f"\nOn your own computer, first: {forwarding}" if forwarding else ""
        print(f"The documentation:\n  {link}{first}\nCtrl-C stops the server.", flush=True)
        if has_display():
            open_browser(link)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def _print_page(library: Library, page: Page) -> None:
    text = library.text_for_terminal(page)
    if not sys.stdout.isatty():
        print(text)  # Markdown, so that code can be copied as it is
        return
    from paragent._internal.text import safe_console
    from paragent.cli.docs.terminal import rendered

    console = safe_console()
    os.environ.setdefault("LESS", "-FRX")  # as git does: keep colours, and end if the page fits on the screen
    with console.pager(styles=True):
        console.print(rendered(text), crop=False)


def _print_hits(hits: Sequence[PageMatch]) -> None:
    width = max(len(hit.page.topic) for hit in hits[:_MOST_HITS])
    for hit in hits[:_MOST_HITS]:
        print(f"{hit.page.topic:<{width}}   {hit.title}")
        if hit.line:
            print(f"  {hit.line if len(hit.line) <= _LINE_LENGTH else f'{hit.line[: _LINE_LENGTH - 1]}…'}")
    print("\n`paragent docs TOPIC` shows one of them.")


def _print_list(library: Library) -> None:
    width = max(len(page.topic) for page in library.pages)
    for section, pages in groupby(library.pages, key=lambda page: page.section):
        print(section)
        for page in pages:
            print(f"  {page.topic:<{width}}   {library.title(page)}")
    print(
        "\n`paragent docs TOPIC` prints a page, `paragent docs WORDS` searches, `paragent docs --serve` shows them in a browser."
    )
