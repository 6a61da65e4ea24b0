"""Numerical studies: claims that need no track and no training of an architecture, checked against exact oracles.

A study is a module with a class `Options` and a function `run(options)`, which returns a `Study`. Its name is the file's, with
dashes. The first line of its docstring is what `regbench study` lists.
"""
