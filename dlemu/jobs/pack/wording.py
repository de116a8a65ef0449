"""What limited a packing, in sentences."""

from __future__ import annotations

from dataclasses import replace

from dlemu.jobs.pack.limits import Advice, PackLimit, Seen
from dlemu.results.wording import Wording, sentences

_SEEN: Wording = {
    Seen.SHARES: "of the processes' time {reading_percent:.0f} % were reads, {computing_percent:.0f} % computing, "
    "{wanting_core_percent:.0f} % wanting a core, {writing_percent:.0f} % writes, {idle_percent:.0f} % without an "
    "image",
    Seen.CORES: "the {cores} cores were {busy_percent:.0f} % busy, {own_percent:.0f} % with packing",
    Seen.THROTTLED: "the CPU limit held them back in {percent:.0f} % of its periods",
    Seen.PROCESSES: "{processes} of {cores} cores had a process",
    Seen.MOSTLY: "most of the storage's part were {of}",
    Seen.DEVICE: "the device was busy {busy_percent:.0f} % of the time with {depth:.1f} requests at once",
}
_ADVICE: Wording = {
    Advice.MORE_IMAGES: "more images, fewer of them in a file (images_per_file), or fewer processes",
    Advice.MORE_CORES: "more cores; a smaller picture, or encode=raw, takes less of them",
    Advice.STOP_OTHER_PROGRAMS: "other programs have most of the cores: stop them (top), or pack where nothing else "
    "does",
    Advice.RAISE_CPU_LIMIT: "raise the CPU limit of this container or job (cgroup)",
    Advice.USE_FREE_CORES: "more processes: cores were free, and the storage waited",
    Advice.MORE_REQUESTS: "more processes, or ahead=4: the storage had few requests at a time",
    Advice.FASTER_TO_READ: "faster storage for the images",
    Advice.FASTER_TO_WRITE: "faster storage for the packed files, or a smaller picture",
    Advice.TRY_MORE_PROCESSES: "to rule out too few requests at a time, try more processes",
}


def in_words(limit: PackLimit) -> PackLimit:
    """Return the limit with its evidence and advice as sentences."""
    advice = sentences(limit.to_do, _ADVICE, {Advice.TRY_MORE_PROCESSES})
    return replace(limit, evidence=sentences(limit.seen, _SEEN), advice=advice)
