"""What runs inside a machine. Nothing here imports the rest of paragent: it is copied into images as it is."""
