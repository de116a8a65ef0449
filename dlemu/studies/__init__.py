"""Questions about jobs: each study is a resumable list of child runs and what it concludes from them."""
