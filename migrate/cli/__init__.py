"""The command line: arguments → call → render → exit code, and nothing else."""
