"""The commands of `regbench`, one file each. The name of the file is the name of the command.

A module has `configure(parser)`, which declares the arguments, and `main(arguments, console)`, which returns the exit code. The
first line of its docstring is the help text. `regbench --help` imports all of them, so slow imports (PyTorch) stand in `main`.
"""
