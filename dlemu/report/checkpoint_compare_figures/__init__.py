"""Figures of two runs of checkpoints beside each other, one file each; the order on the page is their ORDER."""
