"""Questions about jobs: each study is a resumable list of child runs, and the answer that they give."""
