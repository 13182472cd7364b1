"""How close a model's outputs are to another's: running over batches, and the measures."""
