"""Text of `.txt`, `.md`, `.html` and `.pdf` files, through libraries that exist for it.

HTML becomes Markdown, so that tables and code are recognisable blocks in all kinds of documents (see `chunking`). The libraries are
imported when a file needs them: planning knows this module too and must answer at once.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from pathlib import Path

from armor_ray.errors import ArmorError

_NOT_CONTENT = ("script", "style", "template", "noscript", "nav", "svg", "iframe")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(raw: bytes, path: Path) -> tuple[str, str]:
    """(title, text) of one file, by its suffix. The text may be empty (a scanned PDF); the title is, where the file names none.

    Raises:
        ArmorError: a file that its parser cannot read.
    """
    title, text = PARSERS[path.suffix.lower()](raw, str(path))
    return _characters(" ".join(title.split())), _characters(text)


def _characters(text: str) -> str:
    """Line ends as one character; without NUL and halves of surrogate pairs, which files may hold but Arrow and tokenizers refuse."""
    return _LONE_SURROGATE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " "))


def _plain(raw: bytes, where: str) -> tuple[str, str]:
    return "", _decode(raw, where)


def _markdown(raw: bytes, where: str) -> tuple[str, str]:
    text = _decode(raw, where)
    heading = _HEADING.search(text)
    return heading[1] if heading else "", text


def _html(raw: bytes, where: str) -> tuple[str, str]:
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    try:
        soup = BeautifulSoup(raw, "html.parser")
        title = soup.title.get_text() if soup.title else ""
        for element in soup.find_all((*_NOT_CONTENT, "title")):
            element.decompose()
        return title, MarkdownConverter(heading_style="atx", code_language="", escape_misc=False).convert_soup(soup).strip()
    except (RecursionError, ValueError, AssertionError) as error:  # absurd nesting; declarations that Python's parser rejects
        raise ArmorError(f"HTML that cannot be parsed ({type(error).__name__})", where=where, hint="save the page again") from None


def _pdf(raw: bytes, where: str) -> tuple[str, str]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns about every deviation that it repairs
    try:
        reader = PdfReader(io.BytesIO(raw))
        title = reader.metadata.title if reader.metadata else None
        text = "\n\n".join(page.extract_text() for page in reader.pages)
    except Exception as error:  # a damaged PDF makes pypdf raise whatever the damaged object leads to
        raise ArmorError(f"PDF that cannot be read ({type(error).__name__})", where=where, hint="repair, decrypt or remove it") from None
    return title if isinstance(title, str) else "", text


def _decode(raw: bytes, where: str) -> str:
    """UTF-8 or UTF-16 by their marks, else UTF-8, else the most likely encoding of old files."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", "replace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        guess = from_bytes(raw).best()
    if guess is None:
        raise ArmorError("not a text file", where=where, hint="save it as UTF-8 or remove it")
    return str(guess)


PARSERS: dict[str, Callable[[bytes, str], tuple[str, str]]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
"""By suffix."""
