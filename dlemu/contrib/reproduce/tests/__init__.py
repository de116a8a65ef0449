"""Tests of `dlemu.contrib.reproduce`."""
