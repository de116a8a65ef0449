"""Access to an S3 server: addresses and certificates, credentials, and the signature of each request.

Settings come from `storage.storage_options`, then the environment, then an AWS profile. Credentials come from the
environment or botocore's chain. The signature is AWS Signature Version 4 with the payload's SHA-256 or
`UNSIGNED-PAYLOAD` (Amazon S3 API reference, "Authenticating Requests: Using the Authorization Header"). dlemu signs
without botocore to save CPU time: it computes what the requests of one second have in common only once.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec
from msgspec import Meta

from datagen.errors import ServerError, UserError
from datagen.registry import library
from datagen.storage._http_exchange import TlsSocket
from datagen.storage.storage_base import Option

AWS = "aws"  # `endpoint_url` of Amazon's servers; users must ask for them explicitly, because requests cost money
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_needs_no_quoting = re.compile(r"[\w/.~-]*", re.ASCII).fullmatch
ERROR_CHARACTERS = 300  # maximum length of botocore's error text in our messages
SOURCES = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) in the environment, a profile of "
    "~/.aws/credentials (AWS_PROFILE, storage.storage_options.s3_profile), or the machine's role"
)
Headers = tuple[tuple[str, str], ...]


class Options(msgspec.Struct, forbid_unknown_fields=True, dict=True):
    """The options of `storage.storage_options`, with their defaults; docs/objects.md explains them."""

    endpoint_url: str = ""
    region: str = ""
    s3_force_path_style: bool | None = None  # None: for all servers but Amazon's
    s3_max_attempts: Annotated[int, Meta(ge=1)] = 5  # as botocore's legacy mode
    s3_profile: str = ""
    timeout_seconds: Annotated[float, Meta(ge=0.001)] = 30  # how long a stall may hold a batch
    use_full_object_uri: bool = False
    uri_scheme: Literal["s3"] = "s3"
    secure: bool = True
    ca_bundle: str = ""
    checksum_writes: bool = True

    def complete(self) -> None:
        """Take missing options from the environment or the profile, and parse the addresses. Raises UserError."""
        self.region = self.region or self._setting("region", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        variables = ("S3_ENDPOINT_URIS", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        self.endpoint_url = self.endpoint_url or self._setting("endpoint_url", *variables)
        if not self.endpoint_url:
            raise UserError(
                "no S3 server is named: set storage.storage_options.endpoint_url (or AWS_ENDPOINT_URL_S3) to its "
                f"address, such as http://10.0.0.1:9000, or to {AWS} for Amazon's own, where requests cost money"
            )
        if self.s3_force_path_style is None:
            self.s3_force_path_style = self.endpoint_url != AWS
        if self.endpoint_url == AWS:
            self.endpoint_url = f"https://s3.{self.region}.amazonaws.com"
        self.addresses = tuple(_address(part.strip(), self.secure) for part in self.endpoint_url.split(","))
        self.uses_tls = any(address.scheme == "https" for address in self.addresses)
        if self.uses_tls:  # follow botocore's rules; SSL_CERT_FILE and SSL_CERT_DIR are left to OpenSSL
            self.ca_bundle = self.ca_bundle or self._setting("ca_bundle", "AWS_CA_BUNDLE")
            self.ca_bundle = self.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE", "")

    def tls(self) -> ssl.SSLContext | None:
        """Return an SSL context that trusts `ca_bundle`, else SSL_CERT_FILE, else the system's CAs; None for http."""
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_bundle or None)
        except OSError as error:  # no such file, or one without certificates (ssl.SSLError, which has a `reason`)
            reason = getattr(error, "reason", None) or error.strerror or error
            raise UserError(
                f"{self.ca_bundle} can't be read ({reason}): wanted a file of certificates (PEM) in "
                "storage.storage_options.ca_bundle, AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE"
            ) from error
        context.sslsocket_class = TlsSocket
        return context

    def _setting(self, name: str, *variables: str) -> str:
        """Return the first environment variable that is set, else `name` of the profile; '' if neither is set."""
        for variable in variables:
            if value := os.environ.get(variable):
                return value
        profile = self.s3_profile or os.environ.get("AWS_PROFILE", "")
        if not profile:
            return ""
        session = library("botocore.session", "s3", "storage.storage_options.s3_profile")
        try:
            return str(session.Session(profile=profile).get_scoped_config().get(name, ""))
        except Exception as error:  # botocore's own errors: no such profile, a file that can't be parsed
            raise UserError(f"profile {profile!r} of ~/.aws: {error}") from error


