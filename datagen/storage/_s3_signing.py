"""S3 credentials, from the environment or botocore's credential chain, and the signature of each request.

AWS Signature Version 4 with the payload's SHA-256 or `UNSIGNED-PAYLOAD`: "Authenticating Requests: Using the
Authorization Header (AWS Signature Version 4)" in the Amazon S3 API reference. Why not a library: to save CPU time,
what all requests of one second have in common is computed once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from datagen.errors import ServerError, UserError
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


class Keys(NamedTuple):
    """An access key with its secret and session token; its repr shows none of them."""

    access_key: str
    secret_key: str
    token: str

    def __repr__(self) -> str:
        return "Keys(...)"


class Credentials:
    """Gets keys from the environment, or botocore's chain, which renews those of a role. Thread-safe."""

    def __init__(self, profile: str = "", environment: Mapping[str, str] = os.environ) -> None:
        self._profile = profile
        self._environment = environment
        self._chain: Any = None
        self._lock = threading.Lock()

    def keys(self) -> Keys:
        """Return the keys that are valid now. Raises ServerError: no keys are found."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        access, secret, token = (self._environment.get(name, "") for name in names)
        if access and secret and not self._profile:
            return Keys(access, secret, token)
        return self._chain_keys()

    def _chain_keys(self) -> Keys:
        """Return the chain's current keys; it fetches new ones if they have expired, which may fail in any way."""
        try:
            with self._lock:
                chain = self._chain = self._chain or self._find()
            frozen = chain.get_frozen_credentials()
        except UserError as error:
            raise ServerError(
                f"there are no credentials for S3 in the environment. Wanted: {SOURCES}. {error}"
            ) from error
        except Exception as error:  # of botocore's own kinds: no such profile, a role that can't be taken
            profile = self._profile or self._environment.get("AWS_PROFILE", "")
            of_profile = f" of profile {profile!r}" if profile else ""
            advice = ""
            if "SSO" in type(error).__name__ or "sso" in str(error).lower():
                advice = f": log in again (aws sso login{f' --profile {profile}' if profile else ''})"
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:ERROR_CHARACTERS]}"
            raise ServerError(f"no credentials{of_profile} for S3 ({reason}){advice}. Wanted: {SOURCES}") from error
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    def _find(self) -> Any:
        botocore = library("botocore.session", "s3", "a profile or a role as credentials")
        credentials = botocore.Session(profile=self._profile or None).get_credentials()
        if credentials is None:
            raise LookupError("its chain of credentials is empty")
        return credentials


class _Stem(NamedTuple):
    """What requests of one second to one host with the same payload and headers have in common."""

    signed: str  # the end of the canonical request: headers, their names, and the payload's hash
    lines: str  # the header lines, up to the signature
    inner: _Hash
    outer: _Hash
    """The two hashes of HMAC (RFC 2104), started with the day's signing key, because OpenSSL's own set-up of an HMAC
    takes longer than computing it. The inner one has hashed all of the string to sign but the request's hash."""


class Signer:
    """Signs requests of one region. Threads share it."""

    def __init__(self, credentials: Credentials, region: str) -> None:
        self.region = region
        self.credentials = credentials
        self._stems: tuple[int, dict[tuple[str, str, Headers], _Stem]] = 0, {}
        """The present second, and by (host, SHA-256 of the payload, other headers) what its requests share."""

    def lines(self, method: str, host: str, path: str, query: str, payload_sha256: str, others: Headers = ()) -> str:
        """Return the header lines that sign a request, including `Host`; `path` and `query` are quoted already.

        `others` are further headers named x-amz-* (lower case); they are signed and included. Raises ServerError: there
        are no credentials.
        """
        second = int(time.time())
        if self._stems[0] != second:
            self._stems = second, {}
        stems, key = self._stems[1], (host, payload_sha256, others)
        stem = stems.get(key) or stems.setdefault(key, self._stem(second, *key))
        request = hashlib.sha256(f"{method}\n{path}\n{query}\n{stem.signed}".encode()).hexdigest()
        inner, outer = stem.inner.copy(), stem.outer.copy()
        inner.update(request.encode())
        outer.update(inner.digest())
        return f"{stem.lines}{outer.hexdigest()}\r\n"

    def _stem(self, second: int, host: str, payload_sha256: str, others: Headers) -> _Stem:
        keys = self.credentials.keys()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        scope_parts = stamp[:8], self.region, "s3", "aws4_request"
        scope = "/".join(scope_parts)
        key = b"AWS4" + keys.secret_key.encode()
        for part in scope_parts:
            key = hmac.digest(key, part.encode(), "sha256")
        padded = key.ljust(hashlib.sha256().block_size, b"\0")
        inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))  # RFC 2104
        inner.update(f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n".encode())
        token = (("x-amz-security-token", keys.token),) if keys.token else ()
        required = (("host", host), ("x-amz-content-sha256", payload_sha256), ("x-amz-date", stamp))
        headers = sorted([*required, *token, *others])
        names = ";".join(name for name, _ in headers)
        listed = "".join(f"{name}:{value}\n" for name, value in headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        credential = f"Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature="
        signed = f"{listed}\n{names}\n{payload_sha256}"
        return _Stem(signed, f"{lines}authorization: AWS4-HMAC-SHA256 {credential}", inner, outer)


def query_text(query: Sequence[tuple[str, str]]) -> str:
    """Return a query string sorted and quoted as the signature requires."""
    return urlencode(sorted(query), quote_via=quote, safe="-_.~")


def quoted_path(key: str) -> str:
    """Quote an object's key for use in a URL path."""
    return key if _needs_no_quoting(key) else quote(key, safe="/-_.~")
