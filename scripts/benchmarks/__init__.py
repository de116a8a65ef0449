"""Benchmarks of dlemu itself: every figure beside a plain program, in the same run (docs/benchmarks.md)."""
