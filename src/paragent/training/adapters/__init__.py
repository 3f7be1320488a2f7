"""Adapters for trainers: one module for each, which imports the trainer's package when it is used."""
