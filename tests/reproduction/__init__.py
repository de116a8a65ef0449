"""Tests of `dlemu.studies.reproduce`."""
