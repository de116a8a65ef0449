"""Parsers of the XML in an S3 server's responses: errors, pages of a listing, uploads.

A server is not trusted: the client accepts at most `LIST_BYTES`; a DOCTYPE (hence entities) and too many tags are
refused, and namespaces are not resolved, as that would repeat a namespace's name for each tag and attribute.

Why not botocore: it parses a page of 1000 keys in 56 ms of CPU time, this module in 5 ms; to make its client takes each
process 0.2 CPU seconds; and it reads a response to its end, however long that response is and however slowly it comes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.parsers import expat

from datagen.storage._http_exchange import number_in

PAGE_KEYS = 1000  # ListObjectsV2 returns at most 1000 keys per page
LIST_BYTES = 8 << 20
"""Maximum size of a page: 1000 keys of 1024 bytes, each byte written as a character reference, and their metadata."""
MAX_TAGS = 100_000  # a full page of 1000 keys has about 20,000; each element takes some 300 bytes of memory
MAX_ID_CHARACTERS = 4 << 10  # of a continuation token or upload ID: the client sends them back in headers


class WrongXmlError(ValueError):
    """The XML is not what an S3 server sends. Its text says why, to follow the words "the response"."""


class ErrorDetails(NamedTuple):
    """Code and message of an S3 error; empty if the response is no S3 error."""

    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Page:
    """A page of a listing."""

    objects: list[tuple[str, int | None]]  # key and size of each object; None: the page states no size
    folders: list[str]  # common prefixes, with their final slash
    continuation: str  # continuation token for the next page; empty on the last page


def error_in(body: bytes) -> ErrorDetails:
    """Return code and message of an error, as far as they can be found: it may be truncated, or a proxy's HTML."""
    error = re.search(rb"<Error[\s>].*", body, re.DOTALL)
    if error is None:
        return ErrorDetails()
    found = (re.search(b"<%s>([^<]*)</" % name, error[0]) for name in (b"Code", b"Message"))
    return ErrorDetails(*(html.unescape(match[1].decode(errors="replace")) if match else "" for match in found))


def upload_id_in(body: bytes) -> str:
    """Return the UploadId of a new multipart upload. Raises WrongXmlError."""
    upload_id = _root(body).findtext("UploadId", "")
    if not 0 < len(upload_id) <= MAX_ID_CHARACTERS:
        raise WrongXmlError("names no upload (UploadId)")
    return upload_id


def check_completed(body: bytes) -> None:
    """Raise WrongXmlError unless the upload was completed: S3 sends status 200 first and the result later."""
    _check_name(_root(body), "CompleteMultipartUploadResult", "a completed upload")


def uploads_in(body: bytes) -> list[tuple[str, str]]:
    """Return key and ID of each multipart upload in a listing of them. Raises WrongXmlError."""
    root = _root(body)
    _check_name(root, "ListMultipartUploadsResult", "a listing of uploads")
    uploads = ((item.findtext("Key", ""), item.findtext("UploadId", "")) for item in root.iterfind("Upload"))
    return [(key, upload_id) for key, upload_id in uploads if 0 < len(upload_id) <= MAX_ID_CHARACTERS]


def page_in(body: bytes) -> Page:
    """Return a page of a listing. Raises WrongXmlError."""
    root = _root(body)
    _check_name(root, "ListBucketResult", "a listing")
    # Keys may have characters that XML can't express
    plain: Callable[[str], str] = unquote_plus if root.findtext("EncodingType") == "url" else str
    stated = ((item.findtext("Key", ""), item.findtext("Size", "")) for item in root.iterfind("Contents"))
    folders = (item.text or "" for item in root.iterfind("CommonPrefixes/Prefix"))
    is_last = root.findtext("IsTruncated") == "false"
    continuation = "" if is_last else root.findtext("NextContinuationToken", "")
    if len(continuation) > MAX_ID_CHARACTERS:
        raise WrongXmlError(f"has a continuation token of {len(continuation)} characters")
    return Page([(plain(key), number_in(size)) for key, size in stated], list(map(plain, folders)), continuation)


def _root(body: bytes) -> ElementTree.Element:
    """Return the root of XML from an untrusted server; raise WrongXmlError for XML that no S3 server sends."""
    if b"<!DOCTYPE" in body or b"\0" in body:  # UTF-16, in which a DOCTYPE has other bytes, has NULs
        raise WrongXmlError("has a DOCTYPE or a NUL, which no response of S3 has")
    if body.count(b"<") > MAX_TAGS:
        raise WrongXmlError(f"has more than {MAX_TAGS} tags")
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate("utf-8")  # whatever encoding the body states
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise WrongXmlError(f"is not XML ({error})") from error
    return builder.close()


def _check_name(root: ElementTree.Element, name: str, expected: str) -> None:
    if root.tag != name:
        raise WrongXmlError(f"is {root.tag[:60]!r} where {expected} was expected")
