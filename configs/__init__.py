"""Hydra groups, installed as `dlemu.configs`."""
