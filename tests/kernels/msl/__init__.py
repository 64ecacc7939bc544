"""Runs the project's Metal kernels on a CPU: the text that ships, with its threads, barriers and address spaces.

`source` takes from MLX the text it would compile, `build` compiles it for the CPU behind the headers in `shim/`,
`emulator` runs it in place of `mx.fast.metal_kernel`, `address_spaces` reads it with clang, `lint` looks for the
traps that neither can see. What none of these shows is said in metal/README.md.
"""
