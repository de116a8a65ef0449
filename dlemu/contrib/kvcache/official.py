"""The load of MLPerf Storage v3.0's kv_cache benchmark, "the official load", and the rates that it would publish. Pure.

Formulas and constants are those of kv_cache_benchmark (benchmark.py, workload.py, conversation.py, cache.py,
config.yaml) in https://github.com/mlcommons/storage, Apache-2.0, and of the aggregation over ranks (Rules.md, 6.3.4).
All threads of that tool share one random generator, so no two of its runs send the same requests; here each user has
its own, so that a seed determines the load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dlemu.contrib.kvcache.model import Model, aligned
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Official
from dlemu.extend import UserError, rows_job

MAX_WORKERS = 500
"""Maximum of serving threads; below it there is one per user."""
MAX_CONVERSATIONS, MAX_TURNS, END_SHARE = 1000, 50, 0.2
"""Conversations that the tool remembers; maximum of turns in one; probability that a turn ends its conversation."""
DECODE_BATCH_TOKENS, PREFILL_ONLY_TOKENS = 32, 10_000
"""Decoding reads the file once per so many tokens of the answer; files of prompts this long are never read back."""
CLASSES = {3: "interactive", 2: "responsive", 1: "batch"}
GIB = 2**30
_CLASS_SHARES = (0.15, 0.35, 0.5)  # config.yaml, qos_distribution: interactive below 0.15, responsive below 0.5
_PREFIX_SHARE, _PREFIX_TOKENS = 0.2, (5, 9, 6)
"""Share of prompts that begin with one of three fixed sentences, and the words of each, subtracted from the tokens."""
_THINK_TIME_JITTER = (0.8, 1.2)  # factor of each think time in benchmark.py, which keeps users out of step


@dataclass(frozen=True)
class Template:
    """Ranges from which a user's numbers are drawn."""

    context: tuple[int, int]  # tokens of a prompt
    generation: tuple[int, int]  # tokens of an answer
    think_seconds: tuple[float, float]


TEMPLATES = (
    Template((512, 4096), (50, 200), (0.1, 0.5)),  # chatbot
    Template((4096, 25_000), (100, 500), (0.2, 1.0)),  # coding
    Template((4096, 16_384), (200, 800), (0.3, 1.5)),  # document
)


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of Table KVCache-1 (Rules.md of v3.0, 6.3.1.1)."""

    model: str
    users: int
    memory_gib: int
    allocations: int
    """Maximum of turns that are being written at a time."""
    shape: Mapping[str, Any]


_8B = {"layers": 32, "kv_heads": 8, "head_dim": 128, "attention_dim": 4096, "parameters_billion": 8.03}
_70B = {"layers": 80, "kv_heads": 8, "head_dim": 128, "attention_dim": 8192, "parameters_billion": 70.6}
OPTIONS = {
    1: Option(model="llama3.1-8b", users=200, memory_gib=0, allocations=16, shape=_8B),
    2: Option(model="llama3.1-8b", users=100, memory_gib=4, allocations=16, shape=_8B),
    3: Option(model="llama3.1-70b-instruct", users=70, memory_gib=0, allocations=4, shape=_70B),
}


_NOT_APPLICABLE = (
    *("trace", "speed", "ttft", "load", "tp", "gpu_gb", "dram_gb"),
    *("block_tokens", "trace_block_tokens", "think_seconds", "turns"),
    *("prompt_tokens", "turn_tokens", "output_tokens", "system_prompts", "system_tokens"),
)
"""Settings of dlemu's own load, in whose place an option has its own."""


