"""The sentences for the codes of `dlemu.contrib.pack.limits`."""

from __future__ import annotations

from dataclasses import replace

from dlemu.contrib.pack.limits import Advice, PackLimit, Seen
from dlemu.results.wording import Wording, sentences

_SEEN: Wording = {
    Seen.SHARES: "the processes spent {reading_percent:.0f} % of their time in reads, {computing_percent:.0f} % "
    "computing, {wanting_core_percent:.0f} % waiting for a core, {writing_percent:.0f} % in writes, and "
    "{idle_percent:.0f} % without an image",
    Seen.CORES: "the {cores} cores were {busy_percent:.0f} % busy, {own_percent:.0f} % with packing",
    Seen.THROTTLED: "the CPU limit throttled the processes in {percent:.0f} % of its periods",
    Seen.PROCESSES: "only {processes} of {cores} cores had a packing process",
    Seen.MOSTLY: "most of the time in the storage was spent in {of}",
    Seen.DEVICE: "the device was busy {busy_percent:.0f} % of the time, with {depth:.1f} requests at a time",
}
_ADVICE: Wording = {
    Advice.MORE_IMAGES: "use more images, fewer images per file (images_per_file), or fewer processes",
    Advice.MORE_CORES: "use more cores; smaller images, or encode=raw, need less CPU",
    Advice.STOP_OTHER_PROGRAMS: "other programs use most of the cores: stop them (top), or pack on an idle host",
    Advice.RAISE_CPU_LIMIT: "raise the CPU limit of this container or job (cgroup)",
    Advice.USE_FREE_CORES: "use more processes: cores and storage were idle at times",
    Advice.MORE_REQUESTS: "use more processes, or ahead=4: the storage had few requests at a time",
    Advice.FASTER_TO_READ: "use faster storage for the images",
    Advice.FASTER_TO_WRITE: "use faster storage for the packed files, or smaller images",
    Advice.TRY_MORE_PROCESSES: "to rule out too few requests at a time, try more processes",
}


def in_words(limit: PackLimit) -> PackLimit:
    """Return the limit with its evidence and advice as sentences, too."""
    advice = sentences(limit.to_do, _ADVICE, {Advice.TRY_MORE_PROCESSES})
    return replace(limit, evidence=sentences(limit.seen, _SEEN), advice=advice)
