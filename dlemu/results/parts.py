"""Parts that the summaries of several kinds of runs have in common."""

from __future__ import annotations

from dataclasses import dataclass

from datagen.quantiles import Percentiles
from dlemu.comm.environment import HostFacts, StorageFacts
from dlemu.telemetry.probe_base import DeviceFacts

SCHEMA_VERSION = 2
READ_VERSIONS = (1, 2)
"""Of version 1 are results whose `limited_by` knew one cause only; all else means the same."""


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """What the summary of every job says; a kind adds its numbers in a subclass."""

    schema_version: int = SCHEMA_VERSION
    kind: str = ""
    """Of the job."""
    complete: bool
    """Whether all that was planned was measured."""
    failure: str | None
    """Why not; None for a complete run."""
    verdict: str
    """The result as one line of text."""
    workload: str
    ranks: int
    hosts: tuple[str, ...] = ()
    """Names in node order."""
    started_at: str = ""
    """ISO 8601 with zone."""
    ended_at: str | None = None
    """None for an incomplete run."""
    judgement_version: int = 1
    """Of the rules of verdicts and causes; 1 in results of before they had a number."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests to an object store in training, evaluation and checkpoints, those retried included."""

    get: int
    head: int
    list: int
    put: int
    delete: int
    received_bytes: int
    """Of the bodies of answers."""
    sent_bytes: int = 0
    """Of the bodies of requests: what was written."""
    failed: int
    """Answers that were no success, and connections that broke."""
    retried: int
    """Retried."""
    slow_down: int
    """Answers 503 and 429."""
    connections_opened: int
    first_byte_ms: Percentiles | None = None
    """From a GET to the first byte of its answer, ms, within 2.2 % (older results: 9 %)."""
    last_byte_ms: Percentiles | None = None
    """From a GET to the last byte of its answer, ms, within 2.2 % (older results: 9 %)."""
    tls_cpu_seconds: float | None = None
    """CPU time that reading over TLS took: handshakes, decrypting, and the kernel's copies. None without TLS."""
    cost: float | None = None
    """At `metric.get_price` and `metric.put_price`; None without a price."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the run ran on."""

    hosts: tuple[HostFacts, ...] = ()
    """In node order."""
    storage: StorageFacts | None = None
    """The file system of the dataset."""


@dataclass(frozen=True, kw_only=True)
class HostDevice(DeviceFacts):
    """A device behind the dataset's folder, as one host sees it."""

    host: str
