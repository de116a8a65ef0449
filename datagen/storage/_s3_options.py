"""Settings of the S3 backend: from `storage.storage_options`, then the environment, then an AWS profile."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from datagen.errors import UserError
from datagen.registry import library
from datagen.storage._http_exchange import TlsSocket
from datagen.storage.storage_base import Option

AWS = "aws"  # value of `endpoint_url` for Amazon's servers; an omitted setting never causes costs there


class Options(msgspec.Struct, forbid_unknown_fields=True, dict=True):
    """The options as they may be given, with their defaults; what they mean: docs/objects.md."""

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

    def __post_init__(self) -> None:
        """Take missing options from the environment or the profile. Raises UserError."""
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
        if any(address.scheme == "https" for address in self.addresses):
            # By botocore's rules; SSL_CERT_FILE and SSL_CERT_DIR are left to OpenSSL
            self.ca_bundle = self.ca_bundle or self._setting("ca_bundle", "AWS_CA_BUNDLE")
            self.ca_bundle = self.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE", "")

    def tls(self) -> ssl.SSLContext | None:
        """Return an SSL context that trusts `ca_bundle`, else SSL_CERT_FILE, else the system's CAs; None for http."""
        if not any(address.scheme == "https" for address in self.addresses):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_bundle or None)
        except OSError as error:  # no such file, or (ssl.SSLError, which has a `reason`) no certificates in it
            reason = getattr(error, "reason", None) or error.strerror or error
            raise UserError(
                f"{self.ca_bundle} can't be read ({reason}): wanted a file of certificates (PEM) in "
                "storage.storage_options.ca_bundle, AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE"
            ) from error
        context.sslsocket_class = TlsSocket
        return context

    def _setting(self, name: str, *variables: str) -> str:
        """Return a setting from the first set environment variable, else from the selected profile; '' without one."""
        for variable in variables:
            if os.environ.get(variable):
                return os.environ[variable]
        profile = self.s3_profile or os.environ.get("AWS_PROFILE", "")
        if not profile:
            return ""
        session = library("botocore.session", "s3", "storage.storage_options.s3_profile")
        try:
            return str(session.Session(profile=profile).get_scoped_config().get(name, ""))
        except Exception as error:  # of botocore's own kinds: no such profile, a file that can't be parsed
            raise UserError(f"profile {profile!r} of ~/.aws: {error}") from error


def read_options(options: Mapping[str, Option]) -> Options:
    """Return the settings that `storage.storage_options` make. Raises UserError that says what is wrong with them."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return msgspec.convert(given, Options, strict=False)  # a workload file may have "true" and "30" in quotes
    except msgspec.ValidationError as error:
        names = ", ".join(Options.__struct_fields__)
        raise UserError(
            f"storage.storage_options ($) of s3: {error}. The options are {names}; stores of another uri_scheme (az, "
            "gs, ...) need storage.storage_type=fsspec"
        ) from None


def _address(url: str, secure: bool) -> SplitResult:
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
    default = 443 if parts.scheme == "https" else 80  # proxies leave it out of the Host that was signed
    return parts._replace(netloc=parts.netloc.lower().removesuffix(f":{default}"))
