"""Trains a classifier on class folders of JPEGs, as torchvision's ImageFolder; with --train, a small ResNet."""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 224


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Pictures in class folders, randomly cropped and flipped, and scaled."""

    def __init__(self, root: str) -> None:
        classes = sorted(os.listdir(root))
        self.samples = [
            (os.path.join(root, folder, name), label)
            for label, folder in enumerate(classes)
            for name in sorted(os.listdir(os.path.join(root, folder)))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            picture = Image.open(file).convert("RGB")
        side = int(min(picture.size) * random.uniform(0.5, 1.0))
        left, top = random.randint(0, picture.width - side), random.randint(0, picture.height - side)
        picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        pixels = np.asarray(picture)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), label


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out_channels), nn.BatchNorm2d(out_channels)])
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="in place of a GPU")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    args = parser.parse_args()
    loader: DataLoader[Any] = DataLoader(
        Pictures(args.data), batch_size=args.batch, shuffle=True, num_workers=args.workers, drop_last=True
    )
    layers = [nn.Conv2d(3, 16, 7, 4, 3), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(64, 1000)) if args.train else nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.set_num_threads(1)
    start, step = time.perf_counter(), 0
    while step < args.steps:
        for pixels, labels in loader:
            if args.train:
                loss = nn.functional.cross_entropy(model(pixels.float().div_(255)), labels)
            else:
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