def with_option_defaults(settings: KvSettings) -> KvSettings:
    """Return the settings with the option's model and users where unset; raises UserError for impossible settings."""
    option, default = OPTIONS[settings.option], KvSettings()
    if not settings.seconds:
        raise UserError(f"kv.option={settings.option} runs for kv.seconds: wanted more than 0 (300 in CLOSED)")
    users = settings.users or option.users
    threads = min(users, MAX_WORKERS)
    refused = [name for name in _NOT_APPLICABLE if getattr(settings, name) != getattr(default, name)]
    if settings.threads not in (default.threads, threads):
        refused.append("threads")
    if refused:
        raise UserError(
            f"kv.option={settings.option} has its own load and memory, one file per turn, a thread for each user and "
            f"no limits: {', '.join(f'kv.{name}' for name in refused)} can't be set with it; leave "
            f"{'them' if len(refused) > 1 else 'it'} out (workload=mlperf_kv sets none of them)"
        )
    own = {"kv_heads"} if settings.latent_dim else set()  # with latent attention there are none
    shape = {name: value for name, value in option.shape.items() if name not in own and not getattr(settings, name)}
    return replace(settings, **shape, users=users, threads=threads)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: a prompt in a conversation, and its answer."""

    at_ns: int
    priority: int
    conversation: int
    context_tokens: int
    stored_tokens: int
    """Tokens in its file: `context_tokens` without those of a fixed sentence."""
    output_tokens: int

    @property
    def reads(self) -> int:
        """How often its file is read back after it was written."""
        if self.context_tokens >= PREFILL_ONLY_TOKENS:
            return 0
        return 1 + max(1, -(-self.output_tokens // DECODE_BATCH_TOKENS))


@dataclass(frozen=True, eq=False)
class RankTurns:
    """The turns that one rank serves; object n is the file of turn n."""

    model: Model
    turns: Sequence[Turn]
    sizes: Sequence[int]
    """Bytes of each file."""
    accelerators: int = 0

    def __len__(self) -> int:
        return len(self.turns)

    def batches(self, number: int) -> Iterator[Batch]:
        """Yield the write and the reads of a turn, those of its own file alone."""
        yield Batch(Operation.WRITE, 0, (number,))
        yield Batch(Operation.READ, 0, (number,) * self.turns[number].reads)

    @property
    def option(self) -> Option:
        return OPTIONS[self.model.settings.option]

    @property
    def peak_bytes(self) -> int:
        """Free space that is needed: the files being written at a time, of mean size; older files can be evicted."""
        at_a_time = min(self.option.allocations, self.model.settings.threads)
        return at_a_time * sum(self.sizes) // max(1, len(self.sizes))


def draw_turns(settings: KvSettings, rank: int) -> RankTurns:
    """Return the requests of a rank's users until the clock ends; users don't wait for answers."""
    turns: list[Turn] = []
    for user in range(settings.users):
        turns += _draw_user(settings, np.random.default_rng([settings.seed + rank, user]), user)
    turns.sort(key=lambda turn: turn.at_ns)
    model = Model(settings)
    sizes = [aligned(turn.stored_tokens * model.token_bytes / settings.shrink) for turn in turns]
    return RankTurns(model, turns, sizes)


def _draw_user(settings: KvSettings, random: np.random.Generator, user: int) -> list[Turn]:
    template = TEMPLATES[int(random.integers(len(TEMPLATES)))]
    priority = 3 - int(random.choice(len(_CLASS_SHARES), p=_CLASS_SHARES))
    context, generation = (int(random.integers(low, high + 1)) for low, high in (template.context, template.generation))
    think = float(random.uniform(*template.think_seconds))
    max_turns = int(settings.seconds / (_THINK_TIME_JITTER[0] * think)) + 1
    at = np.cumsum(think * random.uniform(*_THINK_TIME_JITTER, max_turns))
    at = at[at < settings.seconds]
    contexts = random.integers(max(1, context // 4), context + 1, len(at))
    outputs = random.integers(max(1, generation // 4), generation + 1, len(at))
    ends = random.random(len(at)) < END_SHARE
    prefixes = np.where(random.random(len(at)) < _PREFIX_SHARE, random.choice(_PREFIX_TOKENS, len(at)), 0)
    turns: list[Turn] = []
    conversation, turns_taken = user << 32, 0
    for moment, tokens, output, end, prefix in zip(
        at.tolist(), contexts.tolist(), outputs.tolist(), ends.tolist(), prefixes.tolist(), strict=True
    ):
        if turns_taken and (end or turns_taken >= MAX_TURNS):
            conversation, turns_taken = conversation + 1, 0
        turns_taken += 1
        turns.append(Turn(round(moment * 1e9), priority, conversation, tokens, max(1, tokens - prefix), output))
    return turns


def official_result(
    rows: rows_job.Rows, begins: Mapping[int, int], settings: KvSettings, window_seconds: float
) -> Official:
    clock, window = settings.seconds, max(window_seconds, 1e-9)
    sums = {name: int(rows[name].sum()) for name in ("read_bytes", "begun_bytes", "written_bytes", "dram_bytes")}
    stored, written, memory = sums["read_bytes"], sums["written_bytes"], sums["dram_bytes"]
    done = rows[rows["computed_ns"] > 0]
    stops_ns = np.array([begins[rank] + clock * 1e9 for rank in done["rank"].tolist()])
    storage_seconds = (done["read_call_ns"] + done["write_call_ns"]) / 1e9
    by_rank = [done["rank"] == rank for rank in np.unique(done["rank"])]
    storage_rates = [
        done["output_tokens"][own].sum() / storage_seconds[own].sum() for own in by_rank if storage_seconds[own].any()
    ]
    return Official(
        read_gib_per_second=(stored + sums["begun_bytes"]) / GIB / clock,
        write_gib_per_second=written / GIB / clock,
        true_read_gib_per_second=stored / GIB / window,
        true_write_gib_per_second=written / GIB / window,
        served=len(done),
        late=int((done["computed_ns"] > stops_ns).sum()),
        storage_p95_seconds=max((float(np.percentile(storage_seconds[own], 95)) for own in by_rank), default=None),
        memory_percent=100 * memory / (stored + memory) if stored + memory else None,
        tokens_per_second=int(done["output_tokens"].sum()) / clock,
        storage_tokens_per_second=float(sum(storage_rates)),
    )
