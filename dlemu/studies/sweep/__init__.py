"""The same run over several values."""
