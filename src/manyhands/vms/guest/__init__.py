"""What runs inside a machine. Nothing here imports the rest of manyhands: it is copied into images as it is."""
