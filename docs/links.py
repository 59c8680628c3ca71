"""Check every link from a page of the built site into it: `python docs/links.py build/docs`."""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of one page, and the targets of its links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the names and links of one element."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src", "data") and tag != "base":
                self.targets.add(value)


def broken(root: Path) -> list[str]:
    """Return a line for each link that leads to no file, or to no anchor of its page."""
    read = cache(Page)
    lines = []
    for path in sorted(path for path in root.rglob("*.html") if "_static" not in path.parts):
        for target in sorted(read(path).targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if found.is_dir():
                found /= "index.html"
            if not found.exists():
                lines.append(f"{path.relative_to(root)}: no file {target}")
            is_anchor = parts.fragment and found.suffix == ".html" and found.exists()
            if is_anchor and unquote(parts.fragment) not in read(found).anchors:
                lines.append(f"{path.relative_to(root)}: no anchor {target}")
    return lines


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]))
    print("\n".join(found) or "every link inside the site leads somewhere")
    sys.exit(bool(found))
