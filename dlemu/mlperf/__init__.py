"""MLPerf Storage and DLIO: their files, in their units and by their definitions."""
