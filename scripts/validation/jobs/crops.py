"""Trains a segmentation of volumes in npz files, as MLPerf's 3D U-Net: loads each whole, and uses a crop."""

from __future__ import annotations

import argparse
import os
import random
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

CROP = 48


class Volumes(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A random crop of each volume, randomly flipped, with a little noise."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        case = np.load(self.paths[index])
        volume, labels = case["x"], case["y"]
        corner = [random.randint(0, side - CROP) for side in volume.shape]
        crop = tuple(slice(begin, begin + CROP) for begin in corner)
        volume, labels = volume[crop], labels[crop]
        for axis in range(3):
            if random.random() < 0.5:
                volume, labels = np.flip(volume, axis), np.flip(labels, axis)
        volume = volume + np.random.normal(0, 0.1, volume.shape).astype(np.float32)
        return torch.from_numpy(volume), torch.from_numpy(labels.copy())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    args = parser.parse_args()
    loader = DataLoader(
        Volumes(args.data), batch_size=args.batch, shuffle=True, num_workers=args.workers, drop_last=True
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start, step = time.perf_counter(), 0
    while step < args.steps:
        for _volume, _labels in loader:
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
