"""A change of DDL as data: what differs, what each difference takes, in which order, what it touches. Pure.

`changes` holds the vocabulary, `alters` turns differences of a table into statements, `planner` puts a plan together, `impact` says what
it touches, `codec` writes it down. Nothing here talks to a server; `resources.deploy` carries a plan out.
"""
