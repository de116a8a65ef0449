"""Checks of `dlemu doctor` that only training needs: one per file, with the interface of those in `dlemu.doctor`."""
