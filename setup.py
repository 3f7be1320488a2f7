"""The part of the metadata that pyproject.toml cannot express: the README for PyPI, where relative links do not work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SITE = "https://paragent.github.io/paragent/"
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""(!?\[[^\]]*\]\(|\b(?:src|href)=")(?!https?:|mailto:|#)([^)"\s]+)""")
_PAGE = re.compile(r"docs/(?:index|(.+?)(?:/index)?)\.md(#.*)?")


def absolute_links(text: str, version: str) -> str:
    """Return Markdown without relative links: pages of `docs/` are on the site, other files on GitHub, in this version."""

    def absolute(link: re.Match[str]) -> str:
        beginning, target = link.groups()
        if beginning.startswith(("!", "src")):
            return f"{beginning}https://raw.githubusercontent.com/paragent/paragent/v{version}/{target}"
        if page := _PAGE.fullmatch(target):
            return f"{beginning}{SITE}{f'{page[1]}/' if page[1] else ''}{page[2] or ''}"
        return f"{beginning}https://github.com/paragent/paragent/blob/v{version}/{target}"

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    setup(
        long_description=absolute_links((ROOT / "README.md").read_text(), project["version"]),
        long_description_content_type="text/markdown",
    )
