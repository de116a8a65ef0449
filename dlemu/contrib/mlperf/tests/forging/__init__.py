"""Forged submission trees: what a reviewer must not let through (`scripts/forge`)."""
