"""Plain clients of an object store: GET after GET into one buffer that is used again.

`plain_get CLIENT EPOCHS WARM_UP HOST PORT BUCKET KEY...` prints JSON as `plain_read` does. CLIENT is `bare` (sockets,
no signature, no checks: the fastest), `signed` (the same with dlemu's signature) or `obstore`, a well-kept client, that
signs, checks and retries.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from datagen.storage._s3_signing import EMPTY_SHA256, Credentials, Signer

PIECE_BYTES = 1 << 16
REGION = "us-east-1"
Get = Callable[[str], int]
"""Fetches an object by its key; returns its bytes."""


def by_sockets(host: str, port: int, bucket: str, buffer: bytearray, *, signed: bool) -> Get:
    """GET over one connection into the buffer, which is long enough."""
    connection = socket.create_connection((host, port))
    signer, authority, view = Signer(Credentials(), REGION), f"{host}:{port}", memoryview(buffer)

    def get(key: str) -> int:
        path = f"/{bucket}/{key}"
        lines = signer.lines("GET", authority, path, "", EMPTY_SHA256) if signed else f"Host: {authority}\r\n"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        got = 0
        while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
            got += connection.recv_into(view[got : got + PIECE_BYTES])
        head = bytes(view[:end]).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"{path}: {head[:100]!r}")
        size = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        whole = end + 4 + size
        while got < whole:
            got += connection.recv_into(view[got:whole])
        return size

    return get


def by_obstore(host: str, port: int, bucket: str, buffer: bytearray) -> Get:
    """GET by obstore; its bytes are copied into the buffer."""
    obstore: Any = importlib.import_module("obstore")
    store = importlib.import_module("obstore.store").S3Store(
        bucket,
        endpoint=f"http://{host}:{port}",
        region=REGION,
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    view = memoryview(buffer)

    def get(key: str) -> int:
        data = memoryview(obstore.get(store, key).bytes())
        view[: len(data)] = data
        return len(data)

    return get


def main() -> None:
    """Fetch all objects, epoch after epoch, and print what that took after the first epochs."""
    client, epochs, warm_up, host, port, bucket, *keys = sys.argv[1:]
    buffer = bytearray(1 << 28)
    place = host, int(port), bucket, buffer
    get = by_obstore(*place) if client == "obstore" else by_sockets(*place, signed=client == "signed")
    taken = 0
    started = cpu = 0.0
    for epoch in range(int(epochs)):
        if epoch == int(warm_up):
            started, cpu, taken = time.perf_counter(), time.process_time(), 0
        for key in keys:
            taken += get(key)
    took = {"bytes": taken, "wall_seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(took))


if __name__ == "__main__":
    main()
