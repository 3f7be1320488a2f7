"""The files of the documentation, in a clone and in the wheel. The build of the wheel loads this file alone."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PACKAGED", "document_files"]

PACKAGED = Path(__file__).parent / "pages"
"""Where the build of the wheel copies the documentation to, in the folders of the repository; a clone does not have it."""
_PATTERNS = (
    *("README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml"),
    *("docs/**/*.md", "docs/images/*.png", "docs/images/*.svg"),
    *("examples/**/*.py", "examples/**/*.sh"),
)


def document_files(root: Path) -> list[str]:
    """Return the paths of all files of the documentation, relative to the folder of the repository or of its copy."""
    return sorted({path.relative_to(root).as_posix() for pattern in _PATTERNS for path in root.glob(pattern)})
