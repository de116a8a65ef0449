"""Measures a storage's MB/s, IOPS and latency as fio does: `run` goes from cell to cell, `requests` measures one."""
