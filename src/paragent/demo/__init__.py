"""The demo: a scripted policy that replaces a model, and sample tasks that it can solve."""
