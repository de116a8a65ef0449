"""Identity towards an object store: credentials from where the ecosystem keeps them, and the signature of each request.

Signature Version 4 with the payload's SHA-256, or `UNSIGNED-PAYLOAD` where there is none: "Authenticating Requests:
Using the Authorization Header (AWS Signature Version 4)" of the Amazon S3 API reference. Own code because of what it
costs: all that requests of one second have in common is made once. botocore's chain of credentials is used where the
environment has none.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from datagen.errors import ServerError, UserError
from datagen.extras import library

if TYPE_CHECKING:
    from hashlib import _Hash

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_is_plain = re.compile(r"[\w/.~-]*", re.ASCII).fullmatch
ERROR_CHARACTERS = 300
"""Most of what botocore says of an error that is shown."""
WAYS = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) in the environment, a profile of "
    "~/.aws/credentials (AWS_PROFILE, storage.storage_options.s3_profile), or the machine's role"
)


Headers = tuple[tuple[str, str], ...]


class Keys(NamedTuple):
    """Credentials of one moment. Their text shows no secret."""

    access_key: str
    secret_key: str
    token: str

    def __repr__(self) -> str:
        return "Keys(...)"


class Credentials:
    """Where keys come from: the environment, or botocore's chain (profile, SSO, container, machine), which renews them.

    Threads share it.
    """

    def __init__(self, profile: str = "", environment: Mapping[str, str] = os.environ) -> None:
        self._profile = profile
        self._environment = environment
        self._chain: Any = None
        self._given: Keys | None = None
        """What the chain gave last."""
        self._lock = threading.Lock()

    def keys(self) -> Keys:
        """Return the keys that hold now.

        Raises:
            ServerError: there are none.
        """
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        access, secret, token = (self._environment.get(name, "") for name in names)
        if access and secret and not self._profile:
            return Keys(access, secret, token)
        with self._lock:
            if self._chain is None:
                self._chain = self._find()
            chain = self._chain
        return self._frozen(chain)

    def renew(self) -> bool:
        """Look again for keys that the server called expired; return whether there are others now."""
        with self._lock:
            if self._chain is None:
                return False
            before = self._given
            self._chain = self._find()
            return self._frozen(self._chain) != before

    def _frozen(self, chain: Any) -> Keys:
        """Return the keys that a chain has now: where they are over, it fetches others, which may fail in any way."""
        try:
            frozen = chain.get_frozen_credentials()
        except Exception as error:
            raise self._none(error) from error
        self._given = Keys(frozen.access_key, frozen.secret_key, frozen.token or "")
        return self._given

    def _none(self, error: Exception) -> ServerError:
        """Return why botocore brought no keys; it also raises errors of the system (a web identity's file)."""
        profile = self._profile or self._environment.get("AWS_PROFILE", "")
        of = f" of profile {profile!r}" if profile else ""
        log_in = f" --profile {profile}" if profile else ""
        sso = "SSO" in type(error).__name__ or "sso" in str(error).lower()
        advice = f": log in again (aws sso login{log_in})" if sso else ""
        what = " ".join(str(error).split())[:ERROR_CHARACTERS]
        return ServerError(f"no credentials{of} for S3 ({type(error).__name__}: {what}){advice}. Wanted: {WAYS}")

    def _find(self) -> Any:
        try:
            session = library("botocore.session", "s3", "a profile or a role as credentials").Session(
                profile=self._profile or None
            )
            found = session.get_credentials()
        except UserError as error:
            raise ServerError(f"there are no credentials for S3 in the environment. Wanted: {WAYS}. {error}") from error
        except Exception as error:  # of botocore's own kinds: no such profile, a role that can't be taken
            raise self._none(error) from error
        if found is None:
            raise ServerError(f"there are no credentials for S3. Wanted: {WAYS}")
        return found


@dataclass(frozen=True, repr=False)
class _Second:
    """What the signatures of one second have in common. Its text shows no secret."""

    number: int
    """Since the epoch, by the server's clock."""
    stamp: str
    scope: str
    keys: Keys
    inner: _Hash
    outer: _Hash
    """The two hashes of HMAC (RFC 2104), begun with the day's key: to find HMAC takes OpenSSL longer than to do it. The
    inner one has all of what is signed but the hash of the request."""
    stems: dict[tuple[str, str, Headers], _Stem]
    """By host, hash of the payload and other headers."""


class _Stem(NamedTuple):
    """What those to one host with the same payload have in common."""

    signed: str
    """The end of what is signed of a request: its headers and their names."""
    lines: str
    """The lines of its head, up to the signature."""


class Signer:
    """Signs requests of one region. Threads share it."""

    def __init__(self, credentials: Credentials, region: str) -> None:
        self.region = region
        self.credentials = credentials
        self.clock_offset_seconds = 0.0
        """What to add to this host's clock to have the server's."""
        self.renewed_ns = 0
        """When credentials were last renewed, by the monotonic clock; 0: never."""
        self._second: _Second | None = None

    def lines(self, method: str, host: str, path: str, query: str, payload_sha256: str, others: Headers = ()) -> str:
        """Return the lines of a request's head that sign it, `Host` among them; path and query are quoted.

        `others` are headers whose names begin with `x-amz-`, in small letters; they are signed, and among the lines.

        Raises:
            ServerError: there are no credentials.
        """
        number = int(time.time() + self.clock_offset_seconds)
        second = self._second
        if second is None or second.number != number:
            second = self._second = self._begin(number)
        stem = second.stems.get((host, payload_sha256, others)) or _stem(second, host, payload_sha256, others)
        request = hashlib.sha256(f"{method}\n{path}\n{query}\n{stem.signed}".encode()).hexdigest()
        inner, outer = second.inner.copy(), second.outer.copy()
        inner.update(request.encode())
        outer.update(inner.digest())
        return f"{stem.lines}{outer.hexdigest()}\r\n"

    def renew(self) -> bool:
        """Look again for keys that the server called expired; return whether there are others now."""
        renewed = self.credentials.renew()
        self._second = None
        self.renewed_ns = time.monotonic_ns()
        return renewed

    def _begin(self, number: int) -> _Second:
        keys = self.credentials.keys()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(number))
        parts = stamp[:8], self.region, "s3", "aws4_request"
        key = b"AWS4" + keys.secret_key.encode()
        for part in parts:
            key = hmac.digest(key, part.encode(), "sha256")
        padded = key.ljust(hashlib.sha256().block_size, b"\0")
        inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))  # RFC 2104
        scope = "/".join(parts)
        inner.update(f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n".encode())
        return _Second(number, stamp, scope, keys, inner, outer, {})


def _stem(second: _Second, host: str, payload_sha256: str, others: Headers) -> _Stem:
    """Make what is common to the requests to a host, for all of this second."""
    keys = second.keys
    headers = [("host", host), ("x-amz-content-sha256", payload_sha256), ("x-amz-date", second.stamp)]
    if keys.token:
        headers.append(("x-amz-security-token", keys.token))
    headers = sorted([*headers, *others])
    names = ";".join(name for name, _ in headers)
    listed = "".join(f"{name}:{value}\n" for name, value in headers)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    credential = f"Credential={keys.access_key}/{second.scope}, SignedHeaders={names}, Signature="
    stem = _Stem(f"{listed}\n{names}\n{payload_sha256}", f"{lines}authorization: AWS4-HMAC-SHA256 {credential}")
    second.stems[host, payload_sha256, others] = stem
    return stem


def query_text(query: Sequence[tuple[str, str]]) -> str:
    """Return a query in the order and spelling that is signed."""
    return "&".join(f"{quoted(name)}={quoted(value)}" for name, value in sorted(query))


def quoted(text: str) -> str:
    """Quote as the signature wants it: all but letters, digits and -_.~"""
    return quote(text, safe="-_.~")


def quoted_path(key: str) -> str:
    """Quote an object's key for a path."""
    return key if _is_plain(key) else quote(key, safe="/-_.~")
