"""Who asks an object store: credentials from where the ecosystem keeps them, and the signature of each request.

Signature Version 4 with the payload's SHA-256, or `UNSIGNED-PAYLOAD` where there is none: "Authenticating Requests:
Using the Authorization Header (AWS Signature Version 4)" of the Amazon S3 API reference. Signing a request costs 20
microseconds here and 150 by botocore, whose chain of credentials is used where the environment has none.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from datagen.errors import UserError
from datagen.extras import library

UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
WAYS = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) in the environment, a profile of "
    "~/.aws/credentials (AWS_PROFILE, storage.storage_options.s3_profile), or the machine's role"
)


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
        self._lock = threading.Lock()

    def keys(self) -> Keys:
        """Return the keys that hold now.

        Raises:
            UserError: there are none.
        """
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        access, secret, token = (self._environment.get(name, "") for name in names)
        if access and secret and not self._profile:
            return Keys(access, secret, token)
        with self._lock:
            if self._chain is None:
                self._chain = self._find()
        frozen = self._chain.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    def renew(self) -> bool:
        """Look anew for keys of which the server said that they are over; say whether there are others now."""
        with self._lock:
            if self._chain is None:
                return False
            before = self._chain.get_frozen_credentials()
            self._chain = self._find()
            return bool(self._chain.get_frozen_credentials() != before)

    def _find(self) -> Any:
        try:
            session = library("botocore.session", "s3", "a profile or a role as credentials").Session(
                profile=self._profile or None
            )
            found = session.get_credentials()
        except UserError as error:
            raise UserError(f"there are no credentials for S3 in the environment. Wanted: {WAYS}. {error}") from error
        except Exception as error:  # of botocore's own kinds: no such profile, a role that can't be taken
            raise UserError(f"no credentials for S3: {error}. Wanted: {WAYS}") from error
        if found is None:
            raise UserError(f"there are no credentials for S3. Wanted: {WAYS}")
        return found


class Signer:
    """Signs requests of one region. Threads share it."""

    def __init__(self, credentials: Credentials, region: str) -> None:
        self.region = region
        self.credentials = credentials
        self.clock_offset_seconds = 0.0
        """What to add to this host's clock to have the server's."""
        self._derived: tuple[str, str, bytes] = ("", "", b"")

    def headers(
        self, method: str, host: str, path: str, query: Sequence[tuple[str, str]], payload_sha256: str = UNSIGNED
    ) -> list[tuple[str, str]]:
        """Return the headers that sign a request, `Host` among them; `path` is quoted, `query` is not.

        Raises:
            UserError: there are no credentials.
        """
        keys = self.credentials.keys()
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + self.clock_offset_seconds))
        headers = [("host", host), ("x-amz-content-sha256", payload_sha256), ("x-amz-date", now)]
        if keys.token:
            headers.append(("x-amz-security-token", keys.token))
        names = ";".join(name for name, _ in headers)
        listed = "".join(f"{name}:{value}\n" for name, value in headers)
        request = f"{method}\n{path}\n{query_text(query)}\n{listed}\n{names}\n{payload_sha256}"
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        signature = hmac.new(self._key(keys.secret_key, now[:8]), text.encode(), "sha256").hexdigest()
        headers.append(
            (
                "authorization",
                f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}",
            )
        )
        return headers

    def _key(self, secret: str, day: str) -> bytes:
        """Return the key of a day, which is derived once."""
        known_secret, known_day, key = self._derived
        if (known_secret, known_day) != (secret, day):
            key = b"AWS4" + secret.encode()
            for part in (day, self.region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._derived = secret, day, key
        return key


def query_text(query: Sequence[tuple[str, str]]) -> str:
    """Return a query in the order and spelling that is signed."""
    return "&".join(f"{quoted(name)}={quoted(value)}" for name, value in sorted(query))


def quoted(text: str) -> str:
    """Quote as the signature wants it: all but letters, digits and -_.~"""
    return quote(text, safe="-_.~")


def quoted_path(key: str) -> str:
    """Quote an object's key for a path."""
    return quote(key, safe="/-_.~")
