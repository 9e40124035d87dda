"""Layers behind compute, Forebay beside other ways: ``python -m forebay.stream_bench``.

It is a program, not a library: its parts change without notice.
"""
