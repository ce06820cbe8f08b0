"""What a run will take, from a sample of its data and before anything is spent: `armor-ray plan`."""
