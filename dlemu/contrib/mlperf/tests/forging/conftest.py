"""What the forged trees share is parsed once."""

from dlemu.contrib.mlperf.tests.conftest import parsed_once as parsed_once
