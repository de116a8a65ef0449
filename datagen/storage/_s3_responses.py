"""What an S3 server's responses mean: errors, byte ranges of an object, pages of a listing, uploads.

A server is not trusted. The client accepts bodies of at most 8 MiB; this module refuses a DOCTYPE (hence entities) and
too many tags, and does not resolve namespaces, because that would repeat a namespace's name for each tag and attribute.

Why not botocore: it parses a page of 1000 keys in 56 ms of CPU time, this module in 5 ms; creating its client costs
each process 0.2 CPU seconds; and it reads every response to the end, however long it is and however slowly it arrives.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.parsers import expat

from datagen.storage._http_exchange import BrokenResponseError, Exchange, number_in
from datagen.storage._s3_access import SOURCES
from datagen.storage.storage_base import Listed

_TRANSIENT = ("RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable")
_DAMAGED_IN_TRANSIT = ("XAmzContentSHA256Mismatch", "BadDigest", "IncompleteBody")
RETRYABLE = (408, 429, 500, 502, 503, 504, *_TRANSIENT, *_DAMAGED_IN_TRANSIT)  # HTTP statuses, and S3's error codes
REGION_ADVICE = "set storage.storage_options.region, or AWS_REGION"
# Error code or HTTP status that makes a retry futile -> what it means, and what to do
ADVICE: dict[str | int, str] = {
    "NoSuchUpload": "another program or a lifecycle rule of the bucket aborted the upload: run the command again",
    "RequestTimeTooSkewed": "the clocks of this host and of the server differ too much: set them (ntp)",
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity"),
        f"the server does not accept these credentials. They come from: {SOURCES}",
    ),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"),
        f"the credentials have expired and can't be renewed. They come from: {SOURCES}",
    ),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "PermanentRedirect", 301, 307),
        f"the bucket is in another region: {REGION_ADVICE}",
    ),
    403: "these credentials are not allowed to do that: let them list, read and write the bucket, or use others",
}
# Ends of the codes with which Ceph (QuotaExceeded) and MinIO (XMinioAdminBucketQuotaExceeded, ...) refuse a PUT
NO_SPACE = ("QuotaExceeded", "StorageFull", "InsufficientStorage")
PAGE_KEYS = 1000  # ListObjectsV2 returns at most 1000 keys per page
MAX_TAGS = 100_000  # a full page of 1000 keys has about 20,000; each element takes some 300 bytes of memory
MAX_ID_CHARACTERS = 4 << 10  # of a continuation token or upload ID: the client sends them back in headers
INVALID_NAMES = ("", ".", "..")  # keys that end in them can't be written as a path
_content_range = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.IGNORECASE).fullmatch


def code_in(body: bytes) -> str:
    """Return the code of the S3 error in a body (SlowDown, NoSuchKey, ...), '' if it holds none; fast for data."""
    return error_in(body)[0] if b"<Error" in body[:1000] else ""


def error_in(body: bytes) -> tuple[str, str]:
    """Return code and message of the S3 error in a body, '' where absent: it may be truncated, or a proxy's HTML."""
    error = re.search(rb"<Error[\s>].*", body, re.DOTALL)
    if error is None:
        return "", ""
    texts = []
    for tag in (b"Code", b"Message"):
        match = re.search(b"<%s>([^<]*)</" % tag, error[0])
        texts.append(html.unescape(match[1].decode(errors="replace")) if match else "")
    return texts[0], texts[1]


def range_problem(begin: int, end: int | None, object_bytes: int | None, exchange: Exchange) -> str:
    """Return why a successful response does not hold bytes `begin` to `end` (None: all) of an object; '' if it does."""
    length, content_range = exchange.length, exchange.header("content-range")
    if length == (end or 0) - begin and content_range == f"bytes {begin}-{begin + length - 1}/{object_bytes}":
        return ""  # fast path of nearly all ranges
    if length is None or exchange.status == 204:
        return "the response has no object, or does not state its length"
    is_whole_object = not content_range and exchange.status != 206
    first, stop = 0, length
    size: int | None = length
    match = _content_range(content_range)
    if match:  # rclone sends a range with status 200
        first, stop, size = int(match[1]), int(match[2]) + 1, number_in(match[3])
    if size is None:  # "bytes 0-9/*"
        size = stop if object_bytes is None else object_bytes
    # A range ends early where the object does: "bytes 0-9/10" answers a request for bytes 0-99
    is_requested = first == begin and stop == min(end or size, size) and stop - first == length
    if (match or is_whole_object) and is_requested and object_bytes in (None, size):
        return ""
    requested = "all of the object" if end is None else f"bytes {begin}-{end - 1}"
    if is_whole_object and end is not None:
        return f"all of the object arrived where {requested} was requested: the server does not support ranges"
    of_size = "" if object_bytes is None else f" of {object_bytes}"
    return f"{content_range[:60]!r} with {length} bytes arrived where {requested}{of_size} was requested"


def page_in(prefix: str, body: bytes) -> tuple[list[Listed], str]:
    """Return a listing page's entries and the next page's token ('' on the last). Raises BrokenResponseError."""
    root = _root(body, "ListBucketResult")
    token = "" if root.findtext("IsTruncated") == "false" else root.findtext("NextContinuationToken", "")
    if len(token) > MAX_ID_CHARACTERS:
        raise BrokenResponseError(f"the response has a continuation token of {len(token)} characters")
    # Keys are encoded for URLs, because they may have characters that XML can't express
    decode: Callable[[str], str] = unquote_plus if root.findtext("EncodingType") == "url" else str
    found = [(decode(item.findtext("Key", "")), False, item.findtext("Size", "")) for item in root.iterfind("Contents")]
    found += [(decode(item.text or "").removesuffix("/"), True, "") for item in root.iterfind("CommonPrefixes/Prefix")]
    entries = []
    for key, is_folder, size in found:
        name = key[len(prefix) :]
        if not key.startswith(prefix) or "/" in name:
            raise BrokenResponseError(f"the response lists {key[:200]!r}, which is not directly below {prefix!r}")
        if name not in INVALID_NAMES:
            entries.append(Listed(name, is_folder, number_in(size)))
    return entries, token


def upload_id_in(body: bytes) -> str:
    """Return the UploadId of a new multipart upload. Raises BrokenResponseError."""
    upload_id = _root(body).findtext("UploadId", "")
    if not 0 < len(upload_id) <= MAX_ID_CHARACTERS:
        raise BrokenResponseError("the response names no upload (UploadId)")
    return upload_id


def uploads_in(body: bytes) -> list[tuple[str, str]]:
    """Return key and UploadId of each multipart upload in a listing of uploads. Raises BrokenResponseError."""
    root = _root(body, "ListMultipartUploadsResult")
    uploads = ((item.findtext("Key", ""), item.findtext("UploadId", "")) for item in root.iterfind("Upload"))
    return [(key, upload_id) for key, upload_id in uploads if 0 < len(upload_id) <= MAX_ID_CHARACTERS]


def check_completed(body: bytes) -> None:
    """Raise BrokenResponseError unless the upload was completed: S3 sends status 200 first and the result later."""
    _root(body, "CompleteMultipartUploadResult")


def _root(body: bytes, name: str = "") -> ElementTree.Element:
    """Return the root of XML from a server, which has the tag `name` if that is given. Raises BrokenResponseError."""
    if b"<!DOCTYPE" in body or b"\0" in body:  # a NUL means UTF-16, in which a DOCTYPE has other bytes
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
