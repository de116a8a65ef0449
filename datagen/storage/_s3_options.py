"""Settings of the S3 backend: from `storage.storage_options`, then the environment, then an AWS profile."""

from __future__ import annotations

import os
import re
import ssl
from urllib.parse import urlsplit

from datagen.errors import UserError
from datagen.registry import library
from datagen.storage._http_exchange import Address, TlsSocket
from datagen.storage.storage_base import Option

AWS = "aws"
"""Value of `endpoint_url` for Amazon's servers; explicit, so that an omitted setting never causes costs there."""
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
OPTIONS = (
    *("endpoint_url", "region", "s3_force_path_style", "s3_max_attempts", "s3_profile", "timeout_seconds"),
    *("use_full_object_uri", "uri_scheme", "secure", "storage_library", "ca_bundle", "checksum_writes"),
)
"""Names of the options; what they mean: docs/objects.md."""
SCHEMES = ("s3",)


class Options:
    """Validated settings; missing options are taken from the environment or the profile."""

    def __init__(self, given: dict[str, Option]) -> None:
        """Read `storage.storage_options`. Raises UserError that says what is wrong with them."""
        problems = [
            f"storage.storage_options.{name} is not an option of s3; wanted one of {', '.join(OPTIONS)}"
            for name in given
            if name not in OPTIONS
        ]
        scheme = given.get("uri_scheme") or "s3"
        if scheme not in SCHEMES:
            problems.append(
                f"storage.storage_options.uri_scheme is {scheme!r}: for az, gs and others set "
                "storage.storage_type=fsspec"
            )
        if problems:
            raise UserError("\n".join(problems))
        self.profile = str(given.get("s3_profile") or "")
        self.full_uri = _flag(given, "use_full_object_uri", False)
        self.checksums = _flag(given, "checksum_writes", True)
        self.library = str(given.get("storage_library") or "")
        self.attempts = int(_number(given, "s3_max_attempts", 5, 1))  # as botocore's legacy mode
        self.timeout_seconds = _number(given, "timeout_seconds", 30, 0.001)  # how long a stall may hold a batch
        self.endpoint = self._endpoint(given)
        self.region = str(
            given.get("region") or self._setting("region", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        )
        self._is_aws = self.endpoint == AWS
        if self._is_aws:
            self.endpoint = f"https://s3.{self.region}.amazonaws.com"
        secure = _flag(given, "secure", True)
        self.addresses = tuple(_address(part.strip(), secure) for part in self.endpoint.split(","))
        self.path_style = _flag(given, "s3_force_path_style", not self._is_aws)
        self.ca_bundle = ""
        if any(address.is_tls for address in self.addresses):
            # By botocore's rules; SSL_CERT_FILE and SSL_CERT_DIR are left to OpenSSL
            named = given.get("ca_bundle") or self._setting("ca_bundle", "AWS_CA_BUNDLE")
            self.ca_bundle = str(named or os.environ.get("REQUESTS_CA_BUNDLE") or "")

    @property
    def client_endpoint(self) -> str:
        """URL of the server for a client library; of several servers, each process uses one, by its PID."""
        address = self.addresses[os.getpid() % len(self.addresses)]
        return f"{'https' if address.is_tls else 'http'}://{address.authority}"

    def tls(self) -> ssl.SSLContext | None:
        """Return an SSL context that trusts `ca_bundle`, else SSL_CERT_FILE, else the system's CAs; None for http."""
        if not any(address.is_tls for address in self.addresses):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_bundle or None)
        except OSError as error:  # no such file, or (ssl.SSLError) no certificates in it
            raise UserError(
                f"{self.ca_bundle} can't be read ({_reason(error)}): wanted a file of certificates (PEM) in "
                "storage.storage_options.ca_bundle, AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE"
            ) from error
        context.sslsocket_class = TlsSocket
        return context

    def _endpoint(self, given: dict[str, Option]) -> str:
        named = str(given.get("endpoint_url") or os.environ.get("S3_ENDPOINT_URIS") or "")
        named = named or str(self._setting("endpoint_url", *ENDPOINT_VARIABLES) or "")
        if not named:
            raise UserError(
                "no S3 server is named: set storage.storage_options.endpoint_url (or AWS_ENDPOINT_URL_S3) to its "
                f"address, such as http://10.0.0.1:9000, or to {AWS} for Amazon's own, where requests cost money"
            )
        return named

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


def _flag(given: dict[str, Option], name: str, default: bool) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise UserError(f"storage.storage_options.{name} is {value!r}: wanted true or false")


def _number(given: dict[str, Option], name: str, default: float, least: float) -> float:
    value = given.get(name)
    try:
        number = default if value is None else float(value)
    except ValueError:
        number = -1.0
    if number < least:
        raise UserError(f"storage.storage_options.{name} is {value!r}: wanted {least:g} or more")
    return number


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


def _reason(error: OSError) -> str:
    """Return why a certificate file can't be read; an ssl.SSLError has that in `reason`."""
    return getattr(error, "reason", None) or error.strerror or str(error)
