"""Configuration files as text: nodes with offsets, and edits that touch nothing else."""
