"""Trains on Parquet files that pyarrow streams, as HF's datasets do: by row group, with a shuffle buffer."""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator

import numpy as np
import pyarrow.parquet
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BUFFER_ROWS = 256


class Rows(IterableDataset[torch.Tensor]):
    """The rows of all files, of which each worker reads its share; shuffled in a buffer."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        buffer: list[bytes] = []
        for path in paths:
            file = pyarrow.parquet.ParquetFile(path)
            for group in range(file.num_row_groups):
                for value in file.read_row_group(group, columns=["embedding"])["embedding"]:
                    buffer.append(value.as_py())
                    if len(buffer) == BUFFER_ROWS:
                        yield self._pop_random(buffer)
        while buffer:
            yield self._pop_random(buffer)

    def _pop_random(self, buffer: list[bytes]) -> torch.Tensor:
        index = random.randrange(len(buffer))
        buffer[index], buffer[-1] = buffer[-1], buffer[index]
        return torch.from_numpy(np.frombuffer(buffer.pop(), np.float16).astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    args = parser.parse_args()
    loader = DataLoader(Rows(args.data), batch_size=args.batch, num_workers=args.workers, drop_last=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start, step = time.perf_counter(), 0
    while step < args.steps:
        for _rows in loader:
            time.sleep(args.step_seconds)
            loss = model(torch.zeros(1, 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.skip:
                start = time.perf_counter()
            if step == args.steps:
                break
    print(f"{(step - args.skip) * args.batch / (time.perf_counter() - start):.3f} samples/s")


if __name__ == "__main__":
    main()
