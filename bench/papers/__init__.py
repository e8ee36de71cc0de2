"""What reproduces papers: their tables and figures, and the clocks and simulators that only they need.

A folder for each paper, and a page in docs/papers: what it claims, the command, what was found. Started as the other
benchmarks are, `replay-server bench scalers` for example. It is in a checkout alone: an installed wheel leaves it out.
"""
