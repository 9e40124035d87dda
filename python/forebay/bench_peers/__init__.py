"""Other loaders and Forebay on one file, turn by turn: ``python -m forebay.bench_peers FILE``.

Each turn is a fresh process that loads the file several times and prints one line of JSON. What is
not installed is named and left out. ``docs/peers.md`` says what is measured and what is fair.
"""
