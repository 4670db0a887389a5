"""The text of a web page: a program of its own, so that a page which is poison to the parser costs this process and nothing else.

Reads ``{"url", "html"}`` as JSON on standard input and writes ``{"title", "text"}``. Imports nothing of the gateway.
"""

import html
import json
import logging
import re
import resource
import sys

import trafilatura

MEMORY_BYTES = 1 << 30
CPU_S = 10
MAX_CHARACTERS = 1_000_000
"""Of the text: addresses of links, made whole, can make it far longer than the page."""
_TITLE = re.compile(r"<title[^>]{0,500}>(.{0,2000}?)</title>", re.IGNORECASE | re.DOTALL)
_TITLE_WITHIN = 200_000
_MAX_TITLE = 300


def main() -> None:
    """Read a page, write its text."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    logging.disable(logging.CRITICAL)
    page = json.load(sys.stdin.buffer)
    json.dump({"title": _title(page["html"]), "text": _text(page["html"], page["url"])}, sys.stdout)


def _text(page: str, url: str) -> str:
    """The main text as Markdown; of a page without any all the text there is."""
    found = trafilatura.extract(page, url=url, output_format="markdown", include_links=True, include_tables=True, include_comments=False)
    return (found or trafilatura.html2txt(page) or "").strip()[:MAX_CHARACTERS]


def _title(page: str) -> str:
    found = _TITLE.search(page[:_TITLE_WITHIN])
    return "" if found is None else " ".join(html.unescape(found[1]).split())[:_MAX_TITLE]


if __name__ == "__main__":
    main()
