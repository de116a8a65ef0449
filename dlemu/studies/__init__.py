"""Questions about jobs: each study is a resumable list of child runs and what it concludes from them.

A folder is a study, its `kind` says how its results are known; `answers` are their files, `prerequisites` what is
checked and probed first. May import jobs and what is below; the command line and DLIO are not known here.
"""
