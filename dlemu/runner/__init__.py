"""What every job shares: start the ranks, guard them, record, collect, save."""
