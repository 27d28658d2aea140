"""Settings that a program assigns, as in ``monarch.actor.config.prefix_python_logs_with_actor = False``."""

prefix_python_logs_with_actor: bool = True
"""Whether the messages of Python's logging begin with the actor that logs them: ``[actor=<root>.<...>]``."""
