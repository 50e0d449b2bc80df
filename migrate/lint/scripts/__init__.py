"""Launch scripts: what they ask of FSDP by flag, variable and override. Read, never edited and never run.

`shell` reads the text just far enough, `words` follows variables that are surely one thing, `launcher` judges
the flags of ``accelerate launch`` and its environment, `trainer` the arguments of Hugging Face's Trainer,
`overrides` those of verl, and `report` puts the findings together. What depends on something that the
script does not hold is told as an info, and nothing more is said about it.
"""
