"""The engine that reads and writes config languages by their declarations; it knows no framework."""
