"""Loads layers during compute, by Forebay and other methods: ``python -m forebay.stream_bench``.

It is a program, not a library: its parts change without notice.
"""
