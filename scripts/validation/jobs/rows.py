"""A model on Parquet files that pyarrow streams, as HF's datasets do: row groups, and a window to shuffle in."""

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

WINDOW = 256


class Rows(IterableDataset[torch.Tensor]):
    """The rows of all files, each worker its files; shuffled within a window."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        window: list[bytes] = []
        for path in paths:
            file = pyarrow.parquet.ParquetFile(path)
            for group in range(file.num_row_groups):
                for value in file.read_row_group(group, columns=["embedding"])["embedding"]:
                    window.append(value.as_py())
                    if len(window) == WINDOW:
                        yield self._one(window)
        while window:
            yield self._one(window)

    def _one(self, window: list[bytes]) -> torch.Tensor:
        place = random.randrange(len(window))
        window[place], window[-1] = window[-1], window[place]
        return torch.from_numpy(np.frombuffer(window.pop(), np.float16).astype(np.float32))


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data")
    asked.add_argument("--steps", type=int, required=True)
    asked.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    asked.add_argument("--batch", type=int, default=32)
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    words = asked.parse_args()
    loader = DataLoader(Rows(words.data), batch_size=words.batch, num_workers=words.workers, drop_last=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    began, step = time.perf_counter(), 0
    while step < words.steps:
        for _rows in loader:
            time.sleep(words.step_seconds)
            loss = model(torch.zeros(1, 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == words.skip:
                began = time.perf_counter()
            if step == words.steps:
                break
    print(f"{(step - words.skip) * words.batch / (time.perf_counter() - began):.3f} samples/s")


if __name__ == "__main__":
    main()
