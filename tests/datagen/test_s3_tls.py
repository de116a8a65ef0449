"""Objects over https, from a real server that a private authority vouches for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datagen.errors import UserError
from datagen.storage.s3 import Storage
from datagen.storage.storage_base import open_storage
from tests.datagen.test_s3 import DATA, counts_of, read, write
from tests.object_stores import S3, Certificates, make_certificates, rclone_server, why_no_rclone

pytestmark = pytest.mark.usefixtures("keys")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def server(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    if why_no_rclone():
        pytest.skip(why_no_rclone())
    with rclone_server(tmp_path_factory.mktemp("tls-server"), certificates) as served:
        yield served


def opened(server: S3, **options: object) -> Storage:
    storage = open_storage(server.spec(options={"timeout_seconds": 10, **options}, range_bytes=1 << 20, io_depth=4))
    assert isinstance(storage, Storage)
    return storage


@pytest.mark.parametrize("way", ["AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "option", "profile"])
def test_the_authority_is_named_in_any_of_the_usual_ways(
    way: str, server: S3, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, options = str(certificates.authority), {}
    if way == "option":
        options = {"ca_bundle": authority}
    elif way == "profile":
        pytest.importorskip("botocore")
        (tmp_path / "config").write_text(f"[profile of-tests]\nca_bundle = {authority}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "of-tests")
    else:
        monkeypatch.setenv(way, authority)
    storage, large = opened(server, **options), DATA * 40  # 20 MB: an upload in parts, and ranges in flight
    storage.is_folder("")
    write(storage, f"tls/{way}", large)
    assert read(storage, f"tls/{way}", most_bytes=len(large)) == large
    assert counts_of(storage)["failed"] == 0


def test_an_authority_that_is_not_trusted_is_told_at_once(server: S3, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other").authority
    for options in ({}, {"ca_bundle": str(other)}):
        storage = opened(server, **options)
        words = r"^https://127.*: its certificate is not trusted \(.*AWS_CA_BUNDLE"
        with pytest.raises(UserError, match=words) as told:
            storage.is_folder("")
        assert "\n" not in str(told.value)
        assert counts_of(storage)["retried"] == 0
        with pytest.raises(UserError, match="its certificate is not trusted"):
            read(storage, "a")


def test_a_certificate_of_another_name_is_told_at_once(server: S3, certificates: Certificates) -> None:
    elsewhere = replace(server, endpoint=server.endpoint.replace("127.0.0.1", "localhost"))
    with pytest.raises(UserError, match=r"not trusted \(.*'localhost'.*or the address that the certificate names"):
        opened(elsewhere, ca_bundle=str(certificates.authority)).is_folder("")


def test_the_wrong_one_of_http_and_https_is_told(server: S3, certificates: Certificates) -> None:
    plain = replace(server, endpoint=server.endpoint.replace("https", "http"))
    with pytest.raises(UserError, match=r"http://.*: the server speaks TLS there: wanted https://"):
        opened(plain).is_folder("")
    with rclone_server(certificates.authority.parents[1] / "plain") as without_tls:
        secure = replace(without_tls, endpoint=without_tls.endpoint.replace("http", "https"))
        with pytest.raises(UserError, match=r"^https://.*does not speak TLS there: wanted its address with http://"):
            opened(secure).is_folder("")
