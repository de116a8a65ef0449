"""Tests of `dlemu.reproduction`."""
