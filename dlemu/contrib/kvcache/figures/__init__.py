"""Figures on the page of a run of KV-cache offload."""
