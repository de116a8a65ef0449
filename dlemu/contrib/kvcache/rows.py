"""The columns of kvcache.parquet: a row per prompt, and one per rank. Moments are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

RANK_ROW = -1
"""Value of `prompt` in the one row of each rank that describes its whole replay."""

COLUMNS = {
    "rank": "rank of the run",
    "prompt": "number of the prompt in the load, from 0; -1 is the row of the rank's whole replay",
    "arrived_ns": "when the prompt arrives according to the load; whole replay: when the load began",
    "late_ns": "how much later than that the emulator started to handle it",
    "input_tokens": "tokens of the prompt",
    "output_tokens": "tokens of the answer",
    "cached_tokens": "tokens of the prompt whose keys and values were found, so that they are not computed",
    "gpu_blocks": "blocks found in the accelerators' memory (emulated)",
    "dram_blocks": "blocks found in the host's memory (emulated)",
    "pending_blocks": "blocks found in memory because they were still being written to storage",
    "storage_blocks": "blocks read from storage",
    "read_bytes": "bytes read from storage",
    "written_blocks": "blocks to be written to storage",
    "written_bytes": "bytes to be written to storage",
    "start_ns": "when a copy of the model (official load: a worker) took the prompt; 0: not before the run ended",
    "loaded_ns": "when its last block was read; its arrival if it read none; 0: not before the run ended",
    "compute_ns": "duration of its prefill",
    "without_ns": "duration that its prefill would have had without blocks from storage",
    "computed_ns": "when it had its first token; 0: not before the run ended",
    "written_ns": "when its last block was written; 0: not before the run ended, or it wrote none",
    "read_call_ns": "time in open, read and close calls, summed over threads",
    "write_call_ns": "time in calls that write, summed over threads",
    "cpu_ns": "whole replay: CPU time of the rank",
    "storage_bytes": "whole replay: bytes fetched from storage, by the kernel's accounting",
    "accelerators": "whole replay: number of emulated accelerators",
    "evicted": "whole replay: blocks evicted from storage to make room for others",
    "priority": "official load: class of service, 3 interactive, 2 responsive, 1 batch; 0 in other loads",
    "dram_bytes": "official load: bytes read from the host's memory (emulated)",
    "begun_bytes": "official load: bytes of a read that was in progress when the run ended",
    "ceiling_per_hour": "whole replay: prompts per hour that it could load and write without storage; 0: not measured",
}
