"""Objects opened by the client libraries that training scripts use: s3torchconnector, s3fs, and fsspec in general.

These libraries do not report their requests, so the bytes and reads that they return are counted. They find
credentials, retry and time out as they do in scripts.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from datagen.errors import DatasetError
from datagen.registry import library
from datagen.storage.storage_base import LIBRARIES_OF_OBJECTS, LibraryFile, ReadTotals

if TYPE_CHECKING:
    from datagen.storage._s3_options import Options


class TorchConnector:
    """Amazon's s3torchconnector, through the S3 client that its datasets use."""

    def __init__(self, options: Options) -> None:
        """Raises UserError if s3torchconnector can't be imported."""
        needed_by = "storage.storage_options.storage_library=s3torchconnector"
        connector = library("s3torchconnector", "s3torchconnector", needed_by)
        config = connector.S3ClientConfig(
            force_path_style=options.path_style, max_attempts=options.attempts, profile=options.profile or None
        )
        # A private module, but S3MapDataset has no other way to open an object, and DLIO imports it from here, too
        client = library("s3torchconnector._s3client", "s3torchconnector", needed_by).S3Client
        self._client = client(options.region, endpoint=options.client_endpoint, s3client_config=config)
        self._sequential = connector.S3ReaderConstructor.sequential()
        self._ranged = connector.S3ReaderConstructor.range_based(buffer_size=0)
        """Unbuffered, as its documentation recommends for scattered reads of large objects."""

    def open(self, path: str, bucket: str, key: str, *, whole: bool) -> LibraryFile:
        """Open an object; `path` names it in errors, `whole`: all of it is read. Raises as `_explaining`."""
        app_bytes = streams = 0  # a stream is one GET
        constructor = self._sequential if whole else self._ranged

        def counted(get_stream: Callable[..., Iterator[bytes]], **words: Any) -> Any:
            def stream(*place: int) -> Iterator[bytes]:
                nonlocal app_bytes, streams
                streams += 1
                for piece in get_stream(*place):
                    app_bytes += len(piece)
                    yield piece

            return constructor(get_stream=stream, **words)

        with _explaining(path, "s3torchconnector"):
            reader = self._client.get_object(bucket, key, reader_constructor=counted)
            file = io.BytesIO(reader.read()) if whole else reader
        return ClientFile(path, file, "s3torchconnector", lambda: ReadTotals(app_bytes, streams))


class S3fs:
    """fsspec's s3fs."""

    def __init__(self, options: Options) -> None:
        """Raises UserError if s3fs can't be imported."""
        file_system = library("s3fs", "s3fs", "storage.storage_options.storage_library=s3fs").S3FileSystem
        client = {"region_name": options.region} | ({"verify": options.ca_bundle} if options.ca_bundle else {})
        self._files = file_system(
            endpoint_url=options.client_endpoint,
            client_kwargs=client,
            config_kwargs={"s3": {"addressing_style": "path" if options.path_style else "virtual"}},
            skip_instance_cache=True,  # it has connections and an event loop: one per fork and thread
            **({"profile": options.profile} if options.profile else {}),
        )

    def open(self, path: str, bucket: str, key: str, *, whole: bool) -> LibraryFile:
        return open_by_fsspec(self._files, f"{bucket}/{key}", path, "s3fs")


S3Library = TorchConnector | S3fs
S3_LIBRARIES: dict[str, type[S3Library]] = dict(zip(LIBRARIES_OF_OBJECTS, (TorchConnector, S3fs), strict=True))
"""Value of `storage_library` -> the class by which `reader.engine=library` reads objects."""


def open_by_fsspec(files: Any, place: str, path: str, client: str) -> LibraryFile:
    """Open a file of an fsspec file system by fs.open, as scripts do. Raises FileNotFoundError, DatasetError."""
    with _explaining(path, client):
        file = files.open(place, "rb")
    cache = getattr(file, "cache", None)
    if cache is None:  # not an AbstractBufferedFile: only our own reads can be counted
        return ClientFile(path, file, client)
    return ClientFile(path, file, client, lambda: ReadTotals(cache.total_requested_bytes, cache.miss_count))


class ClientFile(LibraryFile):
    """A client library's file object; its errors are reported as read errors, and not as a damaged file."""

    def __init__(self, path: str, file: Any, client: str, totals: Callable[[], ReadTotals] | None = None) -> None:
        """Without `totals`, the bytes read from it and the read calls are counted."""
        super().__init__(path)
        self._got = self._calls = 0
        self._file, self._client, self._totals = file, client, totals

    def read_totals(self) -> ReadTotals:
        return self._totals() if self._totals else ReadTotals(self._got, self._calls)

    def read(self, size: int = -1) -> bytes:
        with self._explaining():
            data: bytes = self._file.read(size)
        self._got += len(data)
        self._calls += 1
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any writable buffer
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._explaining():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Exception):  # whatever it raises, the file is no longer needed
                self._file.close()
        super().close()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with _explaining(self.name, self._client):
                yield
        except (DatasetError, FileNotFoundError) as error:
            self.failure = self.failure or error
            raise


@contextlib.contextmanager
def _explaining(path: str, client: str) -> Iterator[None]:
    """Turn a client library's exception into FileNotFoundError, or a DatasetError that names library and object."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except (ValueError, TypeError, MemoryError):  # an invalid seek or read by the format's library
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise DatasetError(
            f"{path}: {client} can't read it ({type(error).__name__}: {text}). Check whether the server is up, and "
            f"whether {client} finds credentials and the server's certificate"
        ) from error
