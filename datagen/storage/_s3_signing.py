"""S3 credentials, from the environment or botocore's credential chain, and the signature of each request.

AWS Signature Version 4 with the payload's SHA-256 or `UNSIGNED-PAYLOAD`: "Authenticating Requests: Using the
Authorization Header (AWS Signature Version 4)" in the Amazon S3 API reference. Why not a library: to save CPU time,
what all requests of one second have in common is computed once.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from datagen.errors import ServerError
from datagen.registry import library

if TYPE_CHECKING:
    from hashlib import _Hash

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_needs_no_quoting = re.compile(r"[\w/.~-]*", re.ASCII).fullmatch
ERROR_CHARACTERS = 300  # maximum length of botocore's error text in our messages
SOURCES = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) in the environment, a profile of "
    "~/.aws/credentials (AWS_PROFILE, storage.storage_options.s3_profile), or the machine's role"
)
Headers = tuple[tuple[str, str], ...]


class Signer:
    """Signs requests of one region, with keys of the environment, or of botocore's chain, which renews those of a role.

    Threads share it.
    """

    def __init__(self, profile: str, region: str) -> None:
        self.region = region
        self._profile = profile
        self._chain: Any = None
        self._lock = threading.Lock()
        self._stem = functools.lru_cache(64)(self._new_stem)

    def lines(self, method: str, host: str, path: str, query: str, payload_sha256: str, others: Headers = ()) -> str:
        """Return the header lines that sign a request, including `Host`; `path` and `query` are quoted already.

        `others` are further headers named x-amz-* (lower case); they are signed and included. Raises ServerError: there
        are no credentials.
        """
        signed, lines, inner, outer = self._stem(int(time.time()), host, payload_sha256, others)
        request = hashlib.sha256(f"{method}\n{path}\n{query}\n{signed}".encode()).hexdigest()
        inner, outer = inner.copy(), outer.copy()
        inner.update(request.encode())
        outer.update(inner.digest())
        return f"{lines}{outer.hexdigest()}\r\n"

    def _new_stem(self, second: int, host: str, payload_sha256: str, others: Headers) -> tuple[str, str, _Hash, _Hash]:
        """Return what the requests of one second with the same headers have in common.

        It is the end of the canonical request (headers, their names, and the payload's hash), the header lines up to
        the signature, and the two hashes of HMAC (RFC 2104), started with the day's signing key, because OpenSSL's own
        set-up of an HMAC takes longer than computing it. The inner one has hashed all of the string to sign but the
        request's hash.
        """
        access_key, secret_key, session_token = self._keys()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        scope_parts = stamp[:8], self.region, "s3", "aws4_request"
        scope = "/".join(scope_parts)
        key = b"AWS4" + secret_key.encode()
        for part in scope_parts:
            key = hmac.digest(key, part.encode(), "sha256")
        padded = key.ljust(hashlib.sha256().block_size, b"\0")
        inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))
        inner.update(f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n".encode())
        token = (("x-amz-security-token", session_token),) if session_token else ()
        required = (("host", host), ("x-amz-content-sha256", payload_sha256), ("x-amz-date", stamp))
        headers = sorted([*required, *token, *others])
        names = ";".join(name for name, _ in headers)
        listed = "".join(f"{name}:{value}\n" for name, value in headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        credential = f"Credential={access_key}/{scope}, SignedHeaders={names}, Signature="
        signed = f"{listed}\n{names}\n{payload_sha256}"
        return signed, f"{lines}authorization: AWS4-HMAC-SHA256 {credential}", inner, outer

    def _keys(self) -> tuple[str, str, str]:
        """Return access key, secret key and session token ('' without one), valid now. Raises ServerError: no keys."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        access, secret, token = (os.environ.get(name, "") for name in names)
        if access and secret and not self._profile:
            return access, secret, token
        try:
            with self._lock:
                if self._chain is None:
                    session = library("botocore.session", "s3", "a profile or a role as credentials")
                    self._chain = session.Session(profile=self._profile or None).get_credentials()
            if self._chain is None:
                raise LookupError("its chain of credentials is empty")
            frozen = self._chain.get_frozen_credentials()  # fetches new ones if they have expired
        except Exception as error:  # no botocore, no such profile, a role that can't be taken, ...
            profile = self._profile or os.environ.get("AWS_PROFILE", "")
            of_profile = f" of profile {profile!r}" if profile else ""
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:ERROR_CHARACTERS]}"
            login = ": log in again (aws sso login)" if "sso" in reason.lower() else ""
            raise ServerError(f"no credentials{of_profile} for S3 ({reason}){login}. Wanted: {SOURCES}") from error
        return frozen.access_key, frozen.secret_key, frozen.token or ""


def query_text(query: Sequence[tuple[str, str]]) -> str:
    """Return a query string sorted and quoted as the signature requires."""
    return urlencode(sorted(query), quote_via=quote, safe="-_.~")


def quoted_path(key: str) -> str:
    """Quote an object's key for use in a URL path."""
    return key if _needs_no_quoting(key) else quote(key, safe="/-_.~")