def read_options(options: Mapping[str, Option]) -> Options:
    """Return a storage's options, completed from the environment or a profile. Raises UserError: they are invalid."""
    values = {name: value for name, value in options.items() if value is not None}
    try:
        settings = msgspec.convert(values, Options, strict=False)  # a workload file may have "true" and "30" in quotes
    except msgspec.ValidationError as error:
        names = ", ".join(Options.__struct_fields__)
        advice = "stores of another uri_scheme (az, gs, ...) need storage.storage_type=fsspec"
        raise UserError(f"storage.storage_options ($) of s3: {error}. The options are {names}; {advice}") from None
    settings.complete()
    return settings


def _address(url: str, secure: bool) -> SplitResult:
    """Return the parts of a server's address, with https as the default scheme if `secure`. Raises UserError."""
    if "://" not in url:
        url = f"{'https' if secure else 'http'}://{url}"
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port, or half of an IPv6 address
        is_valid = False
    if not is_valid or "@" in url or parts.path.strip("/"):
        raise UserError(
            f"storage.storage_options.endpoint_url is {re.sub('//[^/]*@', '//USER@', url)!r}: wanted the address of a "
            "server, such as http://10.0.0.1:9000; credentials belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    default_port = 443 if parts.scheme == "https" else 80  # proxies remove it from the Host header, which is signed
    return parts._replace(netloc=parts.netloc.lower().removesuffix(f":{default_port}"))


@dataclass(slots=True)
class _SigningContext:
    """What the signatures of one second's requests have in common, if the requests sign the same headers.

    HMAC(key, text) is hash((key ^ opad) + hash((key ^ ipad) + text)) (RFC 2104). The two hashes are prepared here,
    because OpenSSL's HMAC takes longer to set up than to compute.
    """

    header_lines: str  # the header lines to send, up to the signature
    canonical_end: str  # the end of the canonical request: headers, their names, and the payload's hash
    inner: hashlib._Hash  # fed with key ^ ipad, and with the string to sign up to the canonical request's hash
    outer: hashlib._Hash  # fed with key ^ opad


class Signer:
    """Signs requests to one region, with keys from the environment or from botocore's chain. Threads share it."""

    def __init__(self, profile: str, region: str) -> None:
        self.region = region
        self._profile = profile
        self._chain: Any = None
        self._lock = threading.Lock()
        self._context = functools.lru_cache(64)(self._new_context)

    def lines(self, method: str, host: str, path: str, query: str, payload_sha256: str, extra: Headers = ()) -> str:
        """Return the header lines that sign a request, including `Host`; `path` and `query` are quoted already.

        The headers `extra` (x-amz-*, lower case) are signed and included, too. Raises ServerError: no credentials.
        """
        context = self._context(int(time.time()), host, payload_sha256, extra)
        request_hash = hashlib.sha256(f"{method}\n{path}\n{query}\n{context.canonical_end}".encode()).hexdigest()
        inner, outer = context.inner.copy(), context.outer.copy()
        inner.update(request_hash.encode())
        outer.update(inner.digest())
        return f"{context.header_lines}{outer.hexdigest()}\r\n"

    def _new_context(self, second: int, host: str, payload_sha256: str, extra: Headers) -> _SigningContext:
        access_key, secret_key, session_token = self._keys()
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        scope_parts = timestamp[:8], self.region, "s3", "aws4_request"
        scope = "/".join(scope_parts)
        key = b"AWS4" + secret_key.encode()
        for part in scope_parts:
            key = hmac.digest(key, part.encode(), "sha256")
        padded_key = key.ljust(hashlib.sha256().block_size, b"\0")
        inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in padded_key)) for pad in (0x36, 0x5C))  # ipad, opad
        inner.update(f"AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n".encode())
        headers = [("host", host), ("x-amz-content-sha256", payload_sha256), ("x-amz-date", timestamp), *extra]
        if session_token:
            headers.append(("x-amz-security-token", session_token))
        headers.sort()
        names = ";".join(name for name, _ in headers)
        canonical_lines = "".join(f"{name}:{value}\n" for name, value in headers)
        header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        credential = f"Credential={access_key}/{scope}, SignedHeaders={names}, Signature="
        header_lines += f"authorization: AWS4-HMAC-SHA256 {credential}"
        return _SigningContext(header_lines, f"{canonical_lines}\n{names}\n{payload_sha256}", inner, outer)

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
            frozen = self._chain.get_frozen_credentials()  # renews those of a role if they have expired
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
