"""Recorded programs: what one call dispatched, planned once and replayed as one command buffer.

`capture` notes what a call would dispatch, `plan` places its intermediates, `program` holds the command buffers,
`recording` decides what is fixed in them and what is patched at each call, `resources` owns the memory they share.
"""
