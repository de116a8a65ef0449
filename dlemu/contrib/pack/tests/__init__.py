"""Tests of `dlemu.contrib.pack`."""
