"""The torch side: from an `Fsdp2Config` and a model to a sharded model, and the helpers of its training loop.

The only room that imports torch. `plan` says what will be done, `apply` does it, `record` keeps what
was done; every other module holds one part of the work, named for it.
"""
