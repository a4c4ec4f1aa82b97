"""Schedules reconcile passes: one at a time per experiment, within bounds for all.

`passes` starts them, `slots` shares slots between namespaces, `places` bounds the memory of their
objects, and `threads` plans them beside the event loop.
"""
