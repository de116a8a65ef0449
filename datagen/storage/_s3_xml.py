"""What an S3 server says in XML: errors, pages of a listing, uploads.

It comes from outside, so nothing in it may cost more than its bytes are worth: no DOCTYPE (of which all entities come),
no nesting, no tag beyond reason, no more elements than a page can have. Time and memory then grow with what came, of
which the client takes `LIST_BYTES` at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.parsers import expat

LISTED_AT_A_TIME = 1000  # the most that ListObjectsV2 returns
LIST_BYTES = 8 << 20
"""Most bytes of a page: 1000 keys of 1024 bytes, each written as a reference, and what else is reported of them."""
MOST_ELEMENTS = 100_000  # a full page of 1000 keys has about 10,000
DEEPEST = 16  # S3's own answers have 4: ListBucketResult, Contents, Owner, ID
TOKEN_BYTES = 64 << 10
"""Most bytes of a tag with its attributes, or of a comment; and how many are parsed at a time."""
MOST_CHARACTERS = 4 << 10
"""Of a continuation token or the number of an upload: they go back in the heads of requests."""


class WrongXmlError(ValueError):
    """It is not what an S3 server answers. The text says why, to go on with after "the answer"."""


class ErrorDetails(NamedTuple):
    """What an error says of itself; empty where it is none of S3's."""

    code: str = ""
    message: str = ""


@dataclass
class Page:
    """A page of a listing."""

    keys: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """With their last slash."""
    continuation: str = ""
    """With what to request the next page; empty of the last one."""


def error_in(body: bytes) -> ErrorDetails:
    """Return what an error says, as far as it can be read: it may be cut short, or be of a proxy and no XML at all."""
    details: dict[str, str] = {}

    def take(path: Sequence[str], text: str) -> None:
        if len(path) == 2 and path[0] == "Error":
            details.setdefault(path[1], text)

    with contextlib.suppress(WrongXmlError):
        _walk(body, take)
    return ErrorDetails(details.get("Code", ""), details.get("Message", ""))


def upload_id_in(body: bytes) -> str:
    """Return under which number an upload was begun. Raises WrongXmlError."""
    found: list[str] = []

    def take(path: Sequence[str], text: str) -> None:
        if len(path) == 2 and path[1] == "UploadId":
            found.append(text)

    _walk(body, take)
    if len(found) != 1 or not 0 < len(found[0]) <= MOST_CHARACTERS:
        raise WrongXmlError("names no upload (UploadId)")
    return found[0]


def check_completed(body: bytes) -> None:
    """Raise WrongXmlError where an upload is not reported as complete: the answer began before that was known."""
    roots: list[str] = []

    def take(path: Sequence[str], _text: str) -> None:
        roots.append(path[0])

    _walk(body, take)
    if roots[-1] != "CompleteMultipartUploadResult":
        raise WrongXmlError(f"is {roots[-1][:60]!r} where a completed upload was expected")


def page_in(body: bytes) -> Page:
    """Return a page of a listing. Raises WrongXmlError."""
    page, about, roots = Page(), dict[str, str](), set[str]()

    def take(path: Sequence[str], text: str) -> None:
        if len(path) == 3 and path[1:] == ["Contents", "Key"]:
            page.keys.append(text)
        elif len(path) == 3 and path[1:] == ["CommonPrefixes", "Prefix"]:
            page.folders.append(text)
        elif len(path) == 2:
            about[path[1]] = text
        elif len(path) == 1:
            roots.add(path[0])

    _walk(body, take)
    if roots != {"ListBucketResult"}:
        raise WrongXmlError(f"is {min(roots)[:60]!r} where a listing was expected")
    if about.get("EncodingType") == "url":  # for XML can't hold every character that a key may have
        page.keys = [unquote_plus(key) for key in page.keys]
        page.folders = [unquote_plus(folder) for folder in page.folders]
    if about.get("IsTruncated") != "false":
        page.continuation = about.get("NextContinuationToken", "")
    if len(page.continuation) > MOST_CHARACTERS:
        raise WrongXmlError(f"has a continuation token of {len(page.continuation)} characters")
    return page


def _walk(body: bytes, take: Callable[[list[str], str], None]) -> None:
    """Call `take` with the names down to each element, and its text, when it ends. Raises WrongXmlError."""
    path: list[str] = []
    text: list[str] = []
    elements = 0

    def begin(name: str, _attributes: object) -> None:
        nonlocal elements
        elements += 1
        if elements > MOST_ELEMENTS or len(path) == DEEPEST:
            raise WrongXmlError(f"has more than {MOST_ELEMENTS} elements, or more than {DEEPEST} nested")
        path.append(name)
        text.clear()

    def end(_name: str) -> None:
        take(path, "".join(text))
        path.pop()
        text.clear()

    def refuse(*_words: object) -> None:
        raise WrongXmlError("has a DOCTYPE, which no response of S3 has")

    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, text.append
    parser.StartDoctypeDeclHandler = refuse
    try:
        for at in range(0, len(body), TOKEN_BYTES):
            piece = body[at : at + TOKEN_BYTES]
            parser.Parse(piece, False)
            if at + len(piece) - parser.CurrentByteIndex > TOKEN_BYTES:
                raise WrongXmlError(f"has a tag or comment of more than {TOKEN_BYTES >> 10} KiB")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise WrongXmlError(f"is not XML ({error})") from error
