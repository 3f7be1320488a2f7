"""The demo: a scripted policy in the place of a model, and sample tasks that it can solve."""
