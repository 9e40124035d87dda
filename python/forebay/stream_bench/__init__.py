"""Layers behind compute, Forebay compared with other ways: ``python -m forebay.stream_bench``.

It is a program, not a library: its parts change without notice.
"""
