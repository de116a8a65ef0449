"""What a rank notes of each prompt. Times are nanoseconds of CLOCK_MONOTONIC, unless they are differences."""

from __future__ import annotations

ADDED = ("priority", "dram_bytes", "again_bytes", "begun_bytes")
"""Columns that older results lack."""
WHOLE = -1
"""In place of a prompt's number: the rank's replay as a whole."""

COLUMNS = {
    "rank": "rank of the run",
    "prompt": "number of the prompt in the load, from 0; -1 is the row of the rank's whole replay",
    "arrived_ns": "when the load has it arrive; whole replay: when the load began",
    "late_ns": "how much later the emulator noticed",
    "input_tokens": "tokens of the prompt",
    "output_tokens": "tokens of the answer",
    "cached_tokens": "tokens of the prompt that need no computing",
    "gpu_blocks": "blocks found in the accelerators' memory (counted)",
    "dram_blocks": "blocks found in the host's memory (counted)",
    "pending_blocks": "blocks found in memory because they were still being written to storage",
    "storage_blocks": "blocks read from storage",
    "read_bytes": "bytes read from storage",
    "written_blocks": "blocks to be written to storage",
    "written_bytes": "bytes to be written to storage",
    "start_ns": "when a copy of the model took it; 0: none did before the run ended",
    "loaded_ns": "when its last block was read; its arrival where it read none; 0: not before the run ended",
    "compute_ns": "how long it computed",
    "without_ns": "how long it would have computed without storage",
    "computed_ns": "when it had its first token; 0: not before the run ended",
    "written_ns": "when its last block was written; 0: not before the run ended, or it wrote none",
    "read_call_ns": "time in open, read and close calls, added up over threads",
    "longest_read_ns": "of these, those of the slowest shard",
    "write_call_ns": "time in calls that write, added up over threads",
    "ended_ns": "whole replay: when nothing was in progress any more, or it was given up",
    "cpu_ns": "whole replay: CPU time of the rank",
    "storage_bytes": "whole replay: bytes fetched from storage, by the kernel's accounting",
    "accelerators": "whole replay: emulated",
    "evicted": "whole replay: blocks evicted for others",
    "priority": "official load: its class, 3 interactive, 2 responsive, 1 batch; 0 of other loads",
    "dram_bytes": "official load: bytes read from the host's memory (counted)",
    "again_bytes": "official load: bytes read of what this prompt itself had written",
    "begun_bytes": "official load: bytes of a read that had begun and not ended when the run did",
    "dropped": "whole replay: blocks among them that had not been written yet",
    "ceiling_per_hour": "whole replay: prompts per hour that it could load and write without storage; 0: not measured",
}
