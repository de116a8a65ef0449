"""What `storage.storage_options`, the environment and a profile make of a server, its address and its patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datagen.errors import UserError
from datagen.storage._s3_options import Options

pytestmark = pytest.mark.usefixtures("keys")
HERE = "http://host:9000"


def server(**given: Any) -> Options:
    return Options({"endpoint_url": HERE} | given)


def test_each_option_is_taken_or_as_documented() -> None:
    plain, given = Options({"endpoint_url": HERE}), server(
        region="r", s3_force_path_style=False, s3_max_attempts=2, s3_profile="p", timeout_seconds="0.5",
        use_full_object_uri=True, checksum_writes="False",
    )  # fmt: skip
    for options, wanted in (
        (plain, (True, 5, 30, "us-east-1", True, False, "")),
        (given, (False, 2, 0.5, "r", False, True, "p")),
    ):
        found = options.path_style, options.attempts, options.timeout_seconds, options.region, options.checksums
        assert (*found, options.full_uri, options.profile) == wanted
    assert (plain.endpoint, plain.ca_bundle, plain.tls()) == (HERE, "", None)


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ({"endpoint_url": HERE}, [("host:9000", False)]),
        ({"endpoint_url": "https://host"}, [("host", True)]),
        ({"endpoint_url": "host:9000"}, [("host:9000", True)]),
        ({"endpoint_url": "http://a:1, https://b:2 ,c"}, [("a:1", False), ("b:2", True), ("c", True)]),
        ({"endpoint_url": "http://[::1]:9000"}, [("[::1]:9000", False)]),
        ({"endpoint_url": "aws", "region": "eu-west-1"}, [("s3.eu-west-1.amazonaws.com", True)]),
    ],
)
def test_servers_are_named_by_addresses(given: dict[str, Any], addresses: list[tuple[str, bool]]) -> None:
    assert [(one.authority, one.is_tls) for one in server(**given).addresses] == addresses


def test_a_bucket_stands_before_amazons_host_and_behind_anybody_elses() -> None:
    assert server().path_style
    assert not server(endpoint_url="aws").path_style
    assert server(endpoint_url="aws", s3_force_path_style="true").path_style
    assert server(endpoint_url="aws").endpoint == "https://s3.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("names", "endpoint"),
    [
        (("AWS_ENDPOINT_URL",), "http://AWS_ENDPOINT_URL"),
        (("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), "http://AWS_ENDPOINT_URL_S3"),
        (("AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URIS"), "http://S3_ENDPOINT_URIS"),
    ],
)
def test_the_environment_names_the_server_where_no_option_does(
    names: tuple[str, ...], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        monkeypatch.setenv(name, f"http://{name}")
    assert Options({}).endpoint == endpoint
    assert Options({"endpoint_url": HERE}).endpoint == HERE


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_profile_names_server_and_region(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore")
    (tmp_path / "config").write_text("[profile p]\nregion = of-p\nendpoint_url = http://of-p:1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if way == "environment":
        monkeypatch.setenv("AWS_PROFILE", "p")
    options = Options({"s3_profile": "p"} if way == "option" else {})
    assert (options.endpoint, options.region) == ("http://of-p:1", "of-p")
    assert Options({"s3_profile": "p", "endpoint_url": HERE, "region": "r"}).endpoint == HERE


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timeout_seconds": 0}, "`float` >= 0.001 - at `..timeout_seconds`"),
        ({"s3_max_attempts": 0.5}, "`int`.* - at `..s3_max_attempts`"),
        ({"access_key": "k"}, "unknown field `access_key`.* The options are endpoint_url, region, "),
        ({"s3_profile": "nobodys"}, "profile 'nobodys' of ~/.aws: .*could not be found"),
        ({"uri_scheme": "az"}, "uri_scheme is 'az': for az, gs and others set storage.storage_type=fsspec"),
        ({"endpoint_url": "http://host:port"}, "endpoint_url is 'http://host:port': wanted the address of a server"),
        ({"endpoint_url": "http://:pass@host:1"}, "endpoint_url 'http://host:1' contains a user name"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given(given: dict[str, Any], words: str) -> None:
    if "s3_profile" in given:
        pytest.importorskip("botocore")
        given = given | {"endpoint_url": ""}
    with pytest.raises(UserError, match=words) as told:
        server(**given)
    assert "pass" not in str(told.value).replace("password", "")
