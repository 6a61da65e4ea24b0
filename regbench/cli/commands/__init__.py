"""One file a command of `regbench`; a file that is here is a command, and its name is the file's.

A module gives `configure(parser)`, which declares the arguments, and `main(arguments, console) -> exit code`; the first line
of its docstring is the command's help. `regbench --help` loads all of them, so what is slow to import (PyTorch) is imported in
`main`.
"""
