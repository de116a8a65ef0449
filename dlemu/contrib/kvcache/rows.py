"""The rows of kvcache.parquet: one per prompt, and one per rank. Moments are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_type_hints

RANK_ROW = -1
"""Value of `prompt` in the one row of each rank that describes its whole replay."""


@dataclass(eq=False)
class Row:
    """What is known of a prompt, or of a rank; 0 where an event did not happen before the run ended."""

    rank: Annotated[int, "rank of the run"] = 0
    prompt: Annotated[int, "number of the prompt in the load, from 0; -1 is the row of the rank's whole replay"] = 0
    arrived_ns: Annotated[int, "when the prompt arrives according to the load; whole replay: when the load began"] = 0
    late_ns: Annotated[int, "how much later than that the emulator started to handle it"] = 0
    input_tokens: Annotated[int, "tokens of the prompt"] = 0
    output_tokens: Annotated[int, "tokens of the answer"] = 0
    cached_tokens: Annotated[int, "tokens of the prompt whose keys and values were found: they are not computed"] = 0
    gpu_blocks: Annotated[int, "blocks found in the accelerators' memory (emulated)"] = 0
    dram_blocks: Annotated[int, "blocks found in the host's memory (emulated)"] = 0
    pending_blocks: Annotated[int, "blocks found in memory because they were still being written to storage"] = 0
    storage_blocks: Annotated[int, "blocks read from storage"] = 0
    read_bytes: Annotated[int, "bytes read from storage"] = 0
    written_blocks: Annotated[int, "blocks to be written to storage"] = 0
    written_bytes: Annotated[int, "bytes to be written to storage"] = 0
    start_ns: Annotated[int, "when a copy of the model (official load: a worker) took the prompt"] = 0
    loaded_ns: Annotated[int, "when its last block was read; its arrival if it read none"] = 0
    compute_ns: Annotated[int, "duration of its prefill"] = 0
    without_ns: Annotated[int, "duration that its prefill would have had without blocks from storage"] = 0
    computed_ns: Annotated[int, "when it had its first token"] = 0
    written_ns: Annotated[int, "when its last block was written; 0 also if it wrote none"] = 0
    read_call_ns: Annotated[int, "time in open, read and close calls, summed over threads"] = 0
    write_call_ns: Annotated[int, "time in calls that write, summed over threads"] = 0
    cpu_ns: Annotated[int, "whole replay: CPU time of the rank"] = 0
    storage_bytes: Annotated[int, "whole replay: bytes fetched from storage, by the kernel's accounting"] = 0
    accelerators: Annotated[int, "whole replay: number of emulated accelerators"] = 0
    evicted: Annotated[int, "whole replay: blocks evicted from storage to make room for others"] = 0
    priority: Annotated[int, "official load: class of service, 3 interactive, 2 responsive, 1 batch"] = 0
    dram_bytes: Annotated[int, "official load: bytes read from the host's memory (emulated)"] = 0
    begun_bytes: Annotated[int, "official load: bytes of a read that was in progress when the run ended"] = 0
    ceiling_per_hour: Annotated[int, "whole replay: prompts per hour that it could move without storage"] = 0


COLUMNS = {name: hint.__metadata__[0] for name, hint in get_type_hints(Row, include_extras=True).items()}
"""Column -> its meaning."""
