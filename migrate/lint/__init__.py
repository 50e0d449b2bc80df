"""FSDP configs as a gate: find files, judge them as they are, and say only what is true and asked for.

`discovery` finds files, `view` turns what the pipeline knows of one into findings, `checks` adds what
only lint asks, `suppress`, `baseline` and `selection` leave out what is accepted, `run` puts it together.
"""
