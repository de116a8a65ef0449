"""What a storage can do before any training, measured by readers that do nothing else.

`kind` declares it; `run` measures cell by cell, `requests` and `object_gets` measure, `page` words and shows. Imports
no other kind of job, nor studies, the command line or mlperf.
"""
