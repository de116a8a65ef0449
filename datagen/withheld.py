"""Keeps credentials in storage options, URLs and command lines out of files and messages.

Every storage names its credentials differently (`account_key`, `sas`, `passphrase`, ...). Therefore this is an
allow-list: only the values of harmless options are shown, all others are withheld. Names of options are always shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from datagen.errors import UserError

WITHHELD = "withheld"  # written instead of a withheld value; no storage accepts it as a value
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
_MIN_SECRET = 4  # minimum characters of a value that is removed from messages: shorter ones occur in other words
_MIN_SECRET_PART = 8  # the same for a part of a value, as of `AccountName=x;AccountKey=y`
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")  # s3://bucket/key
_OPTION = re.compile(r"([+]*(?:workload[./])?storage[./]storage_options[./]([^=]*)=)(.*)", re.DOTALL)
"""A storage option in a command line: `storage.storage_options.sas=x`, `++workload.storage.storage_options.sas=x`."""
_OPTION_SECTION = re.compile(r"(.*?storage_options[^=:]*[=:]).*", re.DOTALL)
"""Storage options in other forms than `_OPTION`: a whole section (`storage_options={sas: x}`), an invalid override."""
SECRET_NAMES = "secret|passw|token|credential|access_?key|api_?key"  # pattern of words in names of credentials
_SECRET_WORD = re.compile(rf"([^\s=]*(?:{SECRET_NAMES})[^\s=]*=).*", re.IGNORECASE | re.DOTALL)  # --api-key=x
_UNDECODED = re.compile("[\ud800-\udfff]")  # a byte that Python could not decode (PEP 383)
_USER = re.compile(r"(://)[^/\s?#]*@")  # user name and password in a URL: https://me:x@host
_QUERY = re.compile(r"([?&;][^=&;\s]*=)[^&;\s\"')\]},]+")  # a value in the query of a URL: https://host/key?sig=x


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a storage's options for files: all names, and the values of harmless options."""
    return {name: public_option(name, value) for name, value in options.items()}


def public_option(name: str, value: Any) -> Any:
    """Return an option's value for files, withheld unless it is harmless."""
    if value is None or isinstance(value, bool):
        return value
    if name not in HARMLESS_OPTIONS:
        return WITHHELD
    return public_text(value) if isinstance(value, str) else value


def printable(text: str) -> str:
    """Return a text that can be encoded as UTF-8, with undecodable bytes of file names (PEP 383) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def public_text(text: str) -> str:
    """Return a text without the user names, passwords and query values (signatures) of its URLs."""
    if "://" not in text:
        return text
    return _URL.sub(lambda url: _QUERY.sub(rf"\1{WITHHELD}", _USER.sub(rf"\1{WITHHELD}@", url[0])), text)


def scrubbed(text: str, options: Mapping[str, object]) -> str:
    """Return a message without the values of withheld options, which a library may quote in an error."""
    for name, option in options.items():
        if public_option(name, option) != WITHHELD:
            continue
        for value in _scalars(option):
            parts = [part.partition("=")[2] for part in re.split("[;&]", value)]
            for secret in (value, *(part for part in parts if len(part) >= _MIN_SECRET_PART)):
                if len(secret) >= _MIN_SECRET and secret != WITHHELD:
                    quoted = quote(secret, safe="", errors="surrogateescape")
                    text = text.replace(secret, WITHHELD).replace(quoted, WITHHELD)
    return public_text(text)


def _scalars(value: object) -> Iterator[str]:
    """Yield the numbers and strings of an option, even if it is a list or mapping by mistake."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _scalars(part)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def check_letters(words: Iterable[str]) -> None:
    """Raise UserError for a word with bytes that Python could not decode, and that no file could hold as UTF-8.

    They are lone surrogates (PEP 383), from a name in another encoding, or non-ASCII letters in the C locale.
    """
    for word in words:
        if _UNDECODED.search(word):
            shown = printable(_without_secret(word))
            raise UserError(
                f"'{shown}' has bytes that are not valid {sys.getfilesystemencoding()}, so results could not name it:"
                " rename it, or give a link to it; where the name is UTF-8, set PYTHONUTF8=1"
            )


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the words of a command line for files, without credentials."""
    return [public_text(_without_secret(word)) for word in words]


def _without_secret(word: str) -> str:
    """Return a word of a command line, with the value withheld if it may be a credential."""
    if option := _OPTION.fullmatch(word):
        before, name, value = option.groups()
        is_public = value.lower() in ("true", "false", "null") or public_option(name, value) != WITHHELD
        return word if is_public else f"{before}{WITHHELD}"
    if section := _OPTION_SECTION.fullmatch(word):
        return f"{section[1]}{WITHHELD}"
    return _SECRET_WORD.sub(rf"\1{WITHHELD}", word)


def given_options(words: Iterable[str]) -> dict[str, str]:
    """Return the storage options in the words of a command line, by name."""
    matches = (_OPTION.fullmatch(word) for word in words)
    return {match[2]: match[3].strip("'\"") for match in matches if match}
