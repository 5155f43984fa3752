"""The soak: a whole pipeline under writers, readers, faults, rebuilds and changes for a long time, and what came of it.

The real engine, daemon, web server and Spark; `tests/e2e` shares the site and its clients. Nothing of this is installed with the product.
"""
