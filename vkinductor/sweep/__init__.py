"""The sweep: every kernel template on the open device, over sizes, dtypes, layouts and what is fused into it.

`program` says what a family of kernels is: axes of choices, and the function, operands and reference that a choice of
each makes; `families/` has one module for each kind of template. `sizes` samples sizes, `layouts` lays operands out in
memory among NaN, `errors` and `row_errors` say how far a result may be off, `calls` calls a program under changing
circumstances of memory, `check` compiles and compares, `worker` runs families in a process that may die, `pool` feeds
workers and `report` prints what they found.

Tiles are forced, so that templates which a device would not choose run as well, cooperative matrices emulated where it
has none.
"""
