"""What a rank notes of each prompt. Times are nanoseconds of CLOCK_MONOTONIC, unless they are differences."""

from __future__ import annotations

ADDED = ("priority", "dram_bytes", "again_bytes", "begun_bytes")
"""Columns that older results lack."""
WHOLE = -1
"""In place of a prompt's number: the rank's replay as a whole."""

COLUMNS = {
    "rank": "rank of the run",
    "prompt": "number of the prompt in the load, from 0; -1 is the row of the rank's whole replay",
    "arrived_ns": "when the load has it arrive; of the whole: the load began",
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
    "loaded_ns": "its last block had come from storage; its arrival where it read none; 0: not before the run ended",
    "compute_ns": "how long it computed",
    "without_ns": "how long it would have computed without storage",
    "computed_ns": "it had its first token; 0: not before the run ended",
    "written_ns": "its last block was written; 0: not before the run ended, or it wrote none",
    "read_call_ns": "time in open, read and close calls, added up over threads",
    "longest_read_ns": "of them those of the slowest shard",
    "write_call_ns": "time in calls that write, added up over threads",
    "ended_ns": "of the whole: nothing was under way any more, or it was given up",
    "cpu_ns": "of the whole: CPU time of the rank meanwhile",
    "storage_bytes": "of the whole: bytes fetched from storage meanwhile by the kernel's accounting",
    "accelerators": "of the whole: emulated",
    "evicted": "of the whole: blocks that went for others",
    "priority": "of the official load: its class, 3 interactive, 2 responsive, 1 batch; 0 of other loads",
    "dram_bytes": "of the official load: bytes read from the host's memory (counted)",
    "again_bytes": "of the official load: bytes read of what this prompt itself had written",
    "begun_bytes": "of the official load: bytes of a read that had begun and not ended when the run did",
    "dropped": "of the whole: blocks among them that had not been written yet",
    "ceiling_per_hour": "of the whole: prompts an hour that it could load and write without storage; 0: not measured",
}
