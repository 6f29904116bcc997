"""The tables and figures of the paper, made again: what each needs, and how it is written."""
