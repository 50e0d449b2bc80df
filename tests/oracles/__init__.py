"""Judges that nobody here wrote: the frameworks' own loaders, launchers and plugins."""
