"""Parsers of the XML in an S3 server's responses: errors, pages of a listing, uploads.

A server is not trusted, so parsing takes time and memory linear in the input, of which the client accepts at most
`LIST_BYTES`: a DOCTYPE (hence entities), deep nesting, huge tags and too many elements are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.parsers import expat

from datagen.storage._http_exchange import number_in

PAGE_KEYS = 1000  # ListObjectsV2 returns at most 1000 keys per page
LIST_BYTES = 8 << 20
"""Maximum size of a page: 1000 keys of 1024 bytes, each byte written as a character reference, and their metadata."""
MAX_ELEMENTS = 100_000  # a full page of 1000 keys has about 10,000
MAX_DEPTH = 16  # S3's own responses have 4: ListBucketResult, Contents, Owner, ID
TOKEN_BYTES = 64 << 10  # maximum size of a tag with its attributes, or of a comment; also the bytes parsed per step
MAX_ID_CHARACTERS = 4 << 10
"""Maximum length of a continuation token or upload ID: the client sends them back in request headers."""


class WrongXmlError(ValueError):
    """The XML is not what an S3 server sends. Its text says why, to follow the words "the response"."""


class ErrorDetails(NamedTuple):
    """Code and message of an S3 error; empty if the response is no S3 error."""

    code: str = ""
    message: str = ""


@dataclass
class Page:
    """A page of a listing."""

    objects: list[tuple[str, int | None]] = field(default_factory=list)
    """Key and size of each object; None if the page does not state a size."""
    folders: list[str] = field(default_factory=list)  # common prefixes, with their final slash
    continuation: str = ""  # continuation token for the next page; empty on the last page


def error_in(body: bytes) -> ErrorDetails:
    """Return code and message of an error, as far as they can be parsed: it may be truncated, or a proxy's HTML."""
    details: dict[str, str] = {}

    def take(path: Sequence[str], text: str) -> None:
        if len(path) == 2 and path[0] == "Error":
            details.setdefault(path[1], text)

    with contextlib.suppress(WrongXmlError):
        _walk(body, take)
    return ErrorDetails(details.get("Code", ""), details.get("Message", ""))


def upload_id_in(body: bytes) -> str:
    """Return the UploadId of a new multipart upload. Raises WrongXmlError."""
    found: list[str] = []

    def take(path: Sequence[str], text: str) -> None:
        if len(path) == 2 and path[1] == "UploadId":
            found.append(text)

    _walk(body, take)
    if len(found) != 1 or not 0 < len(found[0]) <= MAX_ID_CHARACTERS:
        raise WrongXmlError("names no upload (UploadId)")
    return found[0]


def check_completed(body: bytes) -> None:
    """Raise WrongXmlError unless the upload was completed: S3 sends status 200 first and the result later."""
    roots: list[str] = []

    def take(path: Sequence[str], _text: str) -> None:
        roots.append(path[0])

    _walk(body, take)
    if roots[-1] != "CompleteMultipartUploadResult":
        raise WrongXmlError(f"is {roots[-1][:60]!r} where a completed upload was expected")


def page_in(body: bytes) -> Page:
    """Return a page of a listing. Raises WrongXmlError."""
    page, fields, contents, roots = Page(), dict[str, str](), dict[str, str](), set[str]()

    def take(path: Sequence[str], text: str) -> None:
        if len(path) == 3 and path[1] == "Contents":
            contents[path[2]] = text
        elif path[1:] == ["Contents"]:
            if "Key" in contents:
                page.objects.append((contents["Key"], number_in(contents.get("Size", ""))))
            contents.clear()
        elif len(path) == 3 and path[1:] == ["CommonPrefixes", "Prefix"]:
            page.folders.append(text)
        elif len(path) == 2:
            fields[path[1]] = text
        elif len(path) == 1:
            roots.add(path[0])

    _walk(body, take)
    if roots != {"ListBucketResult"}:
        raise WrongXmlError(f"is {min(roots)[:60]!r} where a listing was expected")
    if fields.get("EncodingType") == "url":  # keys may have characters that XML can't express
        page.objects = [(unquote_plus(key), size_bytes) for key, size_bytes in page.objects]
        page.folders = [unquote_plus(folder) for folder in page.folders]
    if fields.get("IsTruncated") != "false":
        page.continuation = fields.get("NextContinuationToken", "")
    if len(page.continuation) > MAX_ID_CHARACTERS:
        raise WrongXmlError(f"has a continuation token of {len(page.continuation)} characters")
    return page


def _walk(body: bytes, take: Callable[[list[str], str], None]) -> None:
    """Call `take(path, text)` at the end of each element; `path` has the names from the root. Raises WrongXmlError."""
    path: list[str] = []
    text: list[str] = []
    elements = 0

    def begin(name: str, _attributes: object) -> None:
        nonlocal elements
        elements += 1
        if elements > MAX_ELEMENTS or len(path) == MAX_DEPTH:
            raise WrongXmlError(f"has more than {MAX_ELEMENTS} elements, or more than {MAX_DEPTH} nested")
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
