"""Several jobs side by side on one storage: `run` runs each alone, then all at once, `page` shows what that costs."""
