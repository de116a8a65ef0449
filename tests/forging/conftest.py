"""What the forged trees share is parsed once."""

from tests.mlperf.conftest import parsed_once as parsed_once
