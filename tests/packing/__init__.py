"""Tests of `dlemu.jobs.pack`."""
