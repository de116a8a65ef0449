"""Trains a language model on one mapped file of tokens, as nanoGPT: reads random windows of it."""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BLOCK = 2048


class Tokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of the file, each with the token that follows each of its tokens."""

    def __init__(self, folder: str) -> None:
        self.tokens = np.memmap(os.path.join(folder, "train.bin"), dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // BLOCK

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * BLOCK
        window = torch.from_numpy(self.tokens[start : start + BLOCK + 1].astype(np.int64))
        return window[:-1], window[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    args = parser.parse_args()
    loader = DataLoader(
        Tokens(args.data), batch_size=args.batch, shuffle=True, num_workers=args.workers, drop_last=True
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start, step = time.perf_counter(), 0
    while step < args.steps:
        for _tokens, _targets in loader:
            time.sleep(args.step_seconds)
            loss = model(torch.zeros(1, 1)).sum()
            optimizer.zero_grad(set_to_none=True)
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
