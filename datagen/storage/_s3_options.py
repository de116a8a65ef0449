"""Settings of the S3 backend: from `storage.storage_options`, then the environment, then an AWS profile."""

from __future__ import annotations

import os
import re
import ssl
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from datagen.errors import UserError
from datagen.registry import library
from datagen.storage._http_exchange import Address, TlsSocket
from datagen.storage.storage_base import Option

AWS = "aws"  # value of `endpoint_url` for Amazon's servers; an omitted setting never causes costs there
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """The options as they may be given, with their defaults; what they mean: docs/objects.md."""

    endpoint_url: str = ""
    region: str = ""
    s3_force_path_style: bool | None = None  # None: for all servers but Amazon's
    s3_max_attempts: Annotated[int, Meta(ge=1)] = 5  # as botocore's legacy mode
    s3_profile: str = ""
    timeout_seconds: Annotated[float, Meta(ge=0.001)] = 30  # how long a stall may hold a batch
    use_full_object_uri: bool = False
    uri_scheme: str = "s3"
    secure: bool = True
    ca_bundle: str = ""
    checksum_writes: bool = True


class Options:
    """Validated settings; missing options are taken from the environment or the profile."""

    def __init__(self, options: dict[str, Option]) -> None:
        """Read `storage.storage_options`. Raises UserError that says what is wrong with them."""
        try:
            # Not strict: a workload file may have "true" and "30" in quotes
            set_here = {name: value for name, value in options.items() if value is not None}
            given = msgspec.convert(set_here, Given, strict=False)
        except msgspec.ValidationError as error:
            names = ", ".join(Given.__struct_fields__)
            raise UserError(f"storage.storage_options ($) of s3: {error}. The options are {names}") from None
        if given.uri_scheme != "s3":
            raise UserError(
                f"storage.storage_options.uri_scheme is {given.uri_scheme!r}: for az, gs and others set "
                "storage.storage_type=fsspec"
            )
        self.profile = given.s3_profile
        self.full_uri = given.use_full_object_uri
        self.checksums = given.checksum_writes
        self.attempts = given.s3_max_attempts
        self.timeout_seconds = given.timeout_seconds
        self.endpoint = self._endpoint(given)
        self.region = str(given.region or self._setting("region", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1")
        is_aws = self.endpoint == AWS
        if is_aws:
            self.endpoint = f"https://s3.{self.region}.amazonaws.com"
        self.addresses = tuple(_address(part.strip(), given.secure) for part in self.endpoint.split(","))
        self.path_style = not is_aws if given.s3_force_path_style is None else given.s3_force_path_style
        self.ca_bundle = ""
        if any(address.is_tls for address in self.addresses):
            # By botocore's rules; SSL_CERT_FILE and SSL_CERT_DIR are left to OpenSSL
            ca_bundle = given.ca_bundle or self._setting("ca_bundle", "AWS_CA_BUNDLE")
            self.ca_bundle = str(ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or "")

    def tls(self) -> ssl.SSLContext | None:
        """Return an SSL context that trusts `ca_bundle`, else SSL_CERT_FILE, else the system's CAs; None for http."""
        if not any(address.is_tls for address in self.addresses):
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

    def _endpoint(self, given: Given) -> str:
        endpoint = given.endpoint_url or os.environ.get("S3_ENDPOINT_URIS") or ""
        endpoint = endpoint or str(self._setting("endpoint_url", *ENDPOINT_VARIABLES) or "")
        if not endpoint:
            raise UserError(
                "no S3 server is named: set storage.storage_options.endpoint_url (or AWS_ENDPOINT_URL_S3) to its "
                f"address, such as http://10.0.0.1:9000, or to {AWS} for Amazon's own, where requests cost money"
            )
        return endpoint

    def _setting(self, name: str, *variables: str) -> object:
        """Return a setting from the first set environment variable, else from the selected profile."""
        for variable in variables:
            if os.environ.get(variable):
                return os.environ[variable]
        profile = self.profile or os.environ.get("AWS_PROFILE", "")
        if not profile:
            return None
        try:
            session = library("botocore.session", "s3", "storage.storage_options.s3_profile").Session(profile=profile)
            config = session.get_scoped_config()
        except UserError:
            raise
        except Exception as error:  # of botocore's own kinds: no such profile, a file that can't be parsed
            raise UserError(f"profile {profile!r} of ~/.aws: {error}") from error
        return config.get(name)


def _address(url: str, secure: bool) -> Address:
    if "://" not in url:
        url = f"{'https' if secure else 'http'}://{url}"
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path.strip("/"):
        raise UserError(
            f"storage.storage_options.endpoint_url is {_without_user(url)!r}: wanted the address of a server, such as "
            "http://10.0.0.1:9000"
        )
    if parts.username or parts.password:
        raise UserError(
            f"storage.storage_options.endpoint_url {_without_user(url)!r} contains a user name: give credentials in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return Address(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


def _without_user(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)
