"""Pages of the documentation as steps that can be executed: code blocks, and instructions in comments.

Every code block of a page is executed, in order, in one empty folder. All Python blocks of a page share their names, as in a
notebook. What a block needs beyond what the page shows stands in an HTML comment before it, which readers do not see:

    <!-- test: setup                   Python code that runs before the blocks that follow
    urls = ["a", "b"]
    -->
    <!-- test: endpoint {"default": "42"} -->   the script of the endpoint at OPENAI_BASE_URL, for the whole page
    <!-- test: needs ray -->           markers for the whole page: slow, ray, spark, qemu, browser, integration
    <!-- test: append --num-vms 1 -->  more arguments for the `paragent` commands of the next block
    <!-- test: status 1 -->            the commands of the next block end with this status
    <!-- test: raises ConfigError -->  the next Python block ends with this exception
    <!-- test: background listening --> the next block is a server; wait for this text in its output, and stop it after the page
    <!-- test: interrupt TEXT -->      interrupt the command of the next block, as Ctrl-C does, when it has printed this text
    <!-- test: parse REASON -->        the next block cannot run here: its `paragent` commands are only parsed; its Python is only
                                       compiled, and its imports are executed

The languages of blocks: `python`; `bash`, where each line is a command; `console`, where the lines that begin with `$ ` are
commands; `toml`, `yaml`, `json` and `jsonl`, which must parse; `text`, which is not executed. A block with a title, or whose
first line is `# name.py`, is a file, which is written and not executed. A `text` block with the title `output` must be what
the block before it printed: each of its lines must be in the output, where numbers may differ and `...` stands for any
text. Of commands that install something (`pip`, `apt-get`, `git`, `make`) only the names of extras and targets are checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if "zh" not in path.parts and not path.name.endswith(".zh.md")
)
"""All pages but the Chinese ones, whose blocks are the same as those of the English pages (test_translations.py)."""
EXECUTED = {"python", "bash", "console"}
PARSED = {"toml", "yaml", "json", "jsonl"}
NOT_EXECUTED = {"text", "diff"}
_STEP = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)(?P=fence) *$"
    r"|<!-- test: (?P<kind>[\w-]+)\s*(?P<argument>.*?)\s*-->",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r"""title=["']([^"']+)["']""")
_FILE_LINE = re.compile(r"# ([\w./-]+\.\w+)\n")


@dataclass
class Block:
    """One code block, with the instructions before it."""

    language: str
    body: str
    line: int
    file: str = ""
    title: str = ""
    instructions: dict[str, str] = field(default_factory=dict)


@dataclass
class Page:
    """The blocks of a page, and the instructions for the whole page."""

    path: Path
    steps: list[Block]
    """Blocks, and hidden set-up code as blocks of the language `setup`."""
    needs: list[str]
    endpoint: str


def read_page(path: Path) -> Page:
    """Read a page.

    Args:
        path: its path in the repository.
    """
    text = (ROOT / path).read_text()
    page = Page(path, [], [], "{}")
    pending: dict[str, str] = {}
    for match in _STEP.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["kind"]:
            if match["kind"] == "setup":
                page.steps.append(Block("setup", match["argument"], line))
            elif match["kind"] == "needs":
                page.needs += match["argument"].split()
            elif match["kind"] == "endpoint":
                page.endpoint = match["argument"]
            else:
                pending[match["kind"]] = match["argument"]
            continue
        info = match["info"].strip()
        language = re.split(r"[\s{]", info)[0] if info else ""
        indent = len(match["indent"])
        body = "".join(row[indent:] or "\n" for row in match["body"].splitlines(keepends=True))
        title = found[1] if (found := _TITLE.search(info)) else ""
        file = title if "." in title and " " not in title else ""
        if not file and (first := _FILE_LINE.match(body)):
            file = first[1]
        page.steps.append(Block(language, body, line, file, title, pending))
        pending = {}
    return page
