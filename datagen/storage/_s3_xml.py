"""Parsers of the XML in an S3 server's responses: errors, pages of a listing, uploads.

A server is not trusted: the client accepts at most 8 MiB; a DOCTYPE (hence entities) and too many tags are
refused, and namespaces are not resolved, as that would repeat a namespace's name for each tag and attribute.

Why not botocore: it parses a page of 1000 keys in 56 ms of CPU time, this module in 5 ms; to make its client takes each
process 0.2 CPU seconds; and it reads a response to its end, however long that response is and however slowly it comes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.parsers import expat

from datagen.storage._http_exchange import BrokenResponseError, number_in
from datagen.storage.storage_base import Listed

PAGE_KEYS = 1000  # ListObjectsV2 returns at most 1000 keys per page
MAX_TAGS = 100_000  # a full page of 1000 keys has about 20,000; each element takes some 300 bytes of memory
MAX_ID_CHARACTERS = 4 << 10  # of a continuation token or upload ID: the client sends them back in headers
INVALID_NAMES = ("", ".", "..")  # keys that end in them can't be written as a path


def error_in(body: bytes) -> tuple[str, str]:
    """Return code and message of an S3 error, '' where there is none: it may be truncated, or a proxy's HTML."""
    error = re.search(rb"<Error[\s>].*", body, re.DOTALL)
    found = (re.search(b"<%s>([^<]*)</" % name, error[0] if error else b"") for name in (b"Code", b"Message"))
    code, message = (html.unescape(match[1].decode(errors="replace")) if match else "" for match in found)
    return code, message


def upload_id_in(body: bytes) -> str:
    """Return the UploadId of a new multipart upload. Raises BrokenResponseError."""
    upload_id = _root(body).findtext("UploadId", "")
    if not 0 < len(upload_id) <= MAX_ID_CHARACTERS:
        raise BrokenResponseError("the response names no upload (UploadId)")
    return upload_id


def check_completed(body: bytes) -> None:
    """Raise BrokenResponseError unless the upload was completed: S3 sends status 200 first and the result later."""
    _root(body, "CompleteMultipartUploadResult")


def uploads_in(body: bytes) -> list[tuple[str, str]]:
    """Return key and ID of each multipart upload in a listing of them. Raises BrokenResponseError."""
    root = _root(body, "ListMultipartUploadsResult")
    uploads = ((item.findtext("Key", ""), item.findtext("UploadId", "")) for item in root.iterfind("Upload"))
    return [(key, upload_id) for key, upload_id in uploads if 0 < len(upload_id) <= MAX_ID_CHARACTERS]


def page_in(prefix: str, body: bytes) -> tuple[list[Listed], str]:
    """Return what a page of a listing has directly below a prefix, and the token of the next page; '' on the last one.

    Raises BrokenResponseError.
    """
    root = _root(body, "ListBucketResult")
    token = "" if root.findtext("IsTruncated") == "false" else root.findtext("NextContinuationToken", "")
    if len(token) > MAX_ID_CHARACTERS:
        raise BrokenResponseError(f"the response has a continuation token of {len(token)} characters")
    # Keys may have characters that XML can't express
    plain: Callable[[str], str] = unquote_plus if root.findtext("EncodingType") == "url" else str
    objects = ((item.findtext("Key", ""), item.findtext("Size", "")) for item in root.iterfind("Contents"))
    keys = [(plain(key), False, number_in(size)) for key, size in objects]
    folders = (item.text or "" for item in root.iterfind("CommonPrefixes/Prefix"))
    keys += [(plain(key).removesuffix("/"), True, None) for key in folders]
    entries = []
    for key, is_folder, size_bytes in keys:
        name = key[len(prefix) :]
        if not key.startswith(prefix) or "/" in name:
            raise BrokenResponseError(f"the response lists {key[:200]!r}, which is not directly below {prefix!r}")
        if name not in INVALID_NAMES:
            entries.append(Listed(name, is_folder, size_bytes))
    return entries, token


def _root(body: bytes, name: str = "") -> ElementTree.Element:
    """Return the root of XML from an untrusted server; raise BrokenResponseError for XML that no S3 server sends."""
    if b"<!DOCTYPE" in body or b"\0" in body:  # UTF-16, in which a DOCTYPE has other bytes, has NULs
        raise BrokenResponseError("the response has a DOCTYPE or a NUL, which no response of S3 has")
    if body.count(b"<") > MAX_TAGS:
        raise BrokenResponseError(f"the response has more than {MAX_TAGS} tags")
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate("utf-8")  # whatever encoding the body states
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise BrokenResponseError(f"the response is not XML ({error})") from error
    root = builder.close()
    if name and root.tag != name:
        raise BrokenResponseError(f"the response is {root.tag[:60]!r} where {name} was expected")
    return root
