"""Redacts credentials in storage options, URLs, messages and command lines, before they are written or shown.

Every storage names its credentials differently (`account_key`, `sas`, `passphrase`, ...). Therefore this is an
allow-list: only the values of harmless options are shown, all others are redacted. Names of options are always shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from datagen.errors import UserError

WITHHELD = "withheld"  # replaces a redacted value; no storage accepts it as a value
HARMLESS_OPTIONS = frozenset(
    {"endpoint_url", "endpoint", "region", "region_name", "host", "port", "project", "account_name"}  # addresses
    | {"protocol", "uri_scheme", "s3_force_path_style", "addressing_style", "use_full_object_uri"}  # forms of URLs
    | {"s3_max_attempts", "timeout_seconds", "timeout", "connect_timeout", "read_timeout"}  # retries and timeouts
    | {"block_size", "default_block_size", "default_fill_cache", "default_cache_type", "max_concurrency"}  # reads
    | {"use_listings_cache", "skip_instance_cache", "version_aware"}  # caches and versions
    | {"storage_library", "auto_mkdir", "checksum_writes"}  # the library, and writes
    | {"s3_profile", "profile", "ca_bundle", "anon", "secure", "use_ssl", "verify", "requester_pays"}  # accounts, TLS
)
"""Options whose values say where a storage is and how it is used, but grant no access."""
SECRET_NAMES = "secret|passw|token|credential|access_?key|api_?key"  # pattern of words in names of credentials
_MIN_SECRET_CHARS = 4  # shorter values are not redacted in messages, because they occur in other words
_MIN_PART_CHARS = 8  # the same for a part of a value, as of `AccountName=x;AccountKey=y`


def redact_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a storage's options for files: all names, and the values of harmless options."""
    return {name: redact_option(name, value) for name, value in options.items()}


def redact_option(name: str, value: Any) -> Any:
    """Return an option's value for files, redacted unless the option is harmless."""
    if value is None or isinstance(value, bool):
        return value
    if name not in HARMLESS_OPTIONS:
        return WITHHELD
    return redact_urls(value) if isinstance(value, str) else value


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")  # s3://bucket/key
_URL_USER = re.compile(r"(://)[^/\s?#]*@")  # me:x@ in https://me:x@host
_URL_VALUE = re.compile(r"([?&;][^=&;\s]*=)[^&;\s\"')\]},]+")  # x in https://host/key?sig=x


def redact_urls(text: str) -> str:
    """Return a text without the user names, passwords and query values (signatures) of its URLs."""
    if "://" not in text:
        return text
    return _URL.sub(lambda url: _URL_VALUE.sub(rf"\1{WITHHELD}", _URL_USER.sub(rf"\1{WITHHELD}@", url[0])), text)


def redact_message(text: str, options: Mapping[str, object]) -> str:
    """Return an error message without the credentials in URLs and in options, which a library may quote."""
    for name, option in options.items():
        if redact_option(name, option) != WITHHELD:
            continue
        for value in _scalars(option):
            parts = [part.partition("=")[2] for part in re.split("[;&]", value)]
            secrets = [value, *(part for part in parts if len(part) >= _MIN_PART_CHARS)]
            for secret in secrets:
                if len(secret) >= _MIN_SECRET_CHARS and secret != WITHHELD:
                    quoted = quote(secret, safe="", errors="surrogateescape")
                    text = text.replace(secret, WITHHELD).replace(quoted, WITHHELD)
    return redact_urls(text)


def _scalars(value: object) -> Iterator[str]:
    """Yield the numbers and strings of an option, even if it is a list or mapping by mistake."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _scalars(part)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


_OPTION = re.compile(r"([+]*(?:workload[./])?storage[./]storage_options[./]([^=]*)=)(.*)", re.DOTALL)
"""A storage option in a command line: `storage.storage_options.sas=x`, `++workload.storage.storage_options.sas=x`."""
_OPTION_SECTION = re.compile(r"(.*?storage_options[^=:]*[=:]).*", re.DOTALL)
"""Storage options in other forms than `_OPTION`: a whole section (`storage_options={sas: x}`), an invalid override."""
_SECRET_ARG = re.compile(rf"([^\s=]*(?:{SECRET_NAMES})[^\s=]*=).*", re.IGNORECASE | re.DOTALL)  # --api-key=x


def redact_argv(argv: Iterable[str]) -> list[str]:
    """Return the arguments of a command line without credentials."""
    return [redact_urls(_redact_arg(arg)) for arg in argv]


def _redact_arg(arg: str) -> str:
    """Return an argument, with its value redacted if that may be a credential."""
    if option := _OPTION.fullmatch(arg):
        prefix, name, value = option.groups()
        is_public = value.lower() in ("true", "false", "null") or redact_option(name, value) != WITHHELD
        return arg if is_public else f"{prefix}{WITHHELD}"
    if section := _OPTION_SECTION.fullmatch(arg):
        return f"{section[1]}{WITHHELD}"
    return _SECRET_ARG.sub(rf"\1{WITHHELD}", arg)


def argv_options(argv: Iterable[str]) -> dict[str, str]:
    """Return the storage options in the arguments of a command line, by name."""
    return {match[2]: match[3].strip("'\"") for match in map(_OPTION.fullmatch, argv) if match}


def printable(text: str) -> str:
    """Return a text that can be encoded as UTF-8, with undecodable bytes of file names (PEP 383) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def check_encoding(names: Iterable[str]) -> None:
    """Raise UserError for a name with bytes that Python could not decode (PEP 383), and that no UTF-8 file can hold."""
    for name in names:
        if re.search("[\ud800-\udfff]", name):  # lone surrogates, which stand for such bytes
            raise UserError(
                f"'{printable(_redact_arg(name))}' has bytes that are not valid {sys.getfilesystemencoding()}, so "
                "results could not name it: rename it, or give a link to it; where the name is UTF-8, set PYTHONUTF8=1"
            )
