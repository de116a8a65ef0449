"""From a result to what people look at: summary.json and its folder, terminal tables."""
