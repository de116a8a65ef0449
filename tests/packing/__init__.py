"""Tests of `dlemu.packing`."""
