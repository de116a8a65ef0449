"""Tests of datagen: bytes, names, sizes."""
