"""What `storage.storage_options`, the environment and a profile make of a server, its address and its patience."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from datagen.storage._s3_access import EMPTY_SHA256, Options, Signer, read_options

pytestmark = pytest.mark.usefixtures("keys")
HERE = "http://host:9000"


def server(**given: Any) -> Options:
    return read_options({"endpoint_url": HERE} | given)


def test_each_option_is_taken_or_as_documented() -> None:
    plain, given = server(), server(
        region="r", s3_force_path_style=False, s3_max_attempts=2, s3_profile="p", timeout_seconds="0.5",
        use_full_object_uri=True, checksum_writes="False",
    )  # fmt: skip
    for options, wanted in (
        (plain, (True, 5, 30, "us-east-1", True, False, "")),
        (given, (False, 2, 0.5, "r", False, True, "p")),
    ):
        found = options.s3_force_path_style, options.s3_max_attempts, options.timeout_seconds, options.region
        assert (*found, options.checksum_writes, options.use_full_object_uri, options.s3_profile) == wanted
    assert (plain.endpoint_url, plain.ca_bundle, plain.tls()) == (HERE, "", None)


@pytest.mark.parametrize(
    ("given", "addresses", "path_style"),
    [
        ({"endpoint_url": HERE}, [HERE], True),
        ({"endpoint_url": "https://host"}, ["https://host"], True),
        ({"endpoint_url": "host:9000"}, ["https://host:9000"], True),
        ({"endpoint_url": "http://a:1, https://b:2 ,c"}, ["http://a:1", "https://b:2", "https://c"], True),
        ({"endpoint_url": "http://[::1]:9000"}, ["http://[::1]:9000"], True),
        ({"endpoint_url": "aws", "region": "eu-west-1"}, ["https://s3.eu-west-1.amazonaws.com"], False),
        ({"endpoint_url": "aws", "s3_force_path_style": "true"}, ["https://s3.us-east-1.amazonaws.com"], True),
    ],
)
def test_servers_are_named_by_addresses(given: dict[str, Any], addresses: list[str], path_style: bool) -> None:
    """A bucket stands before Amazon's host, and behind anybody else's."""
    options = server(**given)
    assert [address.geturl() for address in options.addresses] == addresses
    assert options.s3_force_path_style == path_style


def test_the_environment_names_the_server_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URIS"):  # each comes before those to its left
        monkeypatch.setenv(name, f"http://{name}")
        assert read_options({}).endpoint_url == f"http://{name}"
    assert server().endpoint_url == HERE


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_profile_names_server_and_region(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore")
    (tmp_path / "config").write_text("[profile p]\nregion = of-p\nendpoint_url = http://of-p:1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if way == "environment":
        monkeypatch.setenv("AWS_PROFILE", "p")
    options = read_options({"s3_profile": "p"} if way == "option" else {})
    assert (options.endpoint_url, options.region) == ("http://of-p:1", "of-p")
    assert server(s3_profile="p", region="r").endpoint_url == HERE
    assert server(s3_profile="p", endpoint_url="https://host").ca_bundle == ""


def test_a_profile_without_the_library_for_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    install = r"the Python package 'botocore', .* pip install 'dlemu\[s3\]'"
    with pytest.raises(UserError, match=rf"^storage\.storage_options\.s3_profile needs {install}$"):
        server(s3_profile="p")
    with pytest.raises(
        UserError, match=rf"of profile 'p' for S3 \(UserError: a profile or a role as .* {install}\)\. "
    ):
        Signer("p", "r").lines("GET", "host", "/", "", EMPTY_SHA256)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timeout_seconds": 0}, "`float` >= 0.001 - at `..timeout_seconds`"),
        ({"s3_max_attempts": 0.5}, "`int`.* - at `..s3_max_attempts`"),
        ({"access_key": "k"}, "unknown field `access_key`.* The options are endpoint_url, region, "),
        ({"s3_profile": "nobodys"}, "profile 'nobodys' of ~/.aws: .*could not be found"),
        ({"uri_scheme": "az"}, "'az' - at `..uri_scheme`.*storage.storage_type=fsspec"),
        ({"endpoint_url": "http://host:port"}, "endpoint_url is 'http://host:port': wanted the address of a server"),
        ({"endpoint_url": "http://[::1"}, "wanted the address of a server"),
        ({"endpoint_url": "http://:pass@host:1"}, "'http://USER@host:1': .* credentials belong in AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given(given: dict[str, Any], words: str) -> None:
    if "s3_profile" in given:
        pytest.importorskip("botocore")
    with pytest.raises(UserError, match=words) as raised:
        server(**given)
    assert "pass" not in str(raised.value)
